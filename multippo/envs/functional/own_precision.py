"""Functional environments in double precision: on every engine, not only where JAX computes the network."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import jax

from multippo.backends.registry import computes_in_float64

__all__ = ["float64_if", "in_own_precision", "precision_of_engine"]

F = TypeVar("F", bound=Callable[..., Any])


def float64_if(wide: bool) -> AbstractContextManager[Any]:
    """JAX's 64-bit mode where ``wide`` holds; else nothing is changed, so that a mode the user has set stays."""
    return jax.enable_x64(True) if wide else contextlib.nullcontext()


def precision_of_engine() -> AbstractContextManager[Any]:
    """JAX's 64-bit mode while the active engine computes in float64."""
    return float64_if(computes_in_float64())


def in_own_precision(method: F) -> F:
    """A method that computes in 64 bits where its object's ``float64`` says so, whichever engine calls it."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        if not self.float64:
            return method(self, *args)
        with float64_if(True):
            return method(self, *args)

    return call  # type: ignore[return-value]
