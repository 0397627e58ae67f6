"""Activations: names or functions of the own engine; values and derivatives at kinks and extremes."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import multippo as mp
from multippo.networks.activations import clip, resolve_activation, softplus

NUMPY = [np.tanh, np.abs, functools.partial(np.clip, a_min=0.0, a_max=1.0), np.vectorize(abs)]
TORCH = [torch.tanh, torch.relu, torch.nn.functional.gelu, torch.nn.functional.relu, torch.nn.Tanh(), torch.Tensor.tanh]
JAX = [jnp.tanh, jax.nn.relu, jax.nn.gelu, jax.lax.tanh, functools.partial(jax.nn.leaky_relu, negative_slope=0.1)]
ALL = {"numpy": NUMPY, "torch": TORCH, "jax": JAX}


def test_functions_of_another_framework_are_refused(engine):
    for framework, functions in ALL.items():
        for function in functions:
            if framework == engine.name:
                assert resolve_activation(engine, function) is function
                continue
            expected = f"of {framework} is not possible on the engine {engine.name}: expected a name, such as 'tanh'"
            with pytest.raises(TypeError, match=rf"^activation=.+ {expected}, or a function"):
                resolve_activation(engine, function)


@pytest.mark.parametrize(
    "make",
    [
        lambda act: mp.Dense(2, 3, mp.Rngs(0), act),
        lambda act: mp.Conv(1, 2, 2, mp.Rngs(0), activation=act),
        lambda act: mp.make_mlp_actor_critic(4, 2, activation=act, rngs=mp.Rngs(0)),
    ],
)
def test_every_layer_asks(torch_engine, make):
    with pytest.raises(TypeError, match="activation=tanh of numpy is not possible"):
        make(np.tanh)


def test_what_is_not_of_the_same_shape(engine):
    for function, made in ((lambda x: x[..., :2], r"an array of shape \(1, 2\)"), (lambda x: None, "a NoneType")):
        net = mp.Sequential([mp.Scale(1.0), mp.Dense(2, 3, mp.Rngs(1), function)])
        said = rf"^Dense\(activation=<lambda>\) made {made} of one of shape \(1, 3\); expected the same shape"
        with pytest.raises(ValueError, match=said):
            net(net.initialize_state(1), engine.zeros((1, 2)))


INF = np.inf


def derivative(engine, function, x):
    """The values of an elementwise function, and its derivatives."""
    given = {"x": engine.asarray(np.asarray(x))}
    if engine.name == "torch":
        given["x"].requires_grad_(True)

    def loss(given):
        y = function(given["x"])
        # inf * 0 is NaN, so that a sum of all values is no loss where some are infinite.
        return engine.xp.sum(engine.xp.where(engine.xp.isfinite(y), y, given["x"])), y

    (_, y), grads = engine.value_and_grad(loss)(given)
    return engine.to_numpy(y), engine.to_numpy(grads["x"])


@pytest.mark.usefixtures("float64")
def test_softplus_has_the_derivative_sigmoid_at_0_and_far_away(engine):
    x = np.asarray([0.0, -0.0, 1e-300, 1.0, -1.0, 800.0, -800.0, -INF, INF])
    y, slope = derivative(engine, lambda x: softplus(engine.xp, x), x)
    # log(1 + e^0) = log 2; log(1 + e) = 1.3132617, and that of -1 is 1 less; beyond double precision x itself, or 0.
    expected = [np.log(2)] * 3 + [1.3132616875182228, 0.3132616875182228, 800.0, 0.0, 0.0, INF]
    np.testing.assert_allclose(y, expected, rtol=1e-14)
    # 1 / (1 + e^-1) = 0.7310586.
    np.testing.assert_allclose(slope, [0.5] * 3 + [0.7310585786300049, 0.2689414213699951, 1, 0, 0, 1], rtol=1e-14)


def test_a_bound_belongs_to_the_inside(engine):
    x = np.asarray([-3.0, -1.0, 0.0, 2.0, 2.5, -INF, INF], np.float32)
    y, slope = derivative(engine, lambda x: clip(engine, x, -1.0, 2.0), x)
    assert y.tolist() == [-1.0, -1.0, 0.0, 2.0, 2.0, -1.0, 2.0]
    assert slope.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert np.isnan(engine.to_numpy(clip(engine, engine.asarray(np.float32([np.nan])), -1.0, 2.0)))
