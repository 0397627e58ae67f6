"""Initial weights, drawn on the host from ``multippo.random``, so that one seed gives equal ones on every engine."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from multippo.arguments import framework_of
from multippo.random import Rngs, host

Initializer = Callable[[Rngs, tuple[int, ...]], np.ndarray]
"""Function of a stream of keys and a shape ``[in, out]`` to float64 values, which the layer casts to its type."""


def lecun_normal(gain: float = 1.0) -> Initializer:
    """Normal with variance gain**2 / in (LeCun et al., 1998, "Efficient backprop", section 4.6)."""

    def draw(rngs: Rngs, shape: tuple[int, ...]) -> np.ndarray:
        return host.normal(rngs.params(), shape) * (gain / math.sqrt(max(shape[0], 1)))

    return draw


def orthogonal(gain: float = 1.0) -> Initializer:
    """Orthonormal rows or columns, times ``gain`` (Saxe et al., 2014, arXiv:1312.6120)."""

    def draw(rngs: Rngs, shape: tuple[int, ...]) -> np.ndarray:
        rows, columns = shape
        normal = host.normal(rngs.params(), (max(rows, columns), min(rows, columns)))
        q, r = np.linalg.qr(normal)
        # The signs make the distribution uniform over orthogonal matrices (Mezzadri, 2007).
        q = q * np.where(np.diagonal(r) < 0, -1.0, 1.0)
        return gain * (q if rows >= columns else q.T)

    return draw


def uniform(bound: float) -> Initializer:
    """Uniform in [-bound, bound)."""
    return lambda rngs, shape: host.uniform(rngs.params(), shape, -bound, bound)


def zeros() -> Initializer:
    """Zeros."""
    return lambda rngs, shape: np.zeros(shape)


def drawn(kind: str, name: str, init: Initializer, rngs: Rngs, shape: tuple[int, ...]) -> np.ndarray:
    """Initial weights from ``init``, of the shape that the layer needs.

    Raises:
        TypeError: If ``init`` can't be called, or is a framework's own.
        ValueError: If ``init`` makes an array of another shape.
    """
    if not callable(init) or framework_of(init) in ("jax", "torch"):
        of = f" of {framework_of(init)}" if framework_of(init) else ""
        raise TypeError(
            f"{kind}({name}=...) is a {type(init).__name__}{of}; expected a function of an Rngs and a shape that "
            "returns a NumPy array, such as multippo.networks.initializers.orthogonal(1.0)."
        )
    array = np.asarray(init(rngs, shape))
    if array.shape != shape:
        raise ValueError(f"{kind}({name}=...) made an array of shape {array.shape}; expected {shape}.")
    return array
