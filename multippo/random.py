"""One stream of random numbers for every engine.

The generator is Threefry-2x32 (Salmon et al., 2011, "Parallel random numbers: as easy as 1, 2, 3") with the counter
layout of JAX's partitionable keys: ``key``, ``split``, ``fold_in`` and ``bits`` return JAX's own words. The
distributions are ours, since frameworks differ in theirs: a normal is Box-Muller on the two words of one block, so one
formula serves every engine, and float32 and float64 draws from one key are the same number up to rounding.

A key is an array of two 32-bit words on its last axis, shape ``[..., 2]``. Every function takes keys with leading axes:
``normal(keys, (3,))`` with keys of ``[B, 2]`` returns ``[B, 3]``, each row drawn from its own key. On JAX the functions
take typed keys (``jax.random.key``) of threefry too, and return words.

The functions of this module work on keys of any engine. Inside a module use ``self.random``, which is bound to the
module's engine. ``Rngs`` is the source of keys for constructors.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

_MASK = 0xFFFFFFFF
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))


class Random:
    """The functions of this module for one array namespace.

    Args:
        xp: Array namespace.
        word_dtype: Unsigned 32-bit type that wraps around, or a signed 64-bit type, of which the low half is used.
        asarray: Function that makes an array on the right device from a NumPy array.
        default_float: Function that returns the floating-point type of draws without a ``dtype``.
        wrap: Decorator of the generator's hundred operations, such as a compiler for eager calls.
        words_of: Function that makes the words of a key of the framework's own kind, or None.
        order: Function that returns the stable order of words ``[..., n]``; the namespace's ``argsort`` by default.
    """

    def __init__(
        self,
        xp: Any,
        word_dtype: Any,
        asarray: Any,
        default_float: Any,
        wrap: Callable[..., Any] | None = None,
        words_of: Callable[[Any], Any] | None = None,
        order: Callable[[Any], Any] | None = None,
    ) -> None:
        self._xp = xp
        self._word_dtype = word_dtype
        self._asarray = asarray
        self._default_float = default_float
        self._wraps = "uint32" in str(word_dtype)
        self._words_of = words_of
        self._order = order or functools.partial(xp.argsort, axis=-1, stable=True)
        self._word: Any = np.uint32 if self._wraps else int
        self.threefry = wrap(self._rounds) if wrap else self._rounds

    def key(self, seed: int) -> Any:
        """The key ``[2]`` of a seed.

        Raises:
            ValueError: If the seed is not in [0, 2**64).
        """
        if not 0 <= int(seed) < 2**64:
            raise ValueError(f"seed={seed!r} is not possible: expected an integer in [0, 2**64).")
        return self.wrap_key(np.asarray([int(seed) >> 32, int(seed) & _MASK], np.uint32))

    def wrap_key(self, words: Any) -> Any:
        """A key from NumPy words, as the engine's array."""
        return self._asarray(np.asarray(words).astype(np.uint32 if self._wraps else np.int64))

    def words_to(self, size: int, key: Any) -> Any:
        """The words 0 to size - 1 on the device of ``key``, made by the namespace so that compilers can trace it."""
        if self._wraps:
            return self._xp.arange(size, dtype=self._word_dtype)
        return self._xp.arange(size, dtype=self._word_dtype, device=key.device)

    def split(self, key: Any, num: int = 2) -> Any:
        """New keys, ``num`` from each key: ``[..., 2]`` to ``[..., num, 2]``."""
        return self._xp.stack(self._blocks(key, (num,)), axis=-1)

    def fold_in(self, key: Any, data: Any) -> Any:
        """A new key for each number in ``data`` (integers in [0, 2**32)), which broadcasts against the key's axes.

        Never use ``fold_in(key, i)`` and ``split(key)[i]`` on one key: as in JAX, the two coincide.
        """
        if isinstance(data, int | np.integer):
            data = self._word(int(data))
        else:
            data = self._xp.astype(data, self._word_dtype)
        if self._words_of is not None:
            key = self._words_of(key)
        k0, k1 = key[..., 0], key[..., 1]
        word0, word1 = self.threefry(k0, k1, self._xp.zeros_like(k0), data)
        return self._xp.stack((word0, word1), axis=-1)

    def bits(self, key: Any, shape: tuple[int, ...] = ()) -> Any:
        """Words of 32 random bits, one for each element, in the engine's word type."""
        word0, word1 = self._blocks(key, shape)
        return word0 ^ word1

    def uniform(
        self, key: Any, shape: tuple[int, ...] = (), minval: float = 0.0, maxval: float = 1.0, dtype: Any = None
    ) -> Any:
        """Uniform numbers in [0, 1), scaled to [minval, maxval), where rounding may reach ``maxval``."""
        dtype = dtype or self._default_float()
        word0, word1 = self._blocks(key, shape)
        if "64" in str(dtype):
            unit = self._float(word0 >> self._word(5), dtype) * 2.0**-27
            unit = unit + self._float(word1 >> self._word(6), dtype) * 2.0**-53
        else:
            unit = self._float(word0 >> self._word(8), dtype) * 2.0**-24
        return unit if (minval, maxval) == (0.0, 1.0) else unit * (maxval - minval) + minval

    def normal(self, key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Any:
        """Standard normal numbers (Box and Muller, 1958), with tails to 6.8 standard deviations."""
        dtype = dtype or self._default_float()
        xp = self._xp
        word0, word1 = self._blocks(key, shape)
        # Half a unit is added so that the logarithm's argument is never 0.
        radius = xp.sqrt(-2.0 * xp.log((self._float(word0, dtype) + 0.5) * 2.0**-32))
        return radius * xp.cos(self._float(word1, dtype) * (2.0 * math.pi * 2.0**-32))

    def gumbel(self, key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Any:
        """Standard Gumbel noise, -log(-log(u)); the largest of logits plus Gumbel noise is a categorical sample."""
        dtype = dtype or self._default_float()
        xp = self._xp
        word0, _ = self._blocks(key, shape)
        # Symmetric midpoints of 23 bits are neither 0 nor 1 in float32, where a full word plus a half would become 1.
        unit = (self._float(word0 >> self._word(9), dtype) + 0.5) * 2.0**-23
        return -xp.log(-xp.log(unit))

    def randint(self, key: Any, shape: tuple[int, ...], minval: int, maxval: int) -> Any:
        """Integers in [minval, maxval): words modulo the range, in the engine's word type, or a signed one below 0.

        Raises:
            ValueError: If the range is empty, or of 2**32 numbers or more.
        """
        if not 0 < maxval - minval < 2**32:
            raise ValueError(f"randint of [{minval}, {maxval}) is not possible; expected 0 < maxval - minval < 2**32.")
        drawn = self.bits(key, shape) % self._word(maxval - minval)
        if minval >= 0:
            return drawn + self._word(minval)
        return (self._xp.astype(drawn, self._xp.int32) if self._wraps else drawn) + minval

    def permutation(self, key: Any, n: int) -> Any:
        """The numbers 0 to n - 1 in random order, for each key: ``[..., n]``."""
        # Ties of 32-bit words are broken by position, so that engines agree on them.
        return self._order(self.bits(key, (n,)))

    def _float(self, words: Any, dtype: Any) -> Any:
        return self._xp.astype(words, dtype)

    def _blocks(self, key: Any, shape: tuple[int, ...]) -> tuple[Any, Any]:
        """The two words of one Threefry block for each element, counted from 0 in row-major order."""
        if self._words_of is not None:
            key = self._words_of(key)
        counter = self._xp.reshape(self.words_to(math.prod(shape), key), shape)
        lead = key.shape[:-1]
        k0 = self._xp.reshape(key[..., 0], lead + (1,) * len(shape))
        k1 = self._xp.reshape(key[..., 1], lead + (1,) * len(shape))
        return self.threefry(k0, k1, self._word(0), counter)

    def _rounds(self, k0: Any, k1: Any, x0: Any, x1: Any) -> tuple[Any, Any]:
        """Twenty rounds of Threefry-2x32 on broadcasting words."""
        keys = (k0, k1, k0 ^ k1 ^ self._word(0x1BD11BDA))
        x0, x1 = self._add(x0, k0), self._add(x1, k1)
        for group in range(5):
            for distance in _ROTATIONS[group % 2]:
                x0 = self._add(x0, x1)
                x1 = self._rotate(x1, distance) ^ x0
            x0 = self._add(x0, keys[(group + 1) % 3])
            x1 = self._add(self._add(x1, keys[(group + 2) % 3]), self._word(group + 1))
        # Broadcasting leaves x0 and x1 of one shape after the first round.
        return x0, x1

    def _add(self, a: Any, b: Any) -> Any:
        return a + b if self._wraps else (a + b) & _MASK

    def _rotate(self, x: Any, distance: int) -> Any:
        left = x << self._word(distance)
        return (left if self._wraps else left & _MASK) | (x >> self._word(32 - distance))


# NumPy warns where a scalar word wraps around, which is the point.
host = Random(np, np.dtype(np.uint32), np.asarray, lambda: np.dtype(np.float64), np.errstate(over="ignore"))
"""The functions on NumPy arrays, by which initial weights are drawn, equal on every engine."""


def _of(key: Any) -> Random:
    """The functions for the array type of ``key``."""
    if isinstance(key, np.ndarray):
        return host
    from multippo.backends.registry import engine_of_array

    return engine_of_array(key).random


def key(seed: int) -> Any:
    """The key ``[2]`` of a seed in [0, 2**64), on the active engine.

    Raises:
        ValueError: If the seed is out of range.
    """
    from multippo.backends.registry import active_engine

    return active_engine().random.key(seed)


def split(key: Any, num: int = 2) -> Any:
    """New keys, ``num`` from each key: ``[..., 2]`` to ``[..., num, 2]``."""
    return _of(key).split(key, num)


def fold_in(key: Any, data: Any) -> Any:
    """A new key for each number in ``data`` (integers in [0, 2**32)), which broadcasts against the key's axes."""
    return _of(key).fold_in(key, data)


def bits(key: Any, shape: tuple[int, ...] = ()) -> Any:
    """Words of 32 random bits, one for each element."""
    return _of(key).bits(key, shape)


def uniform(key: Any, shape: tuple[int, ...] = (), minval: float = 0.0, maxval: float = 1.0, dtype: Any = None) -> Any:
    """Uniform numbers in [minval, maxval)."""
    return _of(key).uniform(key, shape, minval, maxval, dtype)


def normal(key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Any:
    """Standard normal numbers."""
    return _of(key).normal(key, shape, dtype)


def gumbel(key: Any, shape: tuple[int, ...] = (), dtype: Any = None) -> Any:
    """Standard Gumbel noise."""
    return _of(key).gumbel(key, shape, dtype)


def randint(key: Any, shape: tuple[int, ...], minval: int, maxval: int) -> Any:
    """Integers in [minval, maxval).

    Raises:
        ValueError: If the range is empty, or of 2**32 numbers or more.
    """
    return _of(key).randint(key, shape, minval, maxval)


def permutation(key: Any, n: int) -> Any:
    """The numbers 0 to n - 1 in random order, for each key: ``[..., n]``."""
    return _of(key).permutation(key, n)


class Rngs:
    """Streams of keys from seeds, on the host and the same for every engine.

    ``rngs.key()``, or ``rngs()``, is the next key of the default stream, and ``rngs.NAME()`` that of a stream of its
    own if ``NAME`` has a seed, else of the default one. Layers draw weights from ``params`` and the keys of their noise
    from ``noise``: ``Rngs(0, noise=1)`` has the weights of ``Rngs(0, noise=2)``.

    Args:
        seed: Seed of the default stream, an integer in [0, 2**64).
        **streams: Seeds of other streams, by name.

    Raises:
        TypeError: If a seed is not an integer.
        ValueError: If a seed is out of range.

    Example:
        >>> rngs = Rngs(0)
        >>> rngs.key().shape
        (2,)
    """

    def __init__(self, seed: int = 0, **streams: int) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"Rngs(seed={seed!r}) is not possible: expected an integer.")
        self._root = host.key(int(seed))
        self._count = 0
        self._streams = {name: Rngs(own) for name, own in streams.items()}

    @classmethod
    def from_key(cls, key: Any) -> Rngs:
        """A default stream that begins with a random key of any engine."""
        made = cls()
        made._root = np.asarray(fold_in(key, 0))
        return made

    def key(self) -> np.ndarray:
        """The next key, ``[2]`` words."""
        self._count += 1
        return host.fold_in(self._root, self._count)

    __call__ = key

    def __getattr__(self, name: str) -> Callable[[], np.ndarray]:
        if name.startswith("_"):
            raise AttributeError(name)
        return self._streams.get(name, self).key

    def __repr__(self) -> str:
        return f"Rngs(key={self._root.tolist()}, count={self._count})"


def check_rngs(owner: str, rngs: object) -> Rngs:
    """Returns ``rngs``, made from the next key of a ``flax.nnx.Rngs``; raises a TypeError if it is neither."""
    theirs: Any = rngs
    if type(theirs).__module__.startswith("flax.") and callable(getattr(theirs, "params", None)):
        return Rngs.from_key(theirs.params())
    if not isinstance(rngs, Rngs):
        raise TypeError(f"{owner}(rngs={rngs!r}) is not possible: expected a stream of keys, such as multippo.Rngs(0).")
    return rngs
