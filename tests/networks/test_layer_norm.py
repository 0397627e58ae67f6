"""LayerNorm: the equation, the same on both engines, what is trained."""

import numpy as np
import pytest
from support import fill_randomly, to_numpy

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
