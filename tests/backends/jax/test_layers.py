"""Products on the CPU: their gradients have forms of their own, and a row does not depend on the batch."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from multippo.backends.jax import layers


# Columns one by one, few rows of the kernel, and the general form; inputs with and without time.
@pytest.mark.parametrize("kernel", [(5, 2), (3, 6), (5, 6)])
@pytest.mark.parametrize("lead", [(7,), (2, 7)])
def test_gradients_are_those_of_the_plain_product(kernel: tuple[int, int], lead: tuple[int, ...]):
    draw = np.random.default_rng(0).normal
    x, w, g = draw(size=(*lead, kernel[0])), draw(size=kernel), draw(size=(*lead, kernel[1]))
    dx, dw = draw(size=x.shape), draw(size=w.shape)
    with jax.enable_x64(True):
        y, pull = jax.vjp(layers.product, jnp.asarray(x), jnp.asarray(w))
        by_x, by_w = pull(jnp.asarray(g))
        _, slope = jax.jvp(layers.product, (x, w), (dx, dw))
    np.testing.assert_allclose(y, x @ w, rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(by_x, g @ w.T, rtol=1e-12, atol=1e-12)
    rows = -1, kernel[0]
    np.testing.assert_allclose(by_w, x.reshape(rows).T @ g.reshape(-1, kernel[1]), rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(slope, dx @ w + x @ dw, rtol=1e-12, atol=1e-12)


def test_a_row_is_the_same_in_every_batch():
    draw = np.random.default_rng(0).normal
    x, kernel = jnp.asarray(draw(size=(300, 64)), jnp.float32), jnp.asarray(draw(size=(64, 2)), jnp.float32)
    together = jax.jit(layers.product)(x, kernel)
    for rows in (2, 8, 50):  # one row is a product with a vector
        np.testing.assert_array_equal(jax.jit(layers.product)(x[:rows], kernel), together[:rows])
