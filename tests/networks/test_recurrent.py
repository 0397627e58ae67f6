"""LSTM: the equations, the carry, the initial weights, the errors."""

from __future__ import annotations

import numpy as np
import pytest
from support import gradients, to_numpy

import multippo as mp


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def equations(x, h, c, weights):
    """The docstring's, in NumPy."""
    z = x @ weights["input_kernel"] + h @ weights["recurrent_kernel"] + weights["bias"]
    i, f, g, o = np.split(z, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def random_weights(lstm, seed=0):
    rng = np.random.default_rng(seed)
    weights = {name: rng.normal(size=value.shape) for name, value in mp.to_portable(lstm).items()}
    mp.load_portable(lstm, weights)
    return weights


@pytest.mark.usefixtures("float64")
def test_one_step_is_the_equations(engine):
    lstm = mp.LSTM(3, 2, mp.Rngs(0))
    weights, rng = random_weights(lstm), np.random.default_rng(1)
    x, h, c = rng.normal(size=(4, 3)), rng.normal(size=(4, 2)), rng.normal(size=(4, 2))
    out = lstm({"h": engine.asarray(h), "c": engine.asarray(c)}, engine.asarray(x))
    h, c = equations(x, h, c, weights)
    np.testing.assert_allclose(to_numpy(out.output), h, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.next_state["h"]), h, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.next_state["c"]), c, rtol=1e-12)


def test_the_order_of_the_gates_by_hand(engine):
    lstm = mp.LSTM(1, 1, mp.Rngs(0))
    # Input and output gate open, forget gate shut: c' = tanh(g), whatever c; h' = tanh(c').
    bias = np.asarray([50.0, -50.0, 0.5, 50.0])
    mp.load_portable(lstm, {"input_kernel": np.zeros((1, 4)), "recurrent_kernel": np.zeros((1, 4)), "bias": bias})
    state = {"h": engine.zeros((1, 1)) + 3, "c": engine.zeros((1, 1)) + 7}
    out = lstm(state, engine.zeros((1, 1)))
    np.testing.assert_allclose(to_numpy(out.next_state["c"]), np.tanh(0.5), rtol=1e-6)
    np.testing.assert_allclose(to_numpy(out.output), np.tanh(np.tanh(0.5)), rtol=1e-6)


@pytest.mark.usefixtures("float64")
def test_unroll_is_the_equations_with_resets(engine):
    lstm = mp.LSTM(3, 2, mp.Rngs(0), trainable_initial_state=True)
    weights, rng = random_weights(lstm), np.random.default_rng(1)
    xs, done = rng.normal(size=(5, 2, 3)), np.asarray([[0, 1], [1, 0], [1, 0], [0, 0], [0, 1]], bool)
    h, c = rng.normal(size=(2, 2)), rng.normal(size=(2, 2))
    out = lstm.unroll({"h": engine.asarray(h), "c": engine.asarray(c)}, engine.asarray(xs), engine.asarray(done))
    for t in range(5):
        h, c = equations(xs[t], h, c, weights)
        np.testing.assert_allclose(to_numpy(out.output)[t], h, rtol=1e-11, err_msg=str(t))
        h = np.where(done[t][:, None], weights["initial_h"], h)
        c = np.where(done[t][:, None], weights["initial_c"], c)
    np.testing.assert_allclose(to_numpy(out.next_state["h"]), h, rtol=1e-11)
    np.testing.assert_allclose(to_numpy(out.next_state["c"]), c, rtol=1e-11)


def test_an_episode_starts_from_zeros_or_from_what_was_learnt(engine):
    plain, learnt = mp.LSTM(1, 2, mp.Rngs(0)), mp.LSTM(1, 2, mp.Rngs(0), trainable_initial_state=True)
    learnt.initial_h[...] = engine.zeros((2,)) + 3
    assert not to_numpy(plain.initialize_state(4)["h"]).any()
    assert to_numpy(learnt.initialize_state(4)["h"]).tolist() == [[3.0, 3.0]] * 4
    anything = {"h": engine.zeros((4, 2)) + 9, "c": engine.zeros((4, 2)) + 9}
    assert not to_numpy(plain.reset_state(anything)["h"]).any()
    assert to_numpy(learnt.reset_state(anything)["h"]).tolist() == [[3.0, 3.0]] * 4
    assert not to_numpy(learnt.reset_state(anything)["c"]).any()


def test_the_initial_state_learns_from_episodes_that_start_inside(engine):
    lstm = mp.LSTM(1, 2, mp.Rngs(0), trainable_initial_state=True)
    xs, state = engine.zeros((3, 1, 1)) + 1, {"h": engine.zeros((1, 2)), "c": engine.zeros((1, 2))}
    for ends, learns in (([0, 0, 0], False), ([0, 1, 0], True)):
        done = engine.asarray(np.asarray(ends, bool)[:, None])
        grads = gradients(lstm, lambda net, done=done: net.xp.sum(net.unroll(state, xs, done).output))
        assert grads["initial_h"].any() == grads["initial_c"].any() == learns


def test_initial_weights(engine):
    weights = mp.to_portable(mp.LSTM(50, 8, mp.Rngs(0), forget_bias=2.0))
    # Gates i, f, g, o of 8 units: the forget gate's bias alone is not 0.
    assert weights["bias"].tolist() == [0.0] * 8 + [2.0] * 8 + [0.0] * 16
    for gate in np.split(weights["recurrent_kernel"].astype(np.float64), 4, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(8), atol=1e-6)
    # 1,600 draws of variance 1/50, within 4 sqrt(2 / 1600) = 14 %.
    assert abs(weights["input_kernel"].var() * 50 - 1) < 0.15


@pytest.mark.parametrize("size", [0, 1.5, None])
def test_an_impossible_size_is_refused(engine, size):
    with pytest.raises(ValueError, match=r"LSTM\(hidden_features=.*expected an integer of at least 1"):
        mp.LSTM(1, size, mp.Rngs(0))


def test_a_wrong_input_is_refused(engine):
    lstm = mp.LSTM(2, 3, mp.Rngs(0))
    state, done = lstm.initialize_state(4), engine.asarray(np.zeros((5, 4), bool))
    with pytest.raises(ValueError, match=r"LSTM got an input of shape \(4, 3\); expected 2 features"):
        lstm(state, engine.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"LSTM got an input of shape \(5, 4, 3\)"):
        lstm.unroll(state, engine.zeros((5, 4, 3)), done)
    with pytest.raises(TypeError, match="LSTM got a tuple of"):
        lstm(state, (1, 2))
