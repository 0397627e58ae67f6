"""Running moments stay right far from 0, after billions of samples, and for features that hardly move.

Seen in DLR-RM/stable-baselines3#1953, Physical-Intelligence/openpi#1051, huggingface/lerobot#239.
"""

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, TableNet


def feed(normalizer: Any, samples: np.ndarray, valid: Any = None) -> None:
    """One update of the statistics by ``[T, B, ...]`` samples in float32."""
    put = normalizer.engine.asarray
    normalizer.update_statistics(put(samples.astype(np.float32)), None if valid is None else put(valid))


def test_a_variance_of_1_around_10000(engine: Any):
    normalizer = mp.Normalizer(3)
    drawn = 1e4 + np.random.default_rng(0).normal(size=(20, 64, 8, 3))
    for rollout in drawn:
        feed(normalizer, rollout)
    np.testing.assert_allclose(support.to_numpy(normalizer.variance), 1.0, rtol=0.05)
    np.testing.assert_allclose(support.to_numpy(normalizer.mean[...]), 1e4, atol=0.1)
    assert normalizer.count == 20 * 64 * 8


# In words of base 2**30; and at 2**24, where a count in float32 stands still.
COUNTS = {2**31 - 1: [1, 2**30 - 1], 2**30 - 4: [0, 2**30 - 4], 2**24: [0, 2**24], 2**40: [2**10, 0]}


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_beyond_32_bits_goes_on(engine: Any, count: int):
    normalizer = mp.Normalizer(2)
    words = np.asarray(COUNTS[count], np.int32)
    state = {"mean": np.array([5.0, -1.0]), "M2": np.array([4.0, 0.25]) * count, "counter": words}
    mp.load_portable(normalizer, state)
    assert normalizer.count == count
    np.testing.assert_allclose(support.to_numpy(normalizer.variance), [4.0, 0.25], rtol=1e-5)
    feed(normalizer, np.random.default_rng(0).normal(size=(4, 2, 2)))
    assert normalizer.count == count + 8
    found = mp.to_portable(normalizer)
    for name, value in found.items():
        assert np.isfinite(value).all(), name
    # Eight samples among billions move nothing much.
    np.testing.assert_allclose(found["mean"], [5.0, -1.0], rtol=1e-4)
    np.testing.assert_allclose(support.to_numpy(normalizer.variance), [4.0, 0.25], rtol=1e-4)


@pytest.mark.parametrize("constant", [3.0, 1e4])
def test_a_feature_that_has_been_constant_is_bounded_when_it_moves(engine: Any, constant: float):
    normalizer = mp.Normalizer(1)
    for _ in range(3):
        feed(normalizer, np.full((16, 4, 1), constant))
    assert float(support.to_numpy(normalizer.variance)[0]) >= 0
    for x in (constant, constant + 1e-3, constant - 100.0):
        y = support.to_numpy(normalizer((), normalizer.engine.asarray(np.full((2, 1), x, np.float32))).output)
        assert np.isfinite(y).all()
        assert np.abs(y).max() <= 10.0  # the documented clip
    rest = support.to_numpy(normalizer((), normalizer.engine.asarray(np.full((2, 1), constant, np.float32))).output)
    np.testing.assert_allclose(rest, 0.0, atol=1e-3)


def test_a_step_counter_beyond_32_bits_goes_on(torch_engine: Any, tmp_path: Path):
    network = TableNet([0.0] * 4)
    run = training.train(Clock(3, num_envs=4), network, iterations=1)
    state = dataclasses.replace(run.state, step=2**53 + 1)
    mp.save_checkpoint(tmp_path / "a", state, network)
    state = mp.load_checkpoint(tmp_path / "a", network)
    assert state.step == 2**53 + 1
    rest = training.train(Clock(3, num_envs=4), network, iterations=2, initial_state=state)
    assert rest.result.total_steps == 2**53 + 17
