"""Random keys at the border between engines and environments.

An environment takes the key of any engine: two 32-bit words in a NumPy, JAX or torch array, a typed JAX key, or a plain
integer seed. The functions here convert keys for the environment's family. No engine is imported: a key of an engine
can only exist where its owner has already imported that engine.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

_MASK = 0xFFFFFFFF


def key_words(key: Any) -> int | np.ndarray:
    """The content of a concrete key: an integer seed as it is, any other key as an array of ``uint32`` words.

    Args:
        key: Non-negative integer; or two words in an integer array of any engine (negative entries are read as the
            unsigned word with the same bits); or a typed JAX key.

    Raises:
        ValueError: If ``key`` is something else.

    >>> key_words(7)
    7
    >>> key_words(np.array([1, -1], np.int32))
    array([         1, 4294967295], dtype=uint32)
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(key, torch.Tensor):
        words = key.detach().cpu().numpy()
    else:
        words = np.asarray(_untyped(key))
    if words.dtype.kind not in "iu" or words.shape not in ((), (2,), (4,)):
        raise ValueError(
            f"A random key was expected, received {key!r}: pass a non-negative integer, or an array of two 32-bit "
            "words as multippo.random.key(seed) makes."
        )
    if words.ndim == 0:
        if (seed := int(words)) < 0:
            raise ValueError(f"A seed must not be negative, received {seed}: pass an integer of at least 0.")
        return seed
    return words.astype(np.uint32)


def host_seed(key: Any, num_envs: int) -> int:
    """A seed for a gymnasium vector environment, which gives its members ``seed``, ``seed + 1``, ….

    Equal keys give equal seeds on every engine. The key's words are hashed, so that neighbouring seeds do not share
    members' seeds; all of these stay below 2**31, the most that some simulators accept.
    """
    drawn = np.random.SeedSequence(key_words(key)).generate_state(1, np.uint64)[0]
    return int(drawn % np.uint64(2**31 - num_envs))


def raw_jax_key(key: Any) -> Any:
    """Two ``uint32`` words: the old-style key, the only one that every functional environment takes.

    A JAX key may be a tracer, and stays one; of any other key the words are a NumPy array.
    """
    from jax.core import Tracer

    if isinstance(key, Tracer):
        key = _untyped(key)
        if key.ndim == 1 and np.issubdtype(key.dtype, np.integer):
            return key.astype(np.uint32)
    words = key_words(key)
    if isinstance(words, int):
        words = np.asarray([words >> 32 & _MASK, words & _MASK], np.uint32)
    return words


def _untyped(key: Any) -> Any:
    """The words of a typed JAX key; anything else unchanged."""
    jax = sys.modules.get("jax")
    if jax is not None and isinstance(key, jax.Array) and jax.dtypes.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.key_data(key)
    return key
