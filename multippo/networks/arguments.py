"""What constructors ask of their arguments, beside the sizes of ``utils.check_size``."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from multippo.networks.utils import check_size
from multippo.rngs import Rngs

__all__ = ["check_flag", "check_number", "check_sizes", "drawn", "is_number"]


def is_number(value: Any) -> bool:
    """Whether it is a finite real number, of Python or NumPy; truth values are none."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def check_number(kind: str, name: str, value: Any, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """A number, as a float.

    Args:
        kind: Whose argument it is.
        name: Of the argument.
        value: What was given.
        least: Smallest one that is possible.
        above: What it has to be larger than.

    Raises:
        ValueError: If it is no finite number, or out of range; the error names the class and the argument.
    """
    if not is_number(value) or not value >= least or not value > above:
        limit = f" of at least {least:g}" if least > -math.inf else f" above {above:g}" if above > -math.inf else ""
        finite = "" if limit else "finite "
        raise ValueError(f"{kind}({name}={value!r}) is not possible: expected a {finite}number{limit}.")
    return float(value)


def check_flag(kind: str, name: str, value: Any) -> bool:
    """True or False.

    Raises:
        TypeError: If it is something else, which might be taken for either.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{kind}({name}={value!r}) is not possible: expected True or False.")
    return bool(value)


def check_sizes(kind: str, name: str, sizes: Any) -> list[int]:
    """Sizes of layers, one after another.

    Raises:
        TypeError: If it is no list or tuple.
        ValueError: If one of them is no integer of at least 1.
    """
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        raise TypeError(f"{kind}({name}={sizes!r}) is not possible: expected a list of sizes, such as [64, 64].")
    return [check_size(kind, f"{name}[{index}]", size) for index, size in enumerate(sizes)]


_FRAMEWORKS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "flax": "jax", "numpy": "numpy"}


def unwrapped(function: Any) -> Any:
    """What a ``functools.partial`` calls in the end, or the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def framework_of(function: Any) -> str | None:
    """Whose function it is, "jax", "numpy" or "torch", and so whose arrays it takes; None if nobody's of these."""
    inner = unwrapped(function)
    # Of a method of a compiled class the class knows, of a NumPy ufunc or a compiled function its type does.
    known = (inner, getattr(inner, "__objclass__", None), type(inner))
    packages = ((getattr(one, "__module__", None) or "").partition(".")[0] for one in known)
    return next((_FRAMEWORKS[package] for package in packages if package in _FRAMEWORKS), None)


def drawn(
    kind: str, name: str, init: Callable[[Rngs, tuple[int, ...]], Any], rngs: Rngs, shape: tuple[int, ...]
) -> np.ndarray:
    """Initial weights, of the shape that the layer needs.

    Raises:
        TypeError: If ``init`` can't be called, or is a framework's own.
        ValueError: If it makes an array of another shape.
    """
    if not callable(init):
        raise TypeError(
            f"{kind}({name}=...) is a {type(init).__name__}; expected a function of an Rngs and a shape, such as "
            "multippo.networks.initializers.orthogonal(1.0)."
        )
    framework = framework_of(init)
    if framework in ("jax", "torch"):
        raise TypeError(
            f"{kind}({name}=...) is an initialiser of {framework}'s, which draws numbers of one engine; expected a "
            "function of an Rngs and a shape that returns a NumPy array, such as "
            "multippo.networks.initializers.orthogonal(1.0)."
        )
    array = np.asarray(init(rngs, shape))
    if array.shape != shape:
        raise ValueError(f"{kind}({name}=...) made an array of shape {array.shape}; expected {shape}.")
    return array
