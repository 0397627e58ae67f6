"""The reference's layers against numbers by hand and loops over single elements."""

from __future__ import annotations

import math

import numpy as np
import pytest
from support import on

import multippo as mp
from multippo.backends.numpy import layers
from multippo.backends.numpy.modules import Module


@pytest.fixture(autouse=True)
def engine():
    with mp.use_backend("numpy") as active:
        yield active


def sigmoid(x: float) -> float:
    return 1.0 / (1.0 + math.exp(-x))


# Values at -1, 0 and 1: sigmoid(1) = 0.731059, erf(1 / sqrt(2)) = 0.682689, so gelu(1) = 0.5 (1 + 0.682689).
ACTIVATIONS = {
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


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_has_the_value_it_should(engine, name):
    got = engine.activation(name)(np.asarray([-1.0, 0.0, 1.0]))
    np.testing.assert_allclose(got, ACTIVATIONS[name], atol=1e-6)


def test_the_activations_are_those_of_the_other_engines(engine):
    grid = np.asarray([-800.0, -60.0, -3.0, -1e-3, 0.0, 0.5, 20.5, 60.0, 800.0])
    for other in ("jax", "torch"):
        with on(other, "float64") as its:
            assert set(its.activations) == set(engine.activations) == set(ACTIVATIONS)
            for name in ACTIVATIONS:
                expected = its.to_numpy(its.activation(name)(its.asarray(grid)))
                np.testing.assert_allclose(engine.activation(name)(grid), expected, rtol=1e-12, atol=1e-12)


def test_a_linear_layer_takes_any_number_type(engine):
    kernel, bias = np.asarray([[1.0, 2.0], [3.0, 4.0]]), np.asarray([10.0, 20.0])
    # [1 1] @ [[1 2] [3 4]] = [4 6]
    for dtype in ("float32", "uint8", "int64"):
        y = engine.linear(kernel, bias)(np.ones((1, 2), dtype))
        assert y.tolist() == [[14.0, 26.0]] and y.dtype == np.float64
    assert engine.linear(kernel, None)(np.ones((3, 1, 2))).tolist() == [[[4.0, 6.0]]] * 3


def test_what_a_layer_was_made_of_is_copied(engine):
    kernel = np.ones((1, 1))
    layer = engine.linear(kernel, None)
    kernel[:] = 7.0
    assert layer(np.ones((1, 1))).tolist() == [[1.0]]


def lstm_by_hand(x, h, c, wi, wh, b):
    """One unit, one feature; gates i, f, g, o."""
    i, f, g, o = (x * wi[gate] + h * wh[gate] + b[gate] for gate in range(4))
    c = sigmoid(f) * c + sigmoid(i) * math.tanh(g)
    return sigmoid(o) * math.tanh(c), c


def gru_by_hand(x, h, wi, wh, b, recurrent_bias):
    """One unit, one feature; gates r, z, n."""
    r = sigmoid(x * wi[0] + b[0] + h * wh[0])
    z = sigmoid(x * wi[1] + b[1] + h * wh[1])
    n = math.tanh(x * wi[2] + b[2] + r * (h * wh[2] + recurrent_bias))
    return (1 - z) * n + z * h


WI, WH, B = [0.5, -0.3, 0.8, 1.2], [0.7, 0.2, -0.6, 0.4], [0.1, 0.9, -0.2, 0.3]


def test_a_step_of_the_lstm_by_hand(engine):
    core = engine.lstm(np.asarray([WI]), np.asarray([WH]), np.asarray(B))
    h, c = core.step(np.asarray([[2.0]]), np.asarray([[0.5]]), np.asarray([[-1.0]]))
    # i = 1 + 0.35 + 0.1 = 1.45, f = -0.6 + 0.1 + 0.9 = 0.4, g = 1.6 - 0.3 - 0.2 = 1.1, o = 2.4 + 0.2 + 0.3 = 2.9;
    # c' = -sigmoid(0.4) + sigmoid(1.45) tanh(1.1) = -0.598688 + 0.809998 * 0.800499 = 0.049715
    # h' = sigmoid(2.9) tanh(0.049715) = 0.947846 * 0.049674 = 0.047083
    np.testing.assert_allclose([c[0, 0], h[0, 0]], [0.049715, 0.047083], atol=2e-6)


# One environment whose episodes end nowhere, at the first and last step, twice in a row.
DONE = np.asarray([[0, 0, 0, 0, 0], [1, 0, 0, 0, 1], [0, 1, 1, 0, 0]], bool).T
XS = np.asarray([[0.3, -1.0, 2.0, 0.7, -0.4], [1.0, 0.5, -0.5, 0.2, 0.9], [-2.0, 1.5, 0.1, 0.6, -0.8]]).T


@pytest.mark.parametrize("steps", [5, 1])
def test_the_lstm_over_time_with_resets_is_a_loop_over_environments(engine, steps):
    core = engine.lstm(np.asarray([WI]), np.asarray([WH]), np.asarray(B))
    h0, c0 = np.asarray([[0.2], [0.2], [0.2]]), np.asarray([[-0.1], [-0.1], [-0.1]])
    h, c = np.asarray([[0.5], [-0.5], [0.1]]), np.asarray([[1.0], [0.3], [-0.7]])
    hs, last_h, last_c = core.unroll(XS[:steps, :, None], h, c, DONE[:steps], h0, c0)
    for env in range(3):
        carry = h[env, 0], c[env, 0]
        for t in range(steps):
            carry = lstm_by_hand(XS[t, env], *carry, WI, WH, B)
            assert hs[t, env, 0] == pytest.approx(carry[0], abs=1e-14)
            carry = (0.2, -0.1) if DONE[t, env] else carry
        assert (last_h[env, 0], last_c[env, 0]) == pytest.approx(carry, abs=1e-14)
    assert core.carry(2).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("steps", [5, 1])
def test_the_gru_over_time_with_resets_is_a_loop_over_environments(engine, steps):
    core = engine.gru(np.asarray([WI[:3]]), np.asarray([WH[:3]]), np.asarray(B[:3]), np.asarray([0.6]))
    h, h0 = np.asarray([[0.5], [-0.5], [0.1]]), np.asarray([[0.2], [0.2], [0.2]])
    hs, last = core.unroll(XS[:steps, :, None], h, DONE[:steps], h0)
    for env in range(3):
        carry = h[env, 0]
        for t in range(steps):
            carry = gru_by_hand(XS[t, env], carry, WI, WH, B, 0.6)
            assert hs[t, env, 0] == pytest.approx(carry, abs=1e-14)
            carry = 0.2 if DONE[t, env] else carry
        assert last[env, 0] == pytest.approx(carry, abs=1e-14)


def test_layer_normalisation_by_hand(engine):
    layer = engine.layer_norm(2, np.asarray([2.0, 3.0]), np.asarray([0.5, -0.5]), 0.25)
    # Mean 2, variance ((-1)^2 + 1^2) / 2 = 1: (x - 2) / sqrt(1.25), times scale, plus bias.
    unit = 1.0 / math.sqrt(1.25)
    np.testing.assert_allclose(layer(np.asarray([[1.0, 3.0]])), [[0.5 - 2 * unit, 3 * unit - 0.5]], rtol=1e-15)
    bare = engine.layer_norm(2, None, None, 0.0)
    # Digits of the difference survive a mean far from 0.
    np.testing.assert_allclose(bare(np.asarray([[1e8, 1e8 + 2]])), [[-1.0, 1.0]], rtol=1e-7)


@pytest.mark.parametrize("padding", ["valid", "same", (1, 2)])
@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (3, 2)])
def test_a_convolution_is_a_loop_over_elements(engine, padding, stride):
    rng = np.random.default_rng(0)
    x, kernel, bias = rng.normal(size=(2, 5, 4, 2)), rng.normal(size=(3, 2, 2, 3)), rng.normal(size=3)
    got = engine.conv(kernel, bias, stride, padding)(x)
    # Zeros before each axis; of an odd number "same" puts the larger half after.
    before = {"valid": (0, 0), (1, 2): (1, 2)}.get(padding)
    if padding == "same":
        needed = [(-(-n // s) - 1) * s + k - n for n, k, s in zip((5, 4), (3, 2), stride, strict=True)]
        before = tuple(max(total, 0) // 2 for total in needed)
        assert got.shape[1:3] == (-(-5 // stride[0]), -(-4 // stride[1]))
    for b, row, column, out in np.ndindex(got.shape):
        total = bias[out]
        for down, across, feature in np.ndindex(kernel.shape[:3]):
            r, c = row * stride[0] + down - before[0], column * stride[1] + across - before[1]
            if 0 <= r < 5 and 0 <= c < 4:
                total += x[b, r, c, feature] * kernel[down, across, feature, out]
        assert got[b, row, column, out] == pytest.approx(total, abs=1e-12)
    assert got.shape[0] == 2 and got.shape[3] == 3


def test_a_layer_of_the_users_own_is_lifted(engine):
    class Gain(Module):
        def __init__(self):
            self.gain = mp.Param(np.asarray([2.0]))

        def __call__(self, x):
            return x * self.gain[...]

    net = mp.Sequential([mp.Lift(Gain())])
    assert net([()], np.ones((1, 1))).output.tolist() == [[2.0]]
    assert list(mp.to_portable(net)) == ["layers.0.gain"]


def test_what_is_no_layer_or_keeps_a_state_is_not_lifted(engine):
    class Counting(Module):
        def __init__(self):
            self.calls = mp.Variable(np.zeros(()))

    with pytest.raises(TypeError, match="Counting with a state of its own, calls, which a call would write"):
        mp.Lift(Counting())
    with mp.use_backend("torch"):
        foreign = mp.Dense(1, 1, mp.Rngs(0)).core
    with pytest.raises(TypeError, match=r"on the engine numpy it takes a multippo.backends.numpy.modules.Module"):
        mp.Lift(foreign)


def test_public_names_exist():
    assert all(hasattr(layers, name) for name in layers.__all__)
