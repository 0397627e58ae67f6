"""From files and flags to a run, and to its ``config.json`` and back."""

import json
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.cli.evaluate import evaluation_envs
from multippo.errors import UsageError
from multippo.runs.directory import RunDirectory, default_run_directory
from multippo.runs.settings import RunSettings, overlaid

GIVEN: dict[str, Any] = {
    "env": "brax/fast",
    "env_backend": "spring",
    "episode_length": 20,
    "network": "lstm",
    "hidden_features": 8,
    "encoder_sizes": (4,),
    "normalize_obs": False,
    "num_envs": 4,
    "learning_rate": 1e-4,
    "eval_every_steps": 100,
    "seed": 5,
    "final_eval_episodes": 3,
}


def test_everything_given_is_there_and_the_rest_is_the_default():
    settings = RunSettings.of(GIVEN)
    assert settings.env_kwargs == {"backend": "spring", "episode_length": 20}
    assert settings.network_options["hidden_features"] == 8
    assert settings.network_options["critic_hidden_sizes"] == ()  # the recurrent network's default, not the other's
    ppo = mp.PPOConfig(num_envs=4, learning_rate=1e-4)
    assert settings.train == mp.TrainConfig(ppo=ppo, eval=mp.EvalConfig(enabled=True, every_steps=100), seed=5)
    assert RunSettings.of({"env": "CartPole-v1"}).network_options["critic_hidden_sizes"] == (64, 64)
    assert RunSettings.of({"env": "CartPole-v1", "num_envs": None}).train.ppo.num_envs == 8


@pytest.mark.parametrize("name", ["eval_every_steps", "eval_num_episodes", "eval_num_envs", "eval_deterministic"])
def test_saying_how_to_evaluate_during_training_switches_it_on(name: str):
    assert RunSettings.of({"env": "CartPole-v1", name: 1 if name != "eval_deterministic" else False}).train.eval.enabled
    assert not RunSettings.of({**GIVEN, "eval_enabled": False}).train.eval.enabled
    # The limit holds for the evaluation after training, too, which every run has.
    assert not RunSettings.of({"env": "CartPole-v1", "eval_max_episode_steps": 5}).train.eval.enabled


def test_a_later_layer_overrides_an_earlier_one():
    preset, file = {"seed": 1, "num_envs": 2, "eval_enabled": False}, {"seed": 2, "eval_every_steps": 5}
    settings = RunSettings.of({"env": "CartPole-v1"}, preset, file, {"seed": 3})
    assert (settings.train.seed, settings.train.ppo.num_envs, settings.train.ppo.rollout_length) == (3, 2, 128)
    assert settings.train.eval == mp.EvalConfig(enabled=True, every_steps=5)  # the file says how, after the preset
    assert overlaid(file, {"eval_enabled": False})["eval_enabled"] is False
    assert overlaid({"env_kwargs": {"g": 1, "m": 2}}, {"env_kwargs": {"g": 3}}) == {"env_kwargs": {"g": 3, "m": 2}}


@pytest.mark.parametrize(
    "given",
    [
        GIVEN,
        {"env": "CartPole-v1", "max_episode_steps": 10, "activation": None},
        {"env": "Pendulum-v1", "env_kwargs": {"g": 3.0, "seed": [1, None]}, "max_episode_steps": 10},
        {"env": "brax/fast", "action_repeat": 2, "reward_scale": 0.5, "observation_keys": ("a", "b.c")},
    ],
)
def test_a_run_is_read_back_from_its_directory_as_it_was(given: dict[str, Any], tmp_path: Path):
    settings = RunSettings.of(given)
    directory = RunDirectory(tmp_path / "a/b")
    with directory.begun(settings, "torch"):
        pass
    assert directory.settings() == settings
    assert directory.read_settings()["backend"] == "torch"
    assert "multippo" in json.loads(directory.config.read_text())["versions"]


@pytest.mark.parametrize(("kind", "gates"), [("lstm", 4), ("gru", 3)])
def test_the_network_is_of_the_kind_and_the_seed_given(torch_engine: Any, kind: str, gates: int):
    env = mp.make_env("CartPole-v1", num_envs=1)
    given = {"env": "CartPole-v1", "network": kind, "hidden_features": 5, "encoder_sizes": ()}
    networks = [RunSettings.of({**given, "seed": seed}).make_network(env) for seed in (0, 0, 1)]
    one, same, other = (mp.to_portable(net)["layers.1.action.layers.0.recurrent_kernel"] for net in networks)
    assert one.shape == (5, gates * 5)
    assert (one == same).all() and (one != other).any()


def test_a_network_for_images():
    image: Any = types.SimpleNamespace(
        observation_space=spaces.Box(0, 255, (10, 10, 2), np.uint8), action_space=spaces.Discrete(3)
    )
    given = {"env": "images/Any-v0", "network": "cnn", "channels": (5,), "kernel_sizes": (4,), "strides": (3,)}
    settings = RunSettings.of(given)
    assert settings.network_options["activation"] == "relu"  # its own default, as the 512 below
    with mp.use_backend("torch"):
        weights = mp.to_portable(settings.make_network(image))
    kernels = [value.shape for name, value in weights.items() if name.endswith("kernel")]
    assert kernels[:2] == [(4, 4, 2, 5), (3 * 3 * 5, 512)]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "an environment is missing"),
        ({"env": "CartPole-v1", "desired_kl": 0.02}, r"desired_kl=0\.02 has no effect with lr_schedule='linear'"),
        ({"env": "CartPole-v1", "hidden_features": 4}, "--hidden-features is an option of --network lstm"),
        ({"env": "CartPole-v1", "env_kwargs": {"num_envs": 2}}, "num_envs is a setting of its own"),
        ({"env": "brax/ant", "vectorization": "sync"}, "--vectorization is for gymnasium"),
        ({"env": "CartPole-v1", "eval_max_episode_steps": 0}, "^eval_max_episode_steps=0 is not possible"),
    ],
)
def test_what_does_not_go_together_is_refused(given: dict[str, Any], message: str):
    with pytest.raises((UsageError, ValueError), match=message):
        RunSettings.of(given)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c.update(format="x"), "not written by multippo train"),
        (lambda c: c.update(format_version=2), "format 2.*upgrade"),
        (lambda c: c["train"]["ppo"].update(learning_rate="fast"), "learning_rate='fast'"),
    ],
)
def test_a_run_whose_file_was_tampered_with_is_refused(change: Any, message: str, tmp_path: Path):
    directory = RunDirectory(tmp_path / "a")
    directory.path.mkdir()
    directory.write_settings(RunSettings.of({"env": "CartPole-v1"}), "torch")
    content = json.loads(directory.config.read_text())
    change(content)
    directory.config.write_text(json.dumps(content))
    with pytest.raises(UsageError, match=message):
        directory.settings()


def test_runs_get_directories_of_their_own(tmp_path: Path):
    settings = RunSettings.of({"env": "gymnasium/CartPole-v1", "seed": 3})
    first = default_run_directory(settings, "jax", tmp_path)
    first.path.mkdir(parents=True)
    second = default_run_directory(settings, "jax", tmp_path)
    assert first.path.parent == second.path.parent == tmp_path / "CartPole-v1"
    assert first.path.name.endswith("-jax-seed3")
    assert first.path != second.path


@pytest.mark.parametrize(
    ("vectorization", "episodes", "expected"),
    [("sync", 1000, 100), ("sync", 7, 7), ("async", 1000, 3), ("async", 2, 2)],
)
def test_an_evaluation_starts_no_more_processes_than_the_training(vectorization: str, episodes: int, expected: int):
    settings = RunSettings.of({"env": "CartPole-v1", "num_envs": 3, "vectorization": vectorization})
    assert evaluation_envs(settings, episodes) == expected


def test_a_form_that_a_clock_has_chosen_is_kept_until_the_clock_is_asked_again():
    class Env:
        vectorization = "threads"

    given: dict[str, Any] = {"env": "HalfCheetah-v5"}
    env: Any = Env()
    settings = RunSettings.of(given).with_choices(env)
    assert settings.as_json()["env"]["kwargs"] == {"vectorization": "threads"}
    stored = given | {"vectorization": "threads"}
    assert RunSettings.of(stored) == settings
    assert RunSettings.of(stored, {"vectorization": "auto"}) == RunSettings.of(given)
    env.vectorization = None
    assert settings.with_choices(env) == settings
