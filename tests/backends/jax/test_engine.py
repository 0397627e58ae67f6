"""Parts of the JAX engine that other engines do otherwise."""

import jax
import numpy as np

from multippo.backends.jax.engine import _order


def test_equal_words_stay_in_order():
    words = np.array([[7, 0, 7, 2**32 - 1, 0], [5, 5, 5, 5, 5]], np.uint32)
    # Zeros at 1 and 4, sevens at 0 and 2, then the largest word.
    expected = [[1, 4, 0, 2, 3], [0, 1, 2, 3, 4]]
    assert _order(jax.numpy.asarray(words)).tolist() == expected
    assert jax.jit(_order)(words).tolist() == expected
