"""Minibatches: their order, how long their sequences are, and the replay of these in pieces."""

from typing import Any

import numpy as np
import pytest
import support
import zoo

import multippo as mp
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.minibatches import choose_sequence_length, minibatch_indices, unroll_sequences
from multippo.algorithms.types import Sequences


# Conformance and the cases have JAX by day.
@pytest.mark.nightly_if("jax")
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


@pytest.mark.nightly_if("jax")
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


# -- in pieces


def with_memory() -> Any:
    rngs = mp.Rngs(0)
    cells = [mp.Delay(np.zeros(4, np.float32), 2), mp.Dropout(0.3, rngs), mp.LSTM(4, 5, rngs), mp.GRU(5, 4, rngs)]
    return mp.Sequential([*cells, mp.NormalTanhSampler(rngs, 0.1)])  # an entropy that is estimated from noise


def replayed(network: Any, xs: Any, done: Any, extras: Any, remat_steps: int | None) -> Any:
    """Outputs of training sequences, and the gradients of their loss."""
    xp = network.xp

    def run(network: Any) -> Any:
        state = network.initialize_state(done.shape[1])
        sequences = Sequences(state, xs, done, done, extras, None, None, None, None)
        out = unroll_sequences(network, sequences, remat_steps)
        # One number stands for the loss of every step, where pieces have one each.
        each = out.regularization_loss + xp.zeros(done.shape, dtype=network.engine.float_dtype)
        return out._replace(rollout_extras=None, regularization_loss=each)

    def loss(network: Any) -> Any:
        out = run(network)
        return support.total(xp, (out.output, out.regularization_loss, network.engine.stop_gradient(out.metrics)))

    return support.to_numpy(support.compiled(network, run)()), support.gradients(network, loss)


@pytest.mark.parametrize("make", [with_memory, pytest.param(zoo.feed_forward, marks=pytest.mark.nightly)])
@pytest.mark.nightly_if("jax")
def test_a_replay_in_pieces_is_that_of_the_whole(engine: Any, float64: None, make: Any):
    network = make()
    support.fill_randomly(network)
    xs = engine.asarray(zoo.inputs())
    done = engine.asarray(np.random.default_rng(0).random((zoo.TIME, zoo.BATCH)) < 0.3)
    extras = network.unroll(network.initialize_state(zoo.BATCH), xs, done).rollout_extras
    expected = replayed(network, xs, done, extras, None)
    for remat_steps in (1, 3) if engine.name == "torch" else (3,):
        support.assert_trees_close(replayed(network, xs, done, extras, remat_steps), expected, 1e-12)


def test_one_number_of_a_piece_is_that_of_each_of_its_steps():
    with mp.use_backend("numpy") as engine:
        xs, done = engine.asarray([[1.0], [3.0], [5.0]]), engine.asarray(np.zeros((3, 1), bool))
        sequences = Sequences((), xs, done, done, None, None, None, None, None)
        out = unroll_sequences(Averaged(), sequences, 2)
    assert out.regularization_loss.tolist() == [[0.5]] * 3
    assert out.metrics["mean"].tolist() == [[2.0], [2.0], [5.0]]


class Averaged(mp.StatefulModule):
    """Reports the mean of its inputs."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, x, 0.5, {"mean": self.xp.mean(x)})
