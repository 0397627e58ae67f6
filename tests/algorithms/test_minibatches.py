"""From a rollout to minibatches: every step used once an epoch, from the carry it had."""

from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.minibatches import (
    choose_sequence_length,
    make_sequences,
    minibatch_indices,
)
from multippo.algorithms.types import Transition
from multippo.trees import tree_map

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def ids(time: int, batch: int) -> np.ndarray:
    """A number for each (t, env), [T, B]: 1000 env + t."""
    return 1000 * np.arange(batch)[None, :] + np.arange(time)[:, None]


def make_transition(engine: Any, time: int, batch: int, valid: Any = None, done: Any = None) -> Transition:
    put = engine.asarray
    number = ids(time, batch).astype(np.float32)
    flags = np.zeros((time, batch), bool)
    valid = ~flags if valid is None else valid
    done = flags if done is None else done
    return Transition(
        obs={"image": put(np.stack([number, -number], axis=-1))},
        network_output=mp.PPONetworkOutput(put(number), put(number), put(number)),
        rewards=put(number),
        terminated=put(done),
        truncated=put(flags),
        done=put(done),
        valid=put(valid),
        metrics={},
        rollout_extras=put(number),
        bootstrap_values=put(number),
    )


def cut(engine: Any, time: int, batch: int, length: int, **flags: Any) -> Any:
    """Sequences whose every field is the id of its (t, env); the carry is the id of the sequence's first step."""
    transition = make_transition(engine, time, batch, **flags)
    starts = {"h": engine.asarray(ids(time, batch)[::length].astype(np.float32)[..., None])}
    number = transition.rewards
    return make_sequences(engine.xp, transition, starts, number, number, length, "valid" in flags)


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


def test_invalid_steps_come_last_and_hold_nothing(engine):
    # One environment, two sequences of 3: steps 1 and 3 are none.
    valid = np.asarray([[True], [False], [True], [False], [True], [True]])
    done = np.asarray([[True], [False], [True], [False], [False], [True]])
    sequences = tree_map(engine.to_numpy, cut(engine, 6, 1, 3, valid=valid, done=done))
    np.testing.assert_array_equal(sequences.valid.T, [[True, True, False], [True, True, False]])
    np.testing.assert_array_equal(sequences.done.T, [[True, True, False], [False, True, False]])
    assert sequences.advantages[:2].T.tolist() == [[0, 2], [4, 5]]
    assert sequences.obs["image"][:2, :, 0].T.tolist() == [[0, 2], [4, 5]]
    # The carries are those before steps 0 and 3.
    assert sequences.network_state["h"].ravel().tolist() == [0, 3]
    # A broken step is seen by the network, and counts for nothing.
    broken = make_transition(engine, 6, 1, valid=valid)._replace(broken=engine.asarray(np.eye(6, 1, dtype=np.int32)))
    number = broken.rewards
    sequences = make_sequences(engine.xp, broken, {"h": engine.zeros((2, 1, 1))}, number, number, 3, True)
    np.testing.assert_array_equal(engine.to_numpy(sequences.valid).T, [[False, True, False], [True, True, False]])
    assert engine.to_numpy(sequences.obs["image"])[:2, 0, 0].tolist() == [0, 2]


# -- the length


@pytest.mark.parametrize(
    ("num_envs", "time", "minibatches", "expected"),
    [
        # 8 whole rollouts split in 4.
        (8, 128, 4, 128),
        # 6 do not; 12 halves do.
        (6, 128, 4, 64),
        # 2 in 4: halves.
        (2, 128, 4, 64),
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
