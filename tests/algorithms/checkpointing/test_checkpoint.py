"""What is no whole and fitting checkpoint is refused by name, and nothing of it is run."""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from checkpoints import clock, saved, state_of, table_net
from safetensors.numpy import load_file, save_file

import multippo as mp
from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState
from multippo.errors import DamagedCheckpointError
from multippo.testing import Clock


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("carry", lambda t: t.pop("network_state['sampler'].key"), "network_state"),
        ("carry", lambda t: t.update(key=np.zeros(3, np.int64)), "'key'"),
        ("carry", lambda t: t.update({"episodes.reward": np.zeros((4, 1))}), r"episodes.reward' has shape \(4, 1\)"),
        ("carry", lambda t: t.update({"episodes.length": np.zeros(4, bool)}), "'episodes.length' .*of bool"),
        ("carry", lambda t: t.update(key=np.array([2**32, 0])), "'key' .*expected 0 to 4294967295"),
        ("carry", lambda t: t.update(key=np.zeros(2)), "'key' .*is of float64"),
        ("optimizer", lambda t: t.update({"second/values": np.zeros(4, bool)}), "'second/values' .*is of bool"),
        ("weights", lambda t: t.update(logits=np.zeros((4, 2), int)), "'logits' .*is of int64"),
    ],
)
def test_arrays_that_do_not_fit_are_named_and_change_nothing(file: str, change: Any, message: str, tmp_path: Path):
    with mp.use_backend("torch"):
        saved(tmp_path / "a")
        manifest = tmp_path / "a/checkpoint.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": None}))
        path = tmp_path / f"a/{file}.safetensors"
        tensors = load_file(path)
        change(tensors)
        save_file(tensors, path)
        network = table_net(1)
        before = mp.to_portable(network)
        with pytest.raises(ValueError, match=message):
            mp.load_checkpoint(tmp_path / "a", network)
        support.assert_trees_close(mp.to_portable(network), before, 0.0)


def test_moments_that_an_earlier_version_left_out_are_zeros_if_the_parameter_is_frozen(tmp_path: Path):
    with mp.use_backend("torch"):
        saved(tmp_path / "a")
        manifest = tmp_path / "a/checkpoint.json"
        manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "sha256": None}))
        path = tmp_path / "a/optimizer.safetensors"
        save_file({name: value for name, value in load_file(path).items() if "/values" not in name}, path)
        with pytest.raises(ValueError, match="moments missing in it: first/values, second/values"):
            mp.load_checkpoint(tmp_path / "a", table_net())
        network = table_net()
        network.values.requires_grad_(False)
        first, second, _ = training.portable_moments(network, mp.load_checkpoint(tmp_path / "a", network))
        assert not first["values"].any() and not second["values"].any()
        assert first["logits"].any() and second["logits"].any()


def test_an_environment_of_another_size_is_refused(engine: Any, tmp_path: Path):
    saved(tmp_path / "a")
    state = mp.load_checkpoint(tmp_path / "a", table_net())
    with pytest.raises(ValueError, match="initial_state is of 4 environments, but there are 2"):
        training.train(clock(2), table_net(), iterations=3, initial_state=state)
    with pytest.raises(ValueError, match="host environment"):
        mp.load_checkpoint(tmp_path / "a", table_net(), env=Clock(3, num_envs=4))


def test_sums_of_other_rewards_are_refused(torch_engine: Any):
    network, env = table_net(), Clock(3, num_envs=4)
    zeros = torch_engine.zeros((4,))
    scale = RewardScale(zeros, zeros[0], zeros[0], zeros[0])
    state = dataclasses.replace(state_of(network), episodes=EpisodeState(zeros, zeros, {"goal": scale}))
    with pytest.raises(ValueError, match=r"sums of rewards .*goal.*Go on in an environment with the same rewards"):
        training.train(env, network, iterations=3, initial_state=state, scale_rewards=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(format_version=2, multippo_version="9.9"), r"format 2.*'9\.9'.*upgrade"),
        (lambda m: m.update(format_version=0), "format_version is 0"),
        (lambda m: m.update(step=2**64), "18446744073709551616 does not fit in 64 bits"),
        (lambda m: m.update(backend="b" * 500_000, step="x" * 500_000), "step is .*…; expected an integer"),
        (lambda m: m.update(extra={"deep": "DEEP"}), "nested more than 100 deep"),
        (lambda m: m.update(episodes={"EpisodeState": {"reward": "array"}}), "does not describe the sums|no structure"),
        (lambda m: m.update(format="something"), "not describe a checkpoint"),
        (lambda m: m.update(iteration=-1), "iteration is -1"),
        (lambda m: m.update(iteration=2**40), "iteration is 1099511627776"),
        (lambda m: m.update(optimizer_count=2**32 + 5), "optimizer_count is 4294967301"),
        (lambda m: m.update(learning_rate=-1e-3), r"learning_rate is -0\.001"),
        (lambda m: m.update(learning_rate=float("nan")), "nan is not a number that JSON has"),
        (lambda m: m.update(extra=[]), "extra is"),
        (lambda m: m.update(eval_return="good"), "eval_return is 'good'"),
        (lambda m: m.update(sha256={"weights.safetensors": "0" * 63}), "sha256 is"),
        (lambda m: m.update(sha256={}), r"sha256 says nothing of weights\.safetensors"),
        (lambda m: m["sha256"].pop("environment.safetensors"), r"sha256 says nothing of environment\.safetensors"),
        (lambda m: m.update(episodes={"os.system": {"reward": "array"}}), "damaged.*no structure"),
    ],
)
def test_a_description_that_is_wrong_is_refused_in_one_line(change: Any, message: str, tmp_path: Path):
    with mp.use_backend("torch"):
        saved(tmp_path / "a")
        path = tmp_path / "a/checkpoint.json"
        manifest = json.loads(path.read_text())
        change(manifest)
        path.write_text(json.dumps(manifest).replace('"DEEP"', "[" * 2000 + "]" * 2000))
        with pytest.raises(ValueError, match=message) as caught:
            mp.load_checkpoint(tmp_path / "a", table_net())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize(
    "text", ["", "[1]", "{", '{"step": 1, "step": 2}', "[" * 100_000, '{"format": "multippo.checkpoint"', "\x00"]
)
def test_a_description_that_is_no_json_is_refused(text: str, tmp_path: Path):
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(ValueError, match=r"checkpoint\.json"):
        mp.load_checkpoint(tmp_path)


NAMES = ["checkpoint.json", *(f"{n}.safetensors" for n in ("weights", "optimizer", "carry", "environment"))]


ARRAYS = NAMES[1:]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_bit_that_flipped_is_told_with_the_file_and_changes_nothing(name: str, tmp_path: Path):
    with mp.use_backend("torch"):
        saved(tmp_path / "a")
        checkpoint = mp.load_checkpoint(tmp_path / "a")
        sums = {file: hashlib.sha256((tmp_path / "a" / file).read_bytes()).hexdigest() for file in ARRAYS}
        assert checkpoint.manifest.sha256 == sums
        content = bytearray((tmp_path / "a" / name).read_bytes())
        content[-1] ^= 1
        (tmp_path / "a" / name).write_bytes(content)
        network = table_net(1)
        before = mp.to_portable(network)
        with pytest.raises(DamagedCheckpointError, match=rf"{name} is damaged.*SHA-256") as caught:
            checkpoint.restore(network)
        assert "\n" not in str(caught.value)
        with pytest.raises(DamagedCheckpointError, match=name):
            checkpoint.arrays()
        if name == "weights.safetensors":
            with pytest.raises(DamagedCheckpointError, match=name):
                checkpoint.restore_weights(network)
            with pytest.raises(DamagedCheckpointError, match=name):
                checkpoint.weights()
        support.assert_trees_close(mp.to_portable(network), before, 0.0)


def test_a_checkpoint_without_sums_is_read_as_before(tmp_path: Path):
    with mp.use_backend("torch"):
        saved(tmp_path / "a")
        path = tmp_path / "a/checkpoint.json"
        manifest = json.loads(path.read_text())
        for sums in ({}, {"sha256": None}):
            path.write_text(json.dumps({name: value for name, value in manifest.items() if name != "sha256"} | sums))
            assert mp.load_checkpoint(tmp_path / "a", table_net(1), env=clock()).step == 32
