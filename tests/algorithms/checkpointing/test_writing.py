"""A checkpoint holds all of a run, on either engine."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from checkpoints import clock, saved, state_of, table_net

import multippo as mp
from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.checkpointing.steps import latest_checkpoint, step_directory
from multippo.testing import Clock, TableNet

# -- writing


@pytest.mark.nightly_if("jax")
def test_saving_does_not_write_to_the_network_even_for_a_moment(engine, tmp_path: Path):
    network = mp.Sequential([mp.Normalizer(4), TableNet([0.5] * 4)])
    run = training.train(
        Clock(3, "truncated", num_envs=4), network, iterations=2, config={"checkpoint_every_steps": 16}
    )
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
    # The network is only asked for names and layouts.
    other = mp.Sequential([mp.Normalizer(4), TableNet([0.25] * 4)])
    mp.save_checkpoint(tmp_path / "other", first, other)
    support.assert_trees_close(mp.load_checkpoint(tmp_path / "other").weights(), weights["first"], 0.0)


# -- resuming


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


NOT_JSON = [{"x": float("nan")}, {"x": object()}, {"x": "y" * 2**25}, {1: "a", "1": "b"}, {"x": [{True: 1, "true": 2}]}]


@pytest.mark.parametrize("extra", NOT_JSON)
def test_what_json_can_not_hold_is_refused_before_anything_is_written(extra: dict[str, Any], tmp_path: Path):
    with mp.use_backend("torch"), pytest.raises(TypeError, match="extra"):
        saved(tmp_path / "a", extra=extra)
    assert list(tmp_path.iterdir()) == []


def test_arguments_that_are_swapped_are_named(torch_engine: Any, tmp_path: Path):
    env, network = clock(), table_net()
    state = state_of(network, env)
    result = mp.TrainResult(training_state=state, final_metrics={}, eval_history=[], total_steps=32, total_iterations=2)
    for wrong in (network, result, None):
        with pytest.raises(TypeError, match=rf"got a {type(wrong).__name__} as training_state; expected what"):
            mp.save_checkpoint(tmp_path / "a", wrong, network)
    with pytest.raises(TypeError, match=r"save_checkpoint got a TrainingState as its network; expected a Stateful"):
        mp.save_checkpoint(tmp_path / "a", state, state)
    with pytest.raises(TypeError, match="got a NoneType as its path; expected a directory"):
        mp.save_checkpoint(None, state, network)
    assert list(tmp_path.iterdir()) == []
    mp.save_checkpoint(tmp_path / "a", state, network)
    with pytest.raises(TypeError, match=r"load_checkpoint got a FunctionalEnv"):
        mp.load_checkpoint(tmp_path / "a", env)
    with pytest.raises(TypeError, match=r"load_checkpoint\(env=...\) is a str"):
        mp.load_checkpoint(tmp_path / "a", network, env="brax/fast")
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
    with pytest.raises(FileNotFoundError, match="nothing is there"):
        mp.load_checkpoint(tmp_path / "a")
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        mp.load_checkpoint(tmp_path)
