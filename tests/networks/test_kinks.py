"""Values and derivatives at kinks and extremes, against the definition."""

import numpy as np
import pytest

from multippo.networks.activations import clip, softplus

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
    y, slope = derivative(engine, lambda x: clip(engine.xp, x, -1.0, 2.0), x)
    assert y.tolist() == [-1.0, -1.0, 0.0, 2.0, 2.0, -1.0, 2.0]
    assert slope.tolist() == [0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert np.isnan(engine.to_numpy(clip(engine.xp, engine.asarray(np.float32([np.nan])), -1.0, 2.0)))
