"""GRU: the equations, the carry, the initial weights, what is trained, the errors."""

from __future__ import annotations

import numpy as np
import pytest
from support import each_engine, fill_randomly, gradients, portable_gradients, to_numpy, total

import multippo as mp
from multippo.backends.api import OptimizerConfig
from multippo.networks.core.unrolling import step_unroll

DONE = np.asarray([[1, 1], [1, 0], [1, 0], [0, 0], [0, 1]], bool)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def equations(x, h, weights):
    """The docstring's, in NumPy."""
    a, b = x @ weights["input_kernel"] + weights["bias"], h @ weights["recurrent_kernel"]
    (a_r, a_z, a_n), (b_r, b_z, b_n) = np.split(a, 3, axis=-1), np.split(b, 3, axis=-1)
    r, z = sigmoid(a_r + b_r), sigmoid(a_z + b_z)
    n = np.tanh(a_n + r * (b_n + weights["recurrent_bias"]))
    return (1 - z) * n + z * h


def arrays(engine, *shapes):
    rng = np.random.default_rng(1)
    host = [rng.normal(size=shape) for shape in shapes]
    return host, [engine.asarray(value) for value in host]


@pytest.mark.usefixtures("float64")
def test_one_step_is_the_equations(engine):
    gru = mp.GRU(3, 2, mp.Rngs(0))
    weights = fill_randomly(gru, scale=1.0)
    (x, h), (own_x, own_h) = arrays(engine, (4, 3), (4, 2))
    out = gru({"h": own_h}, own_x)
    np.testing.assert_allclose(to_numpy(out.output), equations(x, h, weights), rtol=1e-12)
    np.testing.assert_array_equal(to_numpy(out.next_state["h"]), to_numpy(out.output))


def test_the_gates_by_hand(engine):
    gru, state = mp.GRU(1, 1, mp.Rngs(0)), {"h": engine.zeros((1, 1)) + 3}
    kernels = {"input_kernel": np.zeros((1, 3)), "recurrent_kernel": np.asarray([[0.0, 0.0, 2.0]])}

    def output(r, z):
        mp.load_portable(gru, {**kernels, "bias": np.asarray([r, z, 0.5]), "recurrent_bias": np.asarray([-5.5])})
        return to_numpy(gru(state, engine.zeros((1, 1))).output).item()

    # z open keeps h = 3. z shut: n = tanh(0.5 + r (2 * 3 - 5.5)): tanh(0.5) with r shut, tanh(1) with r open.
    np.testing.assert_allclose(output(50.0, 50.0), 3.0, rtol=1e-6)
    np.testing.assert_allclose(output(-50.0, -50.0), np.tanh(0.5), rtol=1e-6)
    np.testing.assert_allclose(output(50.0, -50.0), np.tanh(1.0), rtol=1e-6)
    # Half of each: r = z = 1/2.
    np.testing.assert_allclose(output(0.0, 0.0), 0.5 * np.tanh(0.75) + 1.5, rtol=1e-6)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("trainable", [False, True])
def test_unroll_is_the_equations_with_resets(engine, trainable):
    gru = mp.GRU(3, 2, mp.Rngs(0), trainable_initial_state=trainable)
    weights = fill_randomly(gru, scale=1.0)
    (xs, h), (own_xs, own_h) = arrays(engine, (5, 2, 3), (2, 2))
    out = gru.unroll({"h": own_h}, own_xs, engine.asarray(DONE))
    for t in range(5):
        h = equations(xs[t], h, weights)
        np.testing.assert_allclose(to_numpy(out.output)[t], h, rtol=1e-11, err_msg=str(t))
        h = np.where(DONE[t][:, None], weights["initial_h"] if trainable else 0.0, h)
    np.testing.assert_allclose(to_numpy(out.next_state["h"]), h, rtol=1e-11)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("ended", [False, True])
def test_one_step_of_one_environment(engine, ended):
    gru = mp.GRU(3, 2, mp.Rngs(0))
    weights = fill_randomly(gru)
    (xs, h), (own_xs, own_h) = arrays(engine, (1, 1, 3), (1, 2))
    out = gru.unroll({"h": own_h}, own_xs, engine.asarray(np.asarray([[ended]])))
    expected = equations(xs[0], h, weights)
    np.testing.assert_allclose(to_numpy(out.output)[0], expected, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.next_state["h"]), 0.0 if ended else expected, rtol=1e-12)


def gradients_of(gru, way):
    engine = gru.engine
    _, (xs, h) = arrays(engine, (5, 2, 3), (2, 2))
    return gradients(gru, lambda net: total(net.xp, tuple(way(net, {"h": h}, xs, engine.asarray(DONE), None)[:2])))


@pytest.mark.usefixtures("float64")
def test_the_gradient_is_that_of_the_steps(engine):
    gru = mp.GRU(3, 2, mp.Rngs(0), trainable_initial_state=True)
    fill_randomly(gru)
    fast, slow = (gradients_of(gru, way) for way in (lambda net, *args: net.unroll(*args), step_unroll))
    assert sorted(fast) == ["bias", "initial_h", "input_kernel", "recurrent_bias", "recurrent_kernel"]
    for name, grad in slow.items():
        assert grad.all(), name
        np.testing.assert_allclose(fast[name], grad, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.nightly
def test_an_optimiser_step_is_the_same_on_both_engines():
    # A second bias of r and z, trained, would move their sum twice as far on the engine that has one.
    def stepped():
        gru = mp.GRU(3, 2, mp.Rngs(0))
        fill_randomly(gru)
        engine = gru.engine
        _, (xs, h) = arrays(engine, (5, 2, 3), (2, 2))
        xs, h = (engine.xp.astype(x, engine.float_dtype) for x in (xs, h))
        definition, params, variables = engine.split(gru)

        def loss(params):
            net = engine.merge(definition, params, variables)
            return total(engine.xp, net.unroll({"h": h}, xs, engine.asarray(DONE)).output), None

        optimizer = engine.optimizer(OptimizerConfig(weight_decay=0.1, gradient_clipping=0.5))
        _, grads = engine.value_and_grad(loss)(params)
        state, never = optimizer.init(params), engine.asarray(np.asarray(False))
        params, state, norm = optimizer.step(params, grads, state, engine.zeros(()) + 0.1, never)
        engine.update_module(gru, params, variables)
        return mp.to_portable(gru), portable_gradients(gru, grads), float(norm)

    found = each_engine(stepped)
    for one, other in zip(found["jax"][:2], found["torch"][:2], strict=True):
        assert sorted(one) == sorted(other)
        for name, value in one.items():
            np.testing.assert_allclose(other[name], value, rtol=2e-5, atol=2e-6, err_msg=name)
    np.testing.assert_allclose(found["torch"][2], found["jax"][2], rtol=1e-5)


def test_names_and_layouts(engine):
    gru = mp.GRU(2, 3, mp.Rngs(0), trainable_initial_state=True)
    assert {name: value.shape for name, value in mp.to_portable(gru).items()} == {
        "bias": (9,),
        "initial_h": (3,),
        "input_kernel": (2, 9),
        "recurrent_bias": (3,),
        "recurrent_kernel": (3, 9),
    }
    assert all(leaf.trained for leaf in engine.leaves(gru).values())


def test_weights_go_from_one_engine_to_the_other():
    made = each_engine(lambda: mp.GRU(3, 2, mp.Rngs(0)))
    fill_randomly(made["jax"])
    mp.load_portable(made["torch"], mp.to_portable(made["jax"]))
    outs = {}
    for name, gru in made.items():
        _, (xs, h) = arrays(gru.engine, (5, 2, 3), (2, 2))
        xs, h = (gru.xp.astype(x, gru.engine.float_dtype) for x in (xs, h))
        outs[name] = to_numpy(gru.unroll({"h": h}, xs, gru.engine.asarray(DONE)).output)
        np.testing.assert_array_equal(mp.to_portable(gru)["bias"], mp.to_portable(made["jax"])["bias"])
    np.testing.assert_allclose(outs["torch"], outs["jax"], atol=1e-6)


def test_an_episode_starts_from_zeros_or_from_what_was_learnt(engine):
    plain, learnt = mp.GRU(1, 2, mp.Rngs(0)), mp.GRU(1, 2, mp.Rngs(0), trainable_initial_state=True)
    learnt.initial_h[...] = engine.zeros((2,)) + 3
    assert to_numpy(plain.initialize_state(4)["h"]).tolist() == [[0.0, 0.0]] * 4
    assert to_numpy(learnt.initialize_state(4)["h"]).tolist() == [[3.0, 3.0]] * 4
    anything = {"h": engine.zeros((4, 2)) + 9}
    assert not to_numpy(plain.reset_state(anything)["h"]).any()
    assert to_numpy(learnt.reset_state(anything)["h"]).tolist() == [[3.0, 3.0]] * 4


def test_initial_weights():
    weights = each_engine(lambda: mp.to_portable(mp.GRU(50, 8, mp.Rngs(0))))
    for name, value in weights["jax"].items():
        np.testing.assert_array_equal(weights["torch"][name], value)
    assert not weights["jax"]["bias"].any() and not weights["jax"]["recurrent_bias"].any()
    for gate in np.split(weights["jax"]["recurrent_kernel"].astype(np.float64), 3, axis=1):
        np.testing.assert_allclose(gate @ gate.T, np.eye(8), atol=1e-6)
    # 1,200 draws of variance 1/50, within 4 sqrt(2 / 1200) = 16 %.
    assert abs(weights["jax"]["input_kernel"].var() * 50 - 1) < 0.16


def test_what_is_wrong_is_refused(engine):
    with pytest.raises(ValueError, match=r"GRU\(hidden_features=0\) is not possible: expected an integer"):
        mp.GRU(1, 0, mp.Rngs(0))
    with pytest.raises(TypeError, match=r"GRU\(rngs=3\) is not possible"):
        mp.GRU(1, 1, 3)
    gru = mp.GRU(2, 3, mp.Rngs(0))
    state, done = gru.initialize_state(4), engine.asarray(np.zeros((5, 4), bool))
    with pytest.raises(ValueError, match=r"GRU got an input of shape \(4, 3\); expected 2 features"):
        gru(state, engine.zeros((4, 3)))
    with pytest.raises(ValueError, match=r"GRU got an input of shape \(5, 4, 3\)"):
        gru.unroll(state, engine.zeros((5, 4, 3)), done)


def test_the_factory_builds_one(engine):
    net = mp.make_recurrent_actor_critic(3, 2, 5, mp.Rngs(0), cell="gru", trainable_initial_state=True)
    found = mp.to_portable(net)
    assert found["layers.1.action.layers.1.recurrent_kernel"].shape == (5, 15)
    assert found["layers.1.value.layers.1.initial_h"].shape == (5,)
    state = net.initialize_state(4)
    out = net(state, engine.zeros((4, 3)) + 1)
    assert out.output.actions.shape == (4, 2)
    assert to_numpy(out.next_state[1]["action"][1]["h"]).any()
