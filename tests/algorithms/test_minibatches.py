"""Minibatches: their order, and how long their sequences are."""

import numpy as np
import pytest

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.minibatches import (
    choose_sequence_length,
    minibatch_indices,
)

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def test_epochs_and_keys_shuffle_differently(engine):
    config = PPOConfig(num_envs=4, rollout_length=8, num_minibatches=2, num_epochs=3)

    def orders(seed: int) -> np.ndarray:
        index = minibatch_indices(engine.random, engine.xp, engine.random.key(seed), 32, config)
        return engine.to_numpy(index).reshape(3, 32)

    first, again, other = orders(0), orders(0), orders(1)
    np.testing.assert_array_equal(first, again)
    assert not (first == other).all()
    assert len({tuple(order) for order in first}) == 3
    assert all(sorted(order) == list(range(32)) for order in first)


@pytest.mark.parametrize(
    ("num_envs", "time", "minibatches", "expected"),
    [
        # 8 whole rollouts split in 4.
        (8, 128, 4, 128),
        # 6 do not; 12 halves do.
        (6, 128, 4, 64),
        # One environment, 2048 steps, 32 minibatches: 32 sequences of 64.
        (1, 2048, 32, 64),
        # 3 x 10 steps in 6: 30 / 6 = 5 steps each.
        (3, 10, 6, 5),
        (1, 7, 7, 1),
    ],
)
def test_the_default_is_the_longest_that_splits_evenly(num_envs, time, minibatches, expected):
    config = PPOConfig(num_envs=num_envs, rollout_length=time, num_minibatches=minibatches)
    assert choose_sequence_length(config, num_envs, memory=True) == expected
    assert choose_sequence_length(config, num_envs, memory=False) == 1
