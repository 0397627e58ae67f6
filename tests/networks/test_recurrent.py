"""LSTM, GRU and RNN: the equations, resets, first carries and weights, time constants, the errors."""

import numpy as np
import pytest
from support import each_engine, fill_randomly, gradients, to_numpy

import multippo as mp

DONE = np.asarray([[1, 1], [1, 0], [1, 0], [0, 0], [0, 1]], bool)
FUNCTIONS = {"tanh": np.tanh, "relu": lambda z: np.maximum(z, 0.0), None: lambda z: z}


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


# The docstrings' equations, in NumPy.


def lstm(x, carry, weights):
    z = x @ weights["input_kernel"] + carry["h"] @ weights["recurrent_kernel"] + weights["bias"]
    i, f, g, o = np.split(z, 4, axis=-1)
    c = sigmoid(f) * carry["c"] + sigmoid(i) * np.tanh(g)
    return {"h": sigmoid(o) * np.tanh(c), "c": c}


def gru(x, carry, weights):
    a, b = x @ weights["input_kernel"] + weights["bias"], carry["h"] @ weights["recurrent_kernel"]
    (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(a, 3, axis=-1), np.split(b, 3, axis=-1)
    r, z = sigmoid(a_r + b_r), sigmoid(a_z + b_z)
    n = np.tanh(a_n + r * (b_n + weights["recurrent_bias"]))
    return {"h": (1 - z) * n + z * carry["h"]}


def rnn(x, carry, weights, tau=1.0, function=np.tanh):
    driven = function(x @ weights["input_kernel"] + carry["h"] @ weights["recurrent_kernel"] + weights["bias"])
    return {"h": (1 - 1 / tau) * carry["h"] + driven / tau}


EQUATIONS = {mp.LSTM: lstm, mp.GRU: gru, mp.RNN: rnn}
each_cell = pytest.mark.parametrize("cell", EQUATIONS, ids=lambda cell: cell.__name__)


def filled(cell, **options):
    """A cell of random weights, time constants left as they are, and its weights."""
    module = cell(3, 2, mp.Rngs(0), **options)
    leak = {name: value for name, value in mp.to_portable(module).items() if name == "leak_logit"}
    weights = fill_randomly(module, scale=1.0)
    mp.load_portable(module, {**weights, **leak})
    return module, weights


def carry_and_inputs(module, time, batch):
    rng = np.random.default_rng(1)
    carry = {entry: rng.normal(size=(batch, 2)) for entry in module.initialize_state(1)}
    return carry, rng.normal(size=(time, batch, 3))


def assert_follows(module, step, first, done):
    """A call and an unroll are the equations; where an episode ends, ``first`` gives the next carry."""
    engine = module.engine
    carry, xs = carry_and_inputs(module, *done.shape)
    state, own_xs = {key: engine.asarray(value) for key, value in carry.items()}, engine.asarray(xs)
    called, out = module(state, own_xs[0]), module.unroll(state, own_xs, engine.asarray(done))
    for t in range(len(done)):
        carry = step(xs[t], carry)
        np.testing.assert_allclose(to_numpy(out.output)[t], carry["h"], rtol=1e-11, err_msg=str(t))
        if t == 0:
            np.testing.assert_allclose(to_numpy(called.output), carry["h"], rtol=1e-11)
            for key, value in carry.items():
                np.testing.assert_allclose(to_numpy(called.next_state[key]), value, rtol=1e-11)
        carry = {key: np.where(done[t][:, None], first(key), value) for key, value in carry.items()}
    for key, value in carry.items():
        np.testing.assert_allclose(to_numpy(out.next_state[key]), value, rtol=1e-11)


@each_cell
@pytest.mark.usefixtures("float64")
@pytest.mark.nightly_if("jax")
def test_call_and_unroll_are_the_equations_with_resets(engine, cell):
    module, weights = filled(cell, trainable_initial_state=True)
    step = lambda x, carry: EQUATIONS[cell](x, carry, weights)  # noqa: E731
    assert_follows(module, step, lambda key: weights[f"initial_{key}"], DONE)
    module, plain = filled(cell)
    for done in ([[False]], [[True]]):  # one step of one environment
        step = lambda x, carry: EQUATIONS[cell](x, carry, plain)  # noqa: E731
        assert_follows(module, step, lambda key: 0.0, np.asarray(done))


@pytest.mark.parametrize("activation", FUNCTIONS)
@pytest.mark.usefixtures("float64")
def test_time_constants_and_activations_are_in_the_equation(engine, activation):
    for tau in (2.5, (1.0, 4)):
        module, weights = filled(mp.RNN, activation=activation, time_constant=tau)
        step = lambda x, carry: rnn(x, carry, weights, np.asarray(tau), FUNCTIONS[activation])  # noqa: B023, E731
        assert_follows(module, step, lambda key: 0.0, DONE)
        np.testing.assert_allclose(to_numpy(module.time_constant), np.broadcast_to(tau, 2), rtol=1e-12)


def test_the_leak_of_an_rnn_by_hand(engine):
    rnn = mp.RNN(1, 1, mp.Rngs(0), activation="relu", time_constant=4.0)
    weights = {"input_kernel": np.full((1, 1), 2.0), "recurrent_kernel": np.full((1, 1), 0.5), "bias": np.full(1, -1.0)}
    mp.load_portable(rnn, {**mp.to_portable(rnn), **weights})
    # f = relu(2 * 3 + 0.5 * 6 - 1) = 8; h' = 3/4 * 6 + 1/4 * 8 = 6.5. Whole numbers are taken too.
    x = engine.asarray(np.asarray([[3]], np.uint8))
    np.testing.assert_allclose(to_numpy(rnn({"h": engine.zeros((1, 1)) + 6}, x).output), [[6.5]], rtol=1e-6)


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


OF_GRU = {"bias": (9,), "input_kernel": (2, 9), "recurrent_bias": (3,), "recurrent_kernel": (3, 9)}
OF_RNN = {"bias": (3,), "input_kernel": (2, 3), "recurrent_kernel": (3, 3)}


@pytest.mark.parametrize(
    ("cell", "options", "trained", "constant"),
    [
        (mp.LSTM, {}, {"bias": (12,), "input_kernel": (2, 12), "recurrent_kernel": (3, 12)}, {}),
        (mp.GRU, {"trainable_initial_state": True}, {**OF_GRU, "initial_h": (3,)}, {}),
        (mp.RNN, {}, OF_RNN, {}),
        (mp.RNN, {"time_constant": 3.0}, OF_RNN, {"leak_logit": (3,)}),
        (mp.RNN, {"time_constant": 3, "trainable_time_constant": True}, {**OF_RNN, "leak_logit": (3,)}, {}),
    ],
)
def test_names_layouts_and_what_is_trained(engine, cell, options, trained, constant):
    module = cell(2, 3, mp.Rngs(0), **options)
    assert {name: value.shape for name, value in mp.to_portable(module).items()} == {**trained, **constant}
    assert {name for name, leaf in engine.leaves(module).items() if leaf.trained} == set(trained)


@each_cell
def test_an_episode_starts_from_zeros_or_from_what_was_learnt(engine, cell):
    plain, learnt = cell(1, 2, mp.Rngs(0)), cell(1, 2, mp.Rngs(0), trainable_initial_state=True)
    learnt.initial_h[...] = engine.zeros((2,)) + 3
    anything = {entry: engine.zeros((4, 2)) + 9 for entry in plain.entries}
    for zeros in (plain.initialize_state(4), plain.reset_state(anything)):
        assert all(to_numpy(leaf).tolist() == [[0.0, 0.0]] * 4 for leaf in zeros.values())
    for first in (learnt.initialize_state(4), learnt.reset_state(anything)):
        assert to_numpy(first.pop("h")).tolist() == [[3.0, 3.0]] * 4
        assert not any(to_numpy(leaf).any() for leaf in first.values())


def test_the_initial_state_learns_from_episodes_that_start_inside(engine):
    lstm = mp.LSTM(1, 2, mp.Rngs(0), trainable_initial_state=True)
    xs, state = engine.zeros((3, 1, 1)) + 1, {"h": engine.zeros((1, 2)), "c": engine.zeros((1, 2))}
    for ends, learns in (([0, 0, 0], False), ([0, 1, 0], True)):
        done = engine.asarray(np.asarray(ends, bool)[:, None])
        grads = gradients(lstm, lambda net, done=done: net.xp.sum(net.unroll(state, xs, done).output))
        assert grads["initial_h"].any() == grads["initial_c"].any() == learns


@pytest.mark.parametrize(
    ("cell", "options", "gates", "biases"),
    [
        # Gates i, f, g, o of 8 units: the forget gate's bias alone is not 0.
        (mp.LSTM, {"forget_bias": 2.0}, 4, {"bias": [0.0] * 8 + [2.0] * 8 + [0.0] * 16}),
        (mp.GRU, {}, 3, {"bias": [0.0] * 24, "recurrent_bias": [0.0] * 8}),
        (mp.RNN, {"time_constant": 2.0}, 1, {"bias": [0.0] * 8, "leak_logit": [0.0] * 8}),  # logit(1/2)
    ],
)
def test_initial_weights(cell, options, gates, biases):
    found = each_engine(lambda: mp.to_portable(cell(50, 8, mp.Rngs(0), **options)))
    weights = found["jax"]
    for name, value in weights.items():
        np.testing.assert_array_equal(found["torch"][name], value)
    for name, expected in biases.items():
        assert weights[name].tolist() == expected
    for gate in np.split(weights["recurrent_kernel"].astype(np.float64), gates, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(8), atol=1e-6)
    # 400 draws for each gate of variance 1/50, within 4 standard deviations.
    assert abs(weights["input_kernel"].var() * 50 - 1) < 4 * np.sqrt(2 / (400 * gates))


REFUSED = {
    mp.LSTM: [
        ({"hidden_features": 1.5}, r"LSTM\(hidden_features=.*expected an integer of at least 1"),
        ({"forget_bias": float("nan")}, r"LSTM\(forget_bias=nan\) is not possible: expected a finite number"),
    ],
    mp.GRU: [({"hidden_features": 0}, r"GRU\(hidden_features=0\) is not possible: expected an integer")],
    mp.RNN: [
        ({"time_constant": 0.5}, r"RNN\(time_constant=0.5\) is not possible: expected numbers of steps of at least 1"),
        ({"time_constant": [2.0, float("inf")]}, "of at least 1"),
        ({"time_constant": "slow"}, "could not convert string to float: 'slow'"),
        ({"time_constant": [1.0, 2.0, 3.0]}, "one or one for each of 2 units"),
        ({"trainable_time_constant": True}, "time_constant=None.* is not possible: expected numbers of steps above 1"),
    ],
}


@pytest.mark.parametrize(
    ("cell", "options", "message"), [(cell, *case) for cell, cases in REFUSED.items() for case in cases]
)
def test_impossible_options_are_refused(torch_engine, cell, options, message):
    with pytest.raises((TypeError, ValueError), match=message):
        cell(**{"in_features": 1, "hidden_features": 2, "rngs": mp.Rngs(0), **options})
