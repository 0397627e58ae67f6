"""Dropout: the mask and its scale, replay, noise drawn ahead, ``eval``."""

import numpy as np
import pytest
from gymnasium import spaces
from support import assert_trees_close, to_numpy
from training import assert_everything_learns

import multippo as mp
from multippo.random import host

T, B = 5, 3
DONE = np.asarray([[1, 0, 1], [0, 0, 1], [0, 1, 1], [0, 0, 1], [1, 0, 1]], bool)


def inputs(engine):
    return engine.asarray(1.0 + np.random.default_rng(0).random((T, B, 2, 3)).astype(np.float32))


def test_the_mask_is_drawn_from_the_key_of_the_environment_and_step(engine):
    layer = mp.Dropout(0.4, mp.Rngs(3))
    key, state, xs = mp.Rngs(3).key(), layer.initialize_state(B), inputs(engine)
    for t in range(3):
        out = layer(state, xs[t])
        state = out.next_state
        uniform = host.uniform(host.fold_in(host.split(key, B), np.full(B, t, np.uint32)), (6,)).astype(np.float32)
        expected = np.where(uniform.reshape(B, 2, 3) >= 0.4, to_numpy(xs[t]) / 0.6, 0.0)
        np.testing.assert_allclose(to_numpy(out.output), expected, rtol=1e-6)
        assert to_numpy(out.rollout_extras).tolist() == (uniform >= 0.4).tolist()


def test_eval_switches_it_off_and_train_on(engine):
    net = mp.Sequential([mp.Dropout(0.5, mp.Rngs(0))])
    xs, done, state = inputs(engine), engine.asarray(DONE), net.initialize_state(B)
    stored = net.unroll(state, xs, done)
    net.eval()
    for extras in (None, stored.rollout_extras):
        out = net.unroll(state, xs, done, extras)
        assert_trees_close(out.output, xs, 0.0)
        assert_trees_close(out.next_state, stored.next_state, 0.0)
    assert to_numpy(net.unroll(state, xs, done).rollout_extras[0]).all()
    assert_trees_close(net(state, xs[0]).output, xs[0], 0.0)
    net.train()
    assert_trees_close(net.unroll(state, xs, done).output, stored.output, 0.0)


def test_a_rate_of_zero_drops_nothing_and_whole_numbers_are_taken(engine):
    layer = mp.Dropout(0, mp.Rngs(0))
    x = engine.asarray(np.arange(6, dtype=np.int32).reshape(1, 6))
    assert to_numpy(layer(layer.initialize_state(1), x).output).tolist() == [[0.0, 1.0, 2.0, 3.0, 4.0, 5.0]]


@pytest.mark.nightly_if("jax")
def test_a_network_with_dropout_and_a_gru_trains(engine):
    observation, action = spaces.Box(-1.0, 1.0, (3,)), spaces.Discrete(2)
    rngs = mp.Rngs(0)
    trunk = [mp.Dense(3, 4, rngs), mp.Residual(mp.Sequential([mp.LayerNorm(4), mp.Dropout(0.3, rngs)]))]
    actor = mp.Sequential([mp.GRU(4, 4, rngs), mp.Dense(4, 2, rngs), mp.CategoricalSampler(rngs)])
    critic = mp.Sequential([mp.RNN(4, 4, rngs, time_constant=2.0, trainable_time_constant=True), mp.Dense(4, 1, rngs)])
    network = mp.Sequential([*trunk, mp.PPOAdapter(action=actor, value=critic)])
    # The ratio of the first minibatch is 1: replay dropped what the rollout dropped.
    assert_everything_learns(network, observation, action, entropy_weight=0.01)
