"""``multippo.load_run``: a run of the command, in Python."""

import json
import shutil
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from short_runs import checkpoints, train
from spaces_env import Spaces

import multippo as mp
from multippo.errors import MultippoError


def test_a_run_from_before_bytes_were_normalised_keeps_its_network(command: Any, monkeypatch: pytest.MonkeyPatch):
    make = lambda: Spaces(spaces.Box(0, 255, (7, 7, 3), np.uint8), spaces.Discrete(3))  # noqa: E731
    spec = gymnasium.envs.registration.EnvSpec("test/Codes-v0", make)
    monkeypatch.setitem(gymnasium.registry, "test/Codes-v0", spec)
    options = ("--bytes-as-images", "true", "--final-eval-episodes", 0, "--run-dir", "run")
    assert train(command, *options, env="test/Codes-v0").code == 0
    path = Path("run/config.json")
    config = json.loads(path.read_text())
    del config["network"]["options"]["bytes_as_images"]
    path.write_text(json.dumps(config))
    with mp.use_backend("numpy"):
        assert isinstance(mp.load_run("run").network[0], mp.Scale)
    assert command("train", "--resume", "--run-dir", "run", "--total-steps", 96, "--progress", "off").code == 0
    assert json.loads(path.read_text())["network"]["options"]["bytes_as_images"] is True


@pytest.mark.parametrize("backend", ["torch", "numpy"])
def test_network_and_environment_are_those_of_the_run(command: Any, five: Path, backend: str):
    with mp.use_backend(backend):
        loaded = mp.load_run(five, num_envs=5)
        stored = loaded.checkpoint.weights()
        found = mp.to_portable(loaded.network)
        assert found.keys() == stored.keys()
        for name, value in stored.items():
            np.testing.assert_array_equal(found[name], value, err_msg=name)
        assert loaded.env.num_envs == 5
        assert loaded.config.ppo.rollout_length == 8
        key = mp.random.key(3)
        score = mp.eval_rollout(loaded.env, loaded.network, num_episodes=5, key=key)
        loaded.env.close()
    told = command("eval", five, "--backend", backend, "--episodes", 5, "--seed", 3, "--json")
    assert score["eval/episode_reward/mean"] == json.loads(told.out)["episode_reward_mean"]


def test_any_of_its_checkpoints_to_go_on_from(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    first, last = (checkpoints(run)[place] for place in (0, -1))
    # A number is a step, not the name of what happens to lie here.
    monkeypatch.chdir(tmp_path)
    shutil.copytree(last, str(mp.load_checkpoint(first).manifest.step))
    step = int(first.name.removeprefix("step_"))
    with mp.use_backend("torch"):
        for which in (step, np.int64(step), str(first), first, first.name):
            loaded = mp.load_run(str(run), which)
            assert loaded.checkpoint.path == first
            assert loaded.env.num_envs == 4
        state = loaded.checkpoint.restore(loaded.network)
        assert (state.step, state.iteration) == (step, 1)
        result = mp.train_ppo(loaded.env, loaded.network, loaded.config, initial_state=state)
    assert result.total_iterations == mp.load_checkpoint(run).manifest.iteration


def test_a_run_is_loaded_in_the_active_precision(five: Path):
    with mp.use_backend("torch"), mp.precision("float64"):
        found = mp.to_portable(mp.load_run(five).network)
    for name, value in mp.load_checkpoint(five).weights().items():
        assert found[name].dtype == (np.float64 if value.dtype == np.float32 else value.dtype)
        np.testing.assert_array_equal(found[name], value, err_msg=name)


@pytest.mark.parametrize(
    ("where", "options", "message"),
    [
        ("none", {}, "nothing is there"),
        (".", {"checkpoint": "best"}, "keep-best"),
        (".", {"checkpoint": 7}, r"no checkpoint '.*/step_000000000007'.* holds step_"),
    ],
)
def test_what_is_not_there_is_told(five: Path, where: str, options: dict[str, Any], message: str):
    with mp.use_backend("torch"), pytest.raises((MultippoError, ValueError), match=message):
        mp.load_run(five / where, **options)
