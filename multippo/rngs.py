"""``Rngs``: the source of random keys for constructors."""

from __future__ import annotations

import numpy as np

from multippo.random import host


class Rngs:
    """A stream of keys from one seed, on the host and the same for every engine.

    Args:
        seed: Integer in [0, 2**64).

    Example:
        >>> rngs = Rngs(0)
        >>> rngs.key().shape
        (2,)
    """

    def __init__(self, seed: int = 0) -> None:
        if isinstance(seed, bool) or not isinstance(seed, int | np.integer):
            raise TypeError(f"Rngs(seed={seed!r}) is not possible: expected an integer.")
        self._root = host.key(int(seed))
        self._count = 0

    def key(self) -> np.ndarray:
        """The next key, ``[2]`` words."""
        self._count += 1
        return host.fold_in(self._root, self._count)

    def __repr__(self) -> str:
        return f"Rngs(key={self._root.tolist()}, count={self._count})"


def check_rngs(owner: str, rngs: object) -> Rngs:
    """Returns ``rngs``; raises a TypeError unless it is an ``Rngs``."""
    if not isinstance(rngs, Rngs):
        raise TypeError(f"{owner}(rngs={rngs!r}) is not possible: expected a stream of keys, such as multippo.Rngs(0).")
    return rngs
