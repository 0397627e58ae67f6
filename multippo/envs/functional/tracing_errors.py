"""Errors that JAX raises while it traces a functional environment, in plain words."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Generator
from typing import Any

import jax

_JAX = os.path.dirname(jax.__file__) + os.sep
_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


@contextlib.contextmanager
def while_traced(env: Any, method: str) -> Generator[None]:
    """Explains errors of JAX's in an environment's ``reset`` or ``step``, which is compiled.

    Raises:
        TypeError: In the place of JAX's error, which is its cause.
    """
    try:
        yield
    except _ERRORS as error:
        raise TypeError(
            f"{method} of {type(env).__name__} needs the value of an array{_where(error)}, but a functional "
            "environment is compiled once for all values: take jax.numpy for NumPy and float(), and jnp.where, "
            "jax.lax.cond or jax.lax.while_loop for if, while and masks."
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
