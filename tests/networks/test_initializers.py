"""Initial weights: distributions, orthogonality, one stream."""

import numpy as np
import pytest

from multippo.networks.initializers import lecun_normal, orthogonal, uniform, zeros
from multippo.random import Rngs


@pytest.mark.parametrize("shape", [(6, 4), (4, 6), (5, 5), (1, 3), (3, 1)])
def test_orthogonal_rows_or_columns(shape):
    kernel = orthogonal(2.0)(Rngs(0), shape)
    assert kernel.shape == shape and kernel.dtype == np.float64
    product = kernel.T @ kernel if shape[0] >= shape[1] else kernel @ kernel.T
    np.testing.assert_allclose(product, 4 * np.eye(min(shape)), atol=1e-12)


def test_orthogonal_matrices_are_spread_evenly():
    # A uniformly random rotation of the plane or reflection: the first entry is cos of an even angle, mean square 1/2.
    first = np.asarray([orthogonal()(Rngs(seed), (2, 2))[0, 0] for seed in range(400)])
    assert abs(first.mean()) < 4 * 0.71 / 20
    assert abs((first**2).mean() - 0.5) < 4 * 0.36 / 20


def test_variances():
    rngs = Rngs(0)
    # 100,000 draws: a variance within 4 sqrt(2 / n) = 2 %.
    assert abs(lecun_normal(2.0)(rngs, (100, 1000)).var() / 0.04 - 1) < 0.02
    drawn = uniform(0.3)(rngs, (100, 1000))
    assert abs(drawn.var() / 0.03 - 1) < 0.02 and drawn.min() >= -0.3 and drawn.max() <= 0.3
    assert not zeros()(rngs, (3,)).any()


def test_each_draw_takes_the_next_key():
    rngs, again = Rngs(0), Rngs(0)
    one, two = (lecun_normal()(rngs, (3, 3)) for _ in range(2))
    assert (one != two).all()
    np.testing.assert_array_equal(lecun_normal()(again, (3, 3)), one)
