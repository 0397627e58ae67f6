"""Rngs: the stream that constructors draw from."""

import numpy as np
import pytest

from multippo.random import host
from multippo.rngs import Rngs


def test_keys_are_folded_from_the_seed_and_counted_from_one():
    rngs = Rngs(7)
    keys = [rngs.key() for _ in range(3)]
    for count, key in enumerate(keys, start=1):
        np.testing.assert_array_equal(key, host.fold_in(host.key(7), count))
    assert keys[0].shape == (2,) and keys[0].dtype == np.uint32


def test_it_prints_where_it_stands():
    rngs = Rngs(7)
    rngs.key()
    assert repr(rngs) == "Rngs(key=[0, 7], count=1)"


def test_numpy_integers_will_do():
    np.testing.assert_array_equal(Rngs(np.int64(3)).key(), Rngs(3).key())


@pytest.mark.parametrize("seed", [1.0, "1", None, True, -1, 2**64])
def test_what_is_no_integer_in_range_is_refused(seed):
    with pytest.raises((TypeError, ValueError), match="expected an integer"):
        Rngs(seed)
