"""The native layers behind the neutral ones: activations, and that engines agree on them."""

import jax
import numpy as np
import pytest
import torch
from support import both_at, on

import multippo as mp
from multippo.backends import load_engine

GRID = np.asarray([-800.0, -60.0, -25.0, -20.5, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 1.0, 3.0, 20.5, 25.0, 60.0, 800.0])

# Values at -1, 0 and 1, by hand: e = 2.718282, sigmoid(1) = 1 / (1 + 1/e), erf(1 / sqrt(2)) = 0.682689.
BY_HAND = {
    "relu": (0.0, 0.0, 1.0),
    "tanh": (-0.761594, 0.0, 0.761594),
    "sigmoid": (0.268941, 0.5, 0.731059),
    "swish": (-0.268941, 0.0, 0.731059),
    "silu": (-0.268941, 0.0, 0.731059),
    "gelu": (-0.158655, 0.0, 0.841345),
    "elu": (-0.632121, 0.0, 1.0),
    "leaky_relu": (-0.01, 0.0, 1.0),
    "softplus": (0.313262, 0.693147, 1.313262),
    "identity": (-1.0, 0.0, 1.0),
}


@pytest.mark.parametrize("name", ["jax", "torch", "numpy"])
def test_engines_offer_the_same_activations(name):
    engine = load_engine(name)
    assert set(engine.activations) == set(BY_HAND)
    with pytest.raises(ValueError, match=r"Unknown activation 'cubic'; expected one of .*relu"):
        engine.activation("cubic")


@pytest.mark.parametrize("engine", ["jax", "torch", "numpy"], indirect=True)
@pytest.mark.parametrize("name", BY_HAND)
def test_an_activation_has_the_value_it_should(engine, name):
    got = engine.activation(name)(engine.asarray(np.asarray([-1.0, 0.0, 1.0], np.float32)))
    np.testing.assert_allclose(engine.to_numpy(got), BY_HAND[name], atol=1e-6)


@pytest.mark.parametrize("name", BY_HAND)
def test_values_and_gradients_are_the_same_on_every_engine(name):
    with both_at("float64"):
        with on("jax", "float64") as engine:
            function = engine.activation(name)
            values, pull = jax.vjp(function, jax.numpy.asarray(GRID))
            slopes = pull(jax.numpy.ones_like(values))[0]
        x = torch.tensor(GRID, requires_grad=True)
        with on("torch", "float64") as engine:
            y = engine.activation(name)(x)
            y.sum().backward()
    np.testing.assert_allclose(y.detach().numpy(), values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(load_engine("numpy").activation(name)(GRID), values, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(x.grad.numpy(), slopes, rtol=1e-12, atol=1e-12)


def test_the_second_bias_of_torchs_cell_is_zero_and_not_trained(torch_engine):
    core = mp.LSTM(2, 3, mp.Rngs(0)).core
    assert not core.bias_ih.any() and not core.bias_ih.requires_grad
    assert core.bias_hh.requires_grad
