"""Functional environments in double precision: on every engine, not only where JAX computes the network."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax

from multippo.backends.registry import computes_in_float64

F = TypeVar("F", bound=Callable[..., Any])


def precision_of_engine() -> AbstractContextManager[Any]:
    """JAX's 64-bit mode while the active engine computes in float64; else the mode that the user has set."""
    return jax.enable_x64(True) if computes_in_float64() else contextlib.nullcontext()


def in_own_precision(method: F) -> F:
    """A method that computes in 64 bits where its object's ``float64`` says so, whichever engine calls it."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        with jax.enable_x64(True) if self.float64 else contextlib.nullcontext():
            return method(self, *args)

    return call  # type: ignore[return-value]
