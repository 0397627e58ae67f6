"""RNN: the equation with and without a leak, time constants, resets, gradients, the errors."""

from __future__ import annotations

import numpy as np
import pytest
from support import each_engine, fill_randomly, gradients, to_numpy, total

import multippo as mp
from multippo.networks.core.unrolling import step_unroll

DONE = np.asarray([[1, 1], [1, 0], [1, 0], [0, 0], [0, 1]], bool)
FUNCTIONS = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0.0), None: lambda z: z}


def equation(x, h, weights, tau=1.0, function=np.tanh):
    """The docstring's, in NumPy."""
    driven = function(x @ weights["input_kernel"] + h @ weights["recurrent_kernel"] + weights["bias"])
    return (1 - 1 / tau) * h + driven / tau


def arrays(engine, *shapes):
    rng = np.random.default_rng(1)
    host = [rng.normal(size=shape) for shape in shapes]
    return host, [engine.asarray(value) for value in host]


def weights_of(rnn):
    """Random weights, time constants left as they are."""
    leak = {name: value for name, value in mp.to_portable(rnn).items() if name == "leak_logit"}
    weights = fill_randomly(rnn)
    mp.load_portable(rnn, {**weights, **leak})
    return weights


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.usefixtures("float64")
def test_one_step_is_the_equation(engine, activation):
    (x, h), (own_x, own_h) = arrays(engine, (4, 3), (4, 2))
    for options, tau in (({}, 1.0), ({"time_constant": 2.5}, 2.5), ({"time_constant": (1.0, 4)}, np.asarray([1, 4]))):
        rnn = mp.RNN(3, 2, mp.Rngs(0), activation=activation, **options)
        weights = weights_of(rnn)
        out = rnn({"h": own_h}, own_x)
        expected = equation(x, h, weights, tau, FUNCTIONS[activation])
        np.testing.assert_allclose(to_numpy(out.output), expected, rtol=1e-12, atol=1e-15, err_msg=str(options))
        np.testing.assert_array_equal(to_numpy(out.next_state["h"]), to_numpy(out.output))
        np.testing.assert_allclose(to_numpy(rnn.time_constant), np.broadcast_to(tau, 2), rtol=1e-12)


def test_the_leak_by_hand(engine):
    rnn = mp.RNN(1, 1, mp.Rngs(0), activation="relu", time_constant=4.0)
    weights = {"input_kernel": np.full((1, 1), 2.0), "recurrent_kernel": np.full((1, 1), 0.5), "bias": np.full(1, -1.0)}
    mp.load_portable(rnn, {**mp.to_portable(rnn), **weights})
    # f = relu(2 * 3 + 0.5 * 6 - 1) = 8; h' = 3/4 * 6 + 1/4 * 8 = 6.5.
    out = rnn({"h": engine.zeros((1, 1)) + 6}, engine.zeros((1, 1)) + 3)
    np.testing.assert_allclose(to_numpy(out.output), [[6.5]], rtol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("learnt", [False, True])
def test_unroll_is_the_equation_with_resets(engine, learnt):
    options = {"trainable_initial_state": True, "trainable_time_constant": True} if learnt else {}
    tau = np.asarray([1.5, 7.0])
    rnn = mp.RNN(3, 2, mp.Rngs(0), time_constant=list(tau), **options)
    weights = weights_of(rnn)
    (xs, h), (own_xs, own_h) = arrays(engine, (5, 2, 3), (2, 2))
    out = rnn.unroll({"h": own_h}, own_xs, engine.asarray(DONE))
    for t in range(5):
        h = equation(xs[t], h, weights, tau)
        np.testing.assert_allclose(to_numpy(out.output)[t], h, rtol=1e-11, err_msg=str(t))
        h = np.where(DONE[t][:, None], weights["initial_h"] if learnt else 0.0, h)
    np.testing.assert_allclose(to_numpy(out.next_state["h"]), h, rtol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ended", [False, True])
def test_one_step_of_one_environment(engine, ended):
    rnn = mp.RNN(3, 2, mp.Rngs(0), time_constant=2.0)
    weights = weights_of(rnn)
    (xs, h), (own_xs, own_h) = arrays(engine, (1, 1, 3), (1, 2))
    out = rnn.unroll({"h": own_h}, own_xs, engine.asarray(np.asarray([[ended]])))
    expected = equation(xs[0], h, weights, 2.0)
    np.testing.assert_allclose(to_numpy(out.output)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.next_state["h"]), 0.0 if ended else expected, rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_gradient_is_that_of_the_steps(engine):
    rnn = mp.RNN(3, 2, mp.Rngs(0), time_constant=3.0, trainable_time_constant=True, trainable_initial_state=True)
    fill_randomly(rnn)
    _, (xs, h) = arrays(engine, (5, 2, 3), (2, 2))
    fast, slow = (
        gradients(
            rnn, lambda net, way=way: total(net.xp, tuple(way(net, {"h": h}, xs, engine.asarray(DONE), None)[:2]))
        )
        for way in (lambda net, *args: net.unroll(*args), step_unroll)
    )
    assert sorted(fast) == ["bias", "initial_h", "input_kernel", "leak_logit", "recurrent_kernel"]
    for name, grad in slow.items():
        assert grad.all(), name
        np.testing.assert_allclose(fast[name], grad, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.usefixtures("float64")
def test_the_gradient_of_a_time_constant_by_hand(engine):
    rnn = mp.RNN(1, 1, mp.Rngs(0), activation=None, time_constant=2.0, trainable_time_constant=True)
    weights = {"input_kernel": np.ones((1, 1)), "recurrent_kernel": np.zeros((1, 1)), "bias": np.zeros(1)}
    mp.load_portable(rnn, {**mp.to_portable(rnn), **weights})
    # h' = h + leak (x - h) with x = 5, h = 1: slope 4 by the leak, whose slope by its logit is 1/2 * 1/2.
    state, x = {"h": engine.zeros((1, 1)) + 1}, engine.zeros((1, 1)) + 5
    found = gradients(rnn, lambda net: net.xp.sum(net(state, x).output))
    np.testing.assert_allclose(found["leak_logit"], [1.0], rtol=1e-12)


def test_a_trained_time_constant_stays_above_one(engine):
    rnn = mp.RNN(1, 3, mp.Rngs(0), time_constant=[1.001, 2.0, 1000.0], trainable_time_constant=True)
    np.testing.assert_allclose(to_numpy(rnn.time_constant), [1.001, 2.0, 1000.0], rtol=1e-5)
    for step in (-5.0, 5.0):
        rnn.leak_logit[...] = rnn.leak_logit[...] + step
        assert (to_numpy(rnn.time_constant) >= 1.0).all()
        assert np.isfinite(to_numpy(rnn.time_constant)).all()


def test_what_is_trained(engine):
    def trained(**options):
        leaves = engine.leaves(mp.RNN(1, 2, mp.Rngs(0), **options))
        return {name for name, leaf in leaves.items() if leaf.trained}, set(leaves)

    plain = {"bias", "input_kernel", "recurrent_kernel"}
    assert trained() == (plain, plain)
    assert trained(time_constant=3.0) == (plain, plain | {"leak_logit"})
    both = plain | {"leak_logit", "initial_h"}
    assert trained(time_constant=3, trainable_time_constant=True, trainable_initial_state=True) == (both, both)


def test_an_episode_starts_from_zeros_or_from_what_was_learnt(engine):
    plain, learnt = mp.RNN(1, 2, mp.Rngs(0)), mp.RNN(1, 2, mp.Rngs(0), trainable_initial_state=True)
    learnt.initial_h[...] = engine.zeros((2,)) + 3
    assert to_numpy(plain.initialize_state(4)["h"]).tolist() == [[0.0, 0.0]] * 4
    assert to_numpy(learnt.reset_state({"h": engine.zeros((4, 2)) + 9})["h"]).tolist() == [[3.0, 3.0]] * 4
    assert to_numpy(plain.time_constant).tolist() == [1.0, 1.0]


def test_initial_weights_and_whole_numbers():
    found = each_engine(lambda: mp.to_portable(mp.RNN(40, 8, mp.Rngs(0), time_constant=2.0)))
    for name, value in found["jax"].items():
        np.testing.assert_array_equal(found["torch"][name], value)
    kernel = found["jax"]["recurrent_kernel"].astype(np.float64)
    np.testing.assert_allclose(kernel @ kernel.T, np.eye(8), atol=1e-6)
    assert not found["jax"]["bias"].any() and not found["jax"]["leak_logit"].any()  # logit(1/2)


def test_whole_numbers_are_taken_too(engine):
    rnn = mp.RNN(2, 1, mp.Rngs(0), activation=None)
    weights = {"input_kernel": np.asarray([[1.0], [0.5]]), "recurrent_kernel": np.ones((1, 1)), "bias": np.ones(1)}
    mp.load_portable(rnn, weights)
    x = engine.asarray(np.asarray([[3, 4]], np.uint8))
    assert to_numpy(rnn(rnn.initialize_state(1), x).output).tolist() == [[6.0]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"time_constant": 0.5}, r"RNN\(time_constant=0.5\) is not possible: expected numbers of steps of at least 1"),
        ({"time_constant": [2.0, 0.0]}, "of at least 1"),
        ({"time_constant": "2"}, r"RNN\(time_constant='2'\) is not possible: expected a number, or one for each of 2"),
        ({"time_constant": True}, r"RNN\(time_constant=True\) is not possible: expected a number"),
        ({"time_constant": [2.0, "3"]}, "expected a number, or one for each of 2"),
        ({"time_constant": float("nan")}, "of at least 1"),
        ({"time_constant": float("inf")}, "of at least 1"),
        ({"time_constant": [1.0, 2.0, 3.0]}, "expected a number, or one for each of 2 units"),
        ({"time_constant": "slow"}, "expected a number, or one for each of 2 units"),
        ({"time_constant": 1.0, "trainable_time_constant": True}, "above 1"),
        ({"trainable_time_constant": True}, "expected the first value"),
        ({"activation": "cubic"}, "Unknown activation 'cubic'"),
    ],
)
def test_impossible_options_are_refused(engine, options, message):
    with pytest.raises(ValueError, match=message):
        mp.RNN(1, 2, mp.Rngs(0), **options)


def test_what_is_wrong_is_refused(engine):
    with pytest.raises(ValueError, match=r"RNN\(in_features=0\) is not possible"):
        mp.RNN(0, 1, mp.Rngs(0))
    rnn = mp.RNN(2, 3, mp.Rngs(0))
    state, done = rnn.initialize_state(4), engine.asarray(np.zeros((5, 4), bool))
    with pytest.raises(ValueError, match=r"RNN got an input of shape \(4, 3\); expected 2 features"):
        rnn(state, engine.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"RNN got an input of shape \(5, 4, 3\)"):
        rnn.unroll(state, engine.zeros((5, 4, 3)), done)


def test_a_flag_that_is_none_is_refused(engine):
    with pytest.raises(TypeError, match=r"RNN\(trainable_time_constant='no'\) is not possible: expected True or False"):
        mp.RNN(1, 1, mp.Rngs(0), time_constant=2.0, trainable_time_constant="no")  # pyright: ignore[reportArgumentType]
