"""LayerNorm: the equation, the same on both engines, what is trained, the errors."""

from __future__ import annotations

import numpy as np
import pytest
from support import each_engine, fill_randomly, gradients, to_numpy, total

import multippo as mp


def equation(x, scale, bias, epsilon=1e-5):
    """The docstring's, in NumPy."""
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + epsilon) * scale + bias


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("use_scale", [False, True])
@pytest.mark.parametrize("use_bias", [False, True])
@pytest.mark.parametrize("epsilon", [1e-5, 0.5])
def test_it_is_the_equation(engine, use_scale, use_bias, epsilon):
    layer = mp.LayerNorm(4, epsilon=epsilon, use_scale=use_scale, use_bias=use_bias)
    weights, x = fill_randomly(layer), np.random.default_rng(1).normal(size=(3, 4))
    assert sorted(weights) == [name for name, used in (("bias", use_bias), ("scale", use_scale)) if used]
    expected = equation(x, weights.get("scale", 1.0), weights.get("bias", 0.0), epsilon)
    out = layer((), engine.asarray(x))
    np.testing.assert_allclose(to_numpy(out.output), expected, rtol=1e-10, atol=1e-12)
    assert out.next_state == () and out.rollout_extras is None


def test_by_hand(engine):
    layer = mp.LayerNorm(2, epsilon=3.0)
    mp.load_portable(layer, {"scale": np.asarray([2.0, 4.0]), "bias": np.asarray([10.0, 20.0])})
    # Mean 4, variance 1, sqrt(1 + 3) = 2: -1/2 and 1/2.
    out = layer((), engine.asarray(np.asarray([[3, 5]], np.int32)))
    np.testing.assert_allclose(to_numpy(out.output), [[9.0, 22.0]], rtol=1e-6)


def test_engines_agree_in_single_precision():
    x = np.random.default_rng(0).normal(size=(5, 8)).astype(np.float32)
    # Far from 0, where E[x^2] - E[x]^2 would keep no digit; and nearly constant, where epsilon decides.
    for inputs in (x, 1000.0 + x, 1e-3 * x):

        def run(inputs=inputs):
            layer = mp.LayerNorm(8)
            fill_randomly(layer)
            xs = layer.engine.asarray(inputs)
            grads = gradients(layer, lambda net: total(net.xp, net((), xs).output))
            return to_numpy(layer((), xs).output), grads

        found = each_engine(run)
        tolerance = 1e-3 if inputs.max() > 100 else 1e-6  # of 1000 + x, x itself is known to 6e-5
        np.testing.assert_allclose(found["torch"][0], found["jax"][0], rtol=tolerance, atol=tolerance)
        for name, grad in found["jax"][1].items():
            np.testing.assert_allclose(found["torch"][1][name], grad, rtol=10 * tolerance, atol=10 * tolerance)
        weights = {"scale": found["jax"][1]["scale"], "bias": found["jax"][1]["bias"]}
        assert all(value.any() for value in weights.values())


def test_a_mean_far_from_zero_keeps_its_digits(engine):
    x = np.asarray([[4096.0, 4097.0, 4098.0, 4099.0]], np.float32)
    out = mp.LayerNorm(4)((), engine.asarray(x))
    np.testing.assert_allclose(to_numpy(out.output), equation(x.astype(np.float64), 1.0, 0.0), rtol=1e-5)


def test_it_starts_as_the_plain_normalisation(engine):
    assert {name: value.tolist() for name, value in mp.to_portable(mp.LayerNorm(2)).items()} == {
        "bias": [0.0, 0.0],
        "scale": [1.0, 1.0],
    }
    assert all(leaf.trained for leaf in engine.leaves(mp.LayerNorm(2)).values())


def test_all_steps_at_once_are_the_steps(engine):
    layer, xs = mp.LayerNorm(3), np.random.default_rng(0).normal(size=(4, 2, 3)).astype(np.float32)
    fill_randomly(layer)
    done = engine.asarray(np.ones((4, 2), bool))
    out = to_numpy(layer.unroll((), engine.asarray(xs), done).output)
    for t in range(4):
        np.testing.assert_allclose(out[t], to_numpy(layer((), engine.asarray(xs[t])).output), rtol=1e-6)


def test_what_is_wrong_is_refused(engine):
    with pytest.raises(ValueError, match=r"LayerNorm\(features=0\) is not possible"):
        mp.LayerNorm(0)
    for epsilon in (0.0, -1.0, float("nan"), "small", True):
        with pytest.raises(ValueError, match=r"LayerNorm\(epsilon=.*expected a number above 0"):
            mp.LayerNorm(1, epsilon=epsilon)
    with pytest.raises(ValueError, match=r"LayerNorm got an input of shape \(4, 3\); expected 2 features"):
        mp.LayerNorm(2)((), engine.zeros((4, 3)))
