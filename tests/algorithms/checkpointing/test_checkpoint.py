"""A checkpoint holds all of a run, on either engine; a damaged or unfitting one is refused by name."""

import dataclasses
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import support
import training
from checkpoints import clock, saved, state_of, table_net
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
        (lambda m: m.update(backend="b" * 500_000, step="x" * 500_000), "step is .*…; expected an integer"),
        (lambda m: m.update(extra={"deep": "DEEP"}), "nested more than 100 deep"),
        (lambda m: m.update(format="something"), "not describe a checkpoint"),
        (lambda m: m.update(iteration=2**40), "iteration is 1099511627776"),
        (lambda m: m.update(optimizer_count=2**32 + 5), "optimizer_count is 4294967301"),
        (lambda m: m.update(learning_rate=float("nan")), "nan is not a number that JSON has"),
        (lambda m: m.update(eval_return="good"), "eval_return is 'good'"),
        (lambda m: m["sha256"].pop("environment.safetensors"), r"sha256 says nothing of environment\.safetensors"),
        (lambda m: m.update(episodes={"os.system": {"reward": "array"}}), "damaged.*does not describe"),
    ],
)
def test_a_description_that_is_wrong_is_refused_in_one_line(change: Any, message: str, path: Path):
    file = path / "checkpoint.json"
    manifest = json.loads(file.read_text())
    change(manifest)
    file.write_text(json.dumps(manifest).replace('"DEEP"', "[" * 2000 + "]" * 2000))
    with pytest.raises(ValueError, match=message) as caught:
        mp.load_checkpoint(path, table_net())
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.parametrize("text", ["", "[1]", "{", '{"step": 1, "step": 2}', "[" * 100_000])
def test_a_description_that_is_no_json_is_refused(text: str, tmp_path: Path):
    (tmp_path / "checkpoint.json").write_text(text)
    with pytest.raises(ValueError, match=r"checkpoint\.json"):
        mp.load_checkpoint(tmp_path)


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


def test_a_checkpoint_without_sums_is_read_as_before(path: Path):
    manifest = json.loads((path / "checkpoint.json").read_text())
    del manifest["sha256"]
    (path / "checkpoint.json").write_text(json.dumps(manifest))
    assert mp.load_checkpoint(path, table_net(1), env=clock()).step == 32


# -- writing


@pytest.mark.nightly_if("jax")
def test_saving_does_not_write_to_the_network_even_for_a_moment(engine, tmp_path: Path):
    network = mp.Sequential([mp.Normalizer(4), TableNet([0.5] * 4)])
    run = training.train(Clock(3, "truncated", 4), network, iterations=2, config={"checkpoint_every_steps": 16})
    before = mp.to_portable(network)
    holders = {name: leaf.holder for name, leaf in engine.leaves(network).items()}

    def mark() -> list[Any]:
        if engine.name == "torch":
            return [holder._version for holder in holders.values()]
        return [id(holder.get_value()) for holder in holders.values()]

    marks = mark()
    first, last = run.checkpoints[0][0], run.checkpoints[-1][0]
    for state, name in ((first, "first"), (last, "last")):
        mp.save_checkpoint(tmp_path / name, state, network)
    assert mark() == marks
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


class LowCarry(TableNet):
    """Carries numbers of bfloat16, one of each environment."""

    def initialize_state(self, batch_size: int) -> Any:
        low = self.xp.astype(self.engine.zeros((batch_size, 1)) + 0.1, self.xp.bfloat16)
        return {**super().initialize_state(batch_size), "low": low}


def test_a_carry_of_bfloat16_survives(engine: Any, tmp_path: Path):
    network = LowCarry([0.5, 0.25, 0.0, -0.5])
    state = saved(tmp_path / "a", network)
    stored = mp.load_checkpoint(tmp_path / "a").arrays()["carry"]["network_state['low']"]
    assert stored.dtype == np.float32
    # 0.1 is 1.6 / 16, and 1.6 to seven binary places is 205/128.
    np.testing.assert_array_equal(stored, np.full((4, 1), 205 / 128 / 16))
    restored = mp.load_checkpoint(tmp_path / "a", LowCarry([0.0] * 4)).network_state["low"]
    assert restored.dtype == state.network_state["low"].dtype == network.xp.bfloat16
    assert bool((restored == state.network_state["low"]).all())


NOT_JSON = [{"x": float("nan")}, {"x": "y" * 2**25}, {1: "a", "1": "b"}]


@pytest.mark.parametrize("extra", NOT_JSON)
def test_what_json_can_not_hold_is_refused_before_anything_is_written(extra: dict[str, Any], tmp_path: Path):
    with mp.use_backend("torch"), pytest.raises(TypeError, match="extra"):
        saved(tmp_path / "a", extra=extra)
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_are_swapped_are_named(torch_engine: Any, tmp_path: Path):
    env, network = clock(), table_net()
    state = state_of(network, env)
    with pytest.raises(TypeError, match="got a TableNet as training_state; expected what"):
        mp.save_checkpoint(tmp_path / "a", network, network)
    with pytest.raises(TypeError, match=r"save_checkpoint got a TrainingState as its network; expected a Stateful"):
        mp.save_checkpoint(tmp_path / "a", state, state)
    assert list(tmp_path.iterdir()) == []
    mp.save_checkpoint(tmp_path / "a", state, network)
    with pytest.raises(TypeError, match=r"load_checkpoint got a FunctionalEnv"):
        mp.load_checkpoint(tmp_path / "a", env)
    with pytest.raises(TypeError, match=r"got a NoneType as its path.*CheckpointFolder.latest\(\) is None before"):
        mp.load_checkpoint(mp.CheckpointFolder(tmp_path / "new", network).latest(), network)


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


class Foreign(NamedTuple):
    x: Any


@pytest.mark.parametrize("scale", [[Foreign(OUTLINE)], {1: OUTLINE}, 1.0])
def test_other_nodes_are_refused(scale: Any):
    with pytest.raises(TypeError, match="can't be described"):
        describe(EpisodeState(1.0, 2.0, scale))


SCALE = dict.fromkeys(("discounted", "count", "mean", "m2"), "array")


@pytest.mark.parametrize(
    "description",
    [
        "array",
        {"subprocess.Popen": ["array"]},
        {"EpisodeState": {"__class__": "array"}},
        {"RewardScale": SCALE},
        {"EpisodeState": {"reward": {"list": ["array"]}, "length": "array"}},
        {"EpisodeState": {"reward": "array", "length": "array", "scale": {"RewardScale": {**SCALE, "m2": None}}}},
    ],
)
def test_what_does_not_describe_the_sums_of_episodes_is_refused(description: Any):
    with pytest.raises(ValueError, match="describe"):
        rebuild(description)
