import jax
import numpy as np
import pytest
import torch

from multippo.envs.keys import host_seed, key_words, raw_jax_key

# The two words of one key as each engine holds them. 4294967295 = 2**32 - 1 is -1 as a signed 32-bit integer.
WORDS = [7, 4294967295]
FORMS = {
    "numpy": np.array(WORDS, np.uint32),
    "numpy signed": np.array([7, -1], np.int32),
    "torch": torch.tensor(WORDS, dtype=torch.int64),
    "torch signed": torch.tensor([7, -1], dtype=torch.int32),
    "jax raw": jax.numpy.asarray(np.array(WORDS, np.uint32)),
    "jax typed": jax.random.wrap_key_data(jax.numpy.asarray(np.array(WORDS, np.uint32))),
}


@pytest.mark.parametrize("key", FORMS.values(), ids=FORMS)
def test_every_form_of_a_key_is_the_same_key(key):
    np.testing.assert_array_equal(key_words(key), WORDS)
    assert host_seed(key, 3) == host_seed(np.array(WORDS, np.uint32), 3)
    raw = raw_jax_key(key)
    assert raw.dtype == np.uint32
    np.testing.assert_array_equal(raw, WORDS)


@pytest.mark.parametrize("seed", [5, np.int64(5), np.asarray(5), torch.tensor(5), jax.numpy.asarray(5)])
def test_integers_are_seeds(seed):
    assert key_words(seed) == 5
    assert host_seed(seed, 1) == host_seed(5, 1)
    # The key of a seed is its two words, high word first, as in JAX.
    np.testing.assert_array_equal(raw_jax_key(seed), [0, 5])
    np.testing.assert_array_equal(raw_jax_key(seed), jax.random.key_data(jax.random.key(5)))


def test_neighbouring_seeds_share_no_members():
    seeds = [host_seed(seed, 1000) for seed in range(50)]
    members = {seed + i for seed in seeds for i in range(1000)}
    assert len(members) == 50_000
    assert max(members) < 2**31


@pytest.mark.parametrize("key", [-1, np.array([1.0, 2.0]), np.zeros(3, np.uint32), "seed", None, np.zeros((2, 2), int)])
def test_what_is_no_key_is_refused(key):
    with pytest.raises(ValueError, match=r"seed|random key"):
        key_words(key)


def test_a_traced_key_passes():
    for form in ("jax typed", "jax raw"):
        np.testing.assert_array_equal(jax.jit(raw_jax_key)(FORMS[form]), WORDS)
