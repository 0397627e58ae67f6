"""Generalised advantages, against numbers worked out by hand and against a plain loop."""

from typing import Any

import numpy as np
import pytest
import support
from probing import reference_advantages

from multippo.algorithms.advantages import generalized_advantages, standardized, standardized_tree

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def gae(engine: Any, discount: float, gae_lambda: float, **arrays: Any) -> tuple[np.ndarray, np.ndarray]:
    """Of arrays [T, B]."""
    values = {name: np.asarray(value) for name, value in arrays.items()}
    values = {name: value if value.dtype == bool else value.astype(np.float32) for name, value in values.items()}
    put = {name: engine.asarray(value) for name, value in values.items()}
    found = generalized_advantages(engine.xp, discount=discount, gae_lambda=gae_lambda, **put)
    return tuple(np.asarray(engine.to_numpy(x)) for x in found)


@pytest.mark.parametrize("time", [1, 2, 3, 7, 64])
def test_against_a_loop_with_random_ends_and_skips(engine, time):
    rng = np.random.default_rng(time)
    batch = 6
    ends = rng.uniform(size=(time, batch))
    # An environment's invalid step follows its end, as in gymnasium's NEXT_STEP; also one at the very first step.
    valid = np.ones((time, batch), bool)
    valid[1:] = ~(ends[:-1] < 0.3)
    valid[0, 0] = False
    case = {
        "r_t": rng.normal(size=(time, batch)),
        "v_t": rng.normal(size=(time, batch)),
        "v_last": rng.normal(size=batch),
        "v_bootstrap_t": rng.normal(size=(time, batch)),
        "terminated_t": (ends < 0.15) & valid,
        "truncated_t": (ends >= 0.15) & (ends < 0.3),  # a broken step too, which ends its episode and does not count
        "valid_t": valid,
    }
    ends = case["terminated_t"] + 2 * case["truncated_t"]
    expected = np.zeros((time, batch))
    for b in range(batch):
        steps = valid[:, b]
        columns = (case[name][steps, b] for name in ("r_t", "v_t", "v_bootstrap_t"))
        expected[steps, b] = reference_advantages(*columns, ends[steps, b], case["v_last"][b], 0.97, 0.9)
    advantages, returns = gae(engine, 0.97, 0.9, **case)
    np.testing.assert_allclose(advantages, expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(returns, expected + case["v_t"], rtol=1e-5, atol=1e-5)
    assert (advantages[~valid] == 0).all()


def test_what_does_not_count_may_hold_anything(engine):
    # The middle step is none; its NaN and the unused bootstrap's stay where they are.
    ends, numbers = [[True], [False], [True]], [[1.0], [np.nan], [1.0]]
    flags = {"terminated_t": ends, "truncated_t": np.zeros((3, 1), bool), "valid_t": ends}
    unused = {"v_last": [np.nan], "v_bootstrap_t": np.full((3, 1), np.nan)}
    advantages, _ = gae(engine, 0.9, 1.0, r_t=numbers, v_t=numbers, **unused, **flags)
    np.testing.assert_array_equal(advantages[:, 0], [0.0, 0.0, 0.0])


# -- scaling


def test_standardised_by_hand(engine):
    # Of those that count, 1, 3, 5: mean 3, population deviation sqrt(8 / 3).
    xp = engine.xp
    x = engine.asarray(np.asarray([1.0, 3.0, 1e9, 5.0], np.float32))
    counts = engine.asarray(np.asarray([True, True, False, True]))

    def mean(y: Any) -> Any:
        return xp.sum(xp.where(counts, y, xp.zeros_like(y))) / 3

    found = support.to_numpy(standardized(xp, x, mean))[[0, 1, 3]]
    np.testing.assert_allclose(found, np.asarray([-2.0, 0.0, 2.0]) / np.sqrt(8 / 3), rtol=1e-5)


@pytest.mark.parametrize(("combine", "parts"), [("sum", 1), ("mean", 2), ("separate", None)])
def test_a_tree_is_standardised_as_it_is_combined(engine, combine, parts):
    rng = np.random.default_rng(0)
    leaves = [rng.normal(3.0, 2.0, size=(4, 5)).astype(np.float32), rng.normal(size=(4, 5)).astype(np.float32)]
    found = standardized_tree(engine.xp, [engine.asarray(leaf) for leaf in leaves], engine.xp.mean, combine)
    found = [support.to_numpy(leaf) for leaf in found]
    if parts is None:
        for leaf, raw in zip(found, leaves, strict=True):
            np.testing.assert_allclose(leaf, (raw - raw.mean()) / raw.std(), rtol=1e-4, atol=1e-6)
    else:
        total = leaves[0] + leaves[1]
        np.testing.assert_allclose(sum(found) / parts, (total - total.mean()) / total.std(), rtol=1e-4, atol=1e-6)
