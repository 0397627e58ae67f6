"""Calls of what is not the library's own: native modules and functions, on inputs that may not fit them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.arguments import describe, unwrapped
from multippo.networks.locating import thrower
from multippo.networks.types import StatefulModule
from multippo.trees import named_leaves

__all__ = ["call_foreign"]

_OF_INPUTS = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
    np.exceptions.AxisError,
)
"""What frameworks raise of inputs that do not fit. What derives from these tells of something else."""

_NATIVE = ("torch.", "flax.")
_FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "numpy", "array_api_compat", "array_api_extra")


def call_foreign(kind: str, function: Callable[[Any], Any], x: Any) -> Any:
    """``function(x)``, whose errors say what it was given.

    Args:
        kind: Whose function it is, for the error.
        function: A native module, or a function.
        x: A tree of arrays.

    Raises:
        ValueError: If it fails in a way in which inputs of a wrong shape make functions fail.
    """
    try:
        return function(x)
    except Exception as error:
        if type(error) not in _OF_INPUTS or _is_told_already(error):
            raise
        inner = unwrapped(function)
        who, features = f"{kind}({getattr(inner, '__name__', type(inner).__name__)})", _features(function)
        if features is not None and (not hasattr(x, "shape") or tuple(x.shape[-1:]) != (features,)):
            expected = f"expected an array with {features} features on the last axis"
            raise ValueError(f"{who} got {_received(x)}; {expected}.") from error
        said = f"no entry {error}" if isinstance(error, KeyError) else " ".join(str(error).split()).removesuffix(".")
        raise ValueError(f"{who} failed on {_received(x)}: {said or type(error).__name__}.") from error


def _is_told_already(error: Exception) -> bool:
    """Whether an error is of a user's own ``raise``, or of memory, or arose in a module that is told as the place."""
    if isinstance(error, RuntimeError) and re.search("allocat|out of memory", str(error)):
        return True
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)][1:]
    if any(isinstance(frame.f_locals.get("self"), StatefulModule) for frame in frames):
        return True
    module = thrower(error)
    return module is not None and module.partition(".")[0] not in _FRAMEWORKS


def _features(module: Any) -> int | None:
    """How many features a native dense layer takes, or the first layer of a sequence; None if it is neither."""
    if type(module).__name__ == "Sequential" and type(module).__module__.startswith(_NATIVE):
        # flax's are a list, torch's a module that can be gone through.
        module = next(iter(getattr(module, "layers", module)), None)
    features = getattr(module, "in_features", None) if type(module).__module__.startswith(_NATIVE) else None
    return features if isinstance(features, int) else None


def _received(x: Any) -> str:
    """An input in an error's words: its shape, or those of its leaves."""
    if not isinstance(x, dict | tuple | list):
        return describe(x)
    leaves = named_leaves(x)
    shapes = {name: tuple(leaf.shape) if hasattr(leaf, "shape") else type(leaf).__name__ for name, leaf in leaves}
    return f"arrays of shapes {shapes}" if shapes else describe(x)
