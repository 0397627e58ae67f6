"""A checkpoint holds all of a run, on either engine; a damaged or unfitting one is refused by name."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from checkpoints import saved, state_of, table_net
from safetensors.numpy import load_file, save_file

import multippo as mp
from multippo.algorithms.checkpointing.checkpoint import Checkpoint, describe, leaves_by_path, rebuild
from multippo.algorithms.checkpointing.manifest import latest_checkpoint, step_directory
from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState
from multippo.errors import DamagedCheckpointError
from multippo.testing import Clock, TableNet


@pytest.fixture
def path(torch_engine: Any, tmp_path: Path) -> Path:
    """A checkpoint on torch."""
    saved(tmp_path / "a")
    return tmp_path / "a"


def rewrite(path: Path, **fields: Any) -> None:
    """Changes the description of a checkpoint."""
    file = path / "checkpoint.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


def test_moments_that_an_earlier_version_left_out_are_zeros_if_the_parameter_is_frozen(path: Path):
    rewrite(path, sha256=None)
    file = path / "optimizer.safetensors"
    save_file({name: value for name, value in load_file(file).items() if "/values" not in name}, file)
    with pytest.raises(ValueError, match="moments missing in it: first/values, second/values"):
        mp.load_checkpoint(path, table_net())
    network = table_net()
    network.values.requires_grad_(False)
    first, second, _ = training.portable_moments(network, mp.load_checkpoint(path, network))
    assert not first["values"].any() and not second["values"].any()
    assert first["logits"].any() and second["logits"].any()


def test_a_host_environment_takes_no_state(path: Path):
    with pytest.raises(ValueError, match="host environment"):
        mp.load_checkpoint(path, table_net(), env=Clock(3, num_envs=4))


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
        (lambda m: m.update(format_version=0), "format_version is 0"),
        (lambda m: m.update(format="something"), "not describe a checkpoint"),
        (lambda m: m.update(eval_return="good"), "eval_return is 'good'"),
        (lambda m: m["sha256"].pop("environment.safetensors"), r"sha256 says nothing of environment\.safetensors"),
        (lambda m: m.update(episodes={"os.system": {"reward": "array"}}), "damaged.*does not describe"),
    ],
)
def test_a_description_that_is_wrong_is_refused_in_one_line(change: Any, message: str, path: Path):
    file = path / "checkpoint.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest))
    with pytest.raises(ValueError, match=message) as caught:
        mp.load_checkpoint(path, table_net())
    assert "\n" not in str(caught.value)


ARRAYS = [f"{name}.safetensors" for name in ("weights", "optimizer", "carry", "environment")]


@pytest.mark.parametrize("name", ARRAYS)
def test_a_bit_that_flipped_is_told_with_the_file_and_changes_nothing(name: str, path: Path):
    checkpoint = mp.load_checkpoint(path)
    sums = {file: hashlib.sha256((path / file).read_bytes()).hexdigest() for file in ARRAYS}
    assert checkpoint.manifest.sha256 == sums
    content = bytearray((path / name).read_bytes())
    content[-1] ^= 1
    (path / name).write_bytes(content)
    network = table_net(1)
    before = mp.to_portable(network)
    with pytest.raises(DamagedCheckpointError, match=rf"{name} is damaged.*SHA-256") as caught:
        checkpoint.restore(network)
    assert "\n" not in str(caught.value)
    with pytest.raises(DamagedCheckpointError, match=name):
        checkpoint.arrays()
    support.assert_trees_close(mp.to_portable(network), before, 0.0)


# -- writing


@pytest.mark.nightly_if("jax")
def test_what_is_saved_is_the_state_and_the_network_stays(engine, tmp_path: Path):
    network = mp.Sequential([mp.Normalizer(4), TableNet([0.5] * 4)])
    run = training.train(
        Clock(3, "truncated", num_envs=4), network, iterations=2, config={"checkpoint_every_steps": 16}
    )
    before = mp.to_portable(network)
    first, last = run.checkpoints[0][0], run.checkpoints[-1][0]
    for state, name in ((first, "first"), (last, "last")):
        mp.save_checkpoint(tmp_path / name, state, network)
    support.assert_trees_close(mp.to_portable(network), before, 0.0)
    weights = {name: mp.load_checkpoint(tmp_path / name).weights() for name in ("first", "last")}
    support.assert_trees_close(weights["last"], before, 0.0)
    assert np.abs(weights["first"]["layers.1.values"] - before["layers.1.values"]).max() > 0


# -- what is stored


def test_looking_into_a_checkpoint_needs_no_network(engine: Any, tmp_path: Path):
    config = mp.TrainConfig(seed=7)
    saved(tmp_path / "a", config=config, extra={"note": "first", "sizes": [1, 2]})
    checkpoint = mp.load_checkpoint(tmp_path / "a")
    assert isinstance(checkpoint, Checkpoint)
    manifest = checkpoint.manifest
    assert (manifest.step, manifest.iteration, manifest.backend) == (32, 2, engine.name)
    assert manifest.config is not None
    assert (manifest.config["seed"], manifest.config["ppo"]["total_steps"]) == (7, 50_000)
    assert manifest.extra == {"note": "first", "sizes": [1, 2]}
    assert set(checkpoint.weights()) == {"logits", "sampler.base_key", "values"}


class Mixed(TableNet):
    """Holds a statistic of every kind."""

    def __init__(self, rngs: Any = None, low: Any = None) -> None:
        super().__init__([0.5, 0.25, 0.0, -0.5], rngs=rngs)
        self.flag = mp.Variable(np.array(True))
        self.number = mp.Variable(np.array(7, np.int32))
        self.words = mp.Variable(np.array([1, 2**32 - 1], np.uint32))
        self.transposed = mp.Param(np.arange(6.0).reshape(2, 3).T)
        self.empty = mp.Param(np.zeros((0, 3)))
        if low is not None:
            self.low = mp.Variable(low)


def test_arrays_of_every_kind_survive(engine: Any, tmp_path: Path):
    low = None
    if engine.name == "jax":
        import jax.numpy as jnp

        low = jnp.array([0.1, 3e38], jnp.bfloat16)
    network = Mixed(low=low)
    saved(tmp_path / "a", network)
    other = Mixed(mp.Rngs(9), None if low is None else low * 0)
    other.flag[...], other.number[...] = False, 0
    mp.load_checkpoint(tmp_path / "a", other)
    got, expected = mp.to_portable(other), mp.to_portable(network)
    for name, value in expected.items():
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(got[name], value, name)
    assert expected["words"].tolist() == [1, 2**32 - 1]
    assert mp.load_checkpoint(tmp_path / "a").weights()["flag"].shape == ()


# -- where it is written


def test_nothing_but_a_checkpoint_is_replaced(tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/thesis.tex").write_text("mine")
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    with mp.use_backend("torch"):
        for name in ("file", "folder", "link"):
            with pytest.raises(FileExistsError, match=name):
                saved(tmp_path / name)
    assert (tmp_path / "folder/thesis.tex").read_text() == "mine"


# -- finding it


def test_the_latest_is_the_highest_step_that_is_complete(tmp_path: Path):
    with mp.use_backend("torch"):
        saved(tmp_path / "checkpoints/step_9")
        shutil.copytree(tmp_path / "checkpoints/step_9", tmp_path / "checkpoints/step_000000000010")
        (tmp_path / "checkpoints/step_11").mkdir()  # torn: it has no description
        (tmp_path / "checkpoints/step_12").symlink_to("step_9")
        (tmp_path / "checkpoints/step_x").mkdir()
        ten = tmp_path / "checkpoints/step_000000000010"
        assert latest_checkpoint(tmp_path / "checkpoints") == ten
        for place in (tmp_path, tmp_path / "checkpoints", ten):
            assert mp.load_checkpoint(place).path == ten
    assert step_directory(tmp_path, 10).name == ten.name
    assert latest_checkpoint(tmp_path / "nowhere") is None


def test_where_there_is_none_the_error_says_so(tmp_path: Path):
    with pytest.raises(FileNotFoundError, match="There is no checkpoint in"):
        mp.load_checkpoint(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        mp.load_checkpoint(tmp_path)


OUTLINE, NUMBERS = RewardScale(*["array"] * 4), RewardScale(3.0, 4.0, 5.0, 6.0)
TREE = EpisodeState(reward=1.0, length=2.0, scale={"goal": NUMBERS, "rest": [(NUMBERS, None), [], {}]})


def test_a_tree_is_rebuilt():
    arrays = leaves_by_path(TREE, "e")
    assert arrays["e.scale['goal'].m2"] == 6.0
    rebuilt = rebuild(describe(TREE))
    assert rebuilt == EpisodeState("array", "array", {"goal": OUTLINE, "rest": [(OUTLINE, None), [], {}]})
    assert list(leaves_by_path(rebuilt, "e")) == list(arrays)
    assert type(rebuilt.scale["goal"]) is RewardScale


def test_a_field_that_was_added_later_gets_its_default():
    description = describe(EpisodeState(1.0, 2.0))
    del description["EpisodeState"]["scale"]
    assert rebuild(description) == EpisodeState("array", "array", None)


SCALE = dict.fromkeys(("discounted", "count", "mean", "m2"), "array")


@pytest.mark.parametrize(
    "description",
    [
        "array",
        {"EpisodeState": {"__class__": "array"}},
        {"EpisodeState": {"reward": "array", "length": "array", "scale": {"RewardScale": {**SCALE, "m2": None}}}},
    ],
)
def test_what_does_not_describe_the_sums_of_episodes_is_refused(description: Any):
    with pytest.raises(ValueError, match="describe"):
        rebuild(description)
