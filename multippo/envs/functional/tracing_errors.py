"""Errors that JAX raises while it traces a functional environment, in plain words."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Generator
from typing import Any

import jax

_JAX = os.path.dirname(jax.__file__) + os.sep
_ERRORS: tuple[tuple[type[Exception], str, str], ...] = (
    (
        jax.errors.TracerBoolConversionError,
        "branches on an array",
        "In the place of a Python if, while, and, or, not, use jnp.where, jax.lax.cond or jax.lax.while_loop",
    ),
    (jax.errors.TracerArrayConversionError, "hands an array to NumPy", "Use jax.numpy in its place"),
    (
        jax.errors.TracerIntegerConversionError,
        "takes an array where Python needs an integer",
        "Index a jax.numpy array, no list; in the place of range, use jax.lax.fori_loop",
    ),
    (jax.errors.NonConcreteBooleanIndexError, "selects entries by a boolean array", "Select with jnp.where"),
    (
        jax.errors.ConcretizationTypeError,
        "needs the value of an array",
        "Leave out float(), int() and the like, and compute with jax.numpy throughout",
    ),
)
"""Errors of JAX's, the particular ones first; the environment's fault, and the remedy."""


@contextlib.contextmanager
def while_traced(env: Any, method: str) -> Generator[None]:
    """Explains errors of JAX's in an environment's ``reset`` or ``step``, which is compiled.

    Raises:
        TypeError: In the place of JAX's error, which is its cause.
    """
    try:
        yield
    except tuple(kind for kind, _, _ in _ERRORS) as error:
        did, remedy = next((did, remedy) for kind, did, remedy in _ERRORS if isinstance(error, kind))
        raise TypeError(
            f"{method} of {type(env).__name__} {did}{_where(error)}, but a functional environment is compiled once for "
            f"all values. {remedy}."
        ) from error


def _where(error: BaseException) -> str:
    """The innermost line outside JAX."""
    frames = traceback.extract_tb(error.__traceback__)
    outside = [frame for frame in frames if not frame.filename.startswith((_JAX, os.path.dirname(__file__) + os.sep))]
    if not outside:
        return ""
    last = outside[-1]
    line = f": {last.line}" if last.line else ""
    return f" ({os.path.basename(last.filename)}, line {last.lineno}{line})"
