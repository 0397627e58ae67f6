"""Engines under test: their abilities, the one that others are compared with, and arrays to and from them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator, Iterable, Sequence
from typing import Any

import numpy as np

from multippo.backends import available_backends, load_engine, use_backend
from multippo.backends.api import Engine
from multippo.trees import tree_map

ORACLES = ("numpy", "jax", "torch")
"""Engines that others are compared with, the most trusted one first. For training, which NumPy can't do, the next one
stands in."""

INDEPENDENT = ("numpy",)
"""Oracles that share no framework with any other engine, used even if they are not under test."""


@contextlib.contextmanager
def engine_at(backend: str, precision: str) -> Generator[Any]:
    """Makes an engine the active one, at one precision, with products in full and threads that suit small arrays.

    The user's settings are put back after it.
    """
    with (
        use_backend(backend) as engine,
        engine.precision(precision),
        engine.matmul_precision("highest"),
        engine.training(rows=1, widest=1),
    ):
        yield engine


def numerics(backends: Iterable[str]) -> dict[str, dict[str, str]]:
    """Device and settings in force while an engine was checked, by engine."""
    found: dict[str, dict[str, str]] = {}
    for backend in backends:
        # The engine's first precision is taken: some engines have float64 alone.
        precision = next((name for name in ("float32", "float64") if supports(backend, name)), None)
        if precision is not None:
            with engine_at(backend, precision) as engine:
                found[backend] = {**engine.numerics(), "matmul_precision": "highest"}
    return found


def supports(backend: str, precision: str) -> bool:
    """True if an engine computes in a floating-point type."""
    return _computes_in(load_engine(backend), precision)


@functools.cache  # called for every check of every subject
def _computes_in(engine: Engine, precision: str) -> bool:
    if precision == "float64" and "float64" not in engine.capabilities:
        return False
    try:
        with engine.precision(precision):
            return True
    except ValueError:
        return False


def trains(backend: str) -> bool:
    """True if an engine has gradients and an optimiser."""
    return "train" in load_engine(backend).capabilities


def choose_reference(
    backends: Sequence[str], precision: str, training: bool, only_on: Sequence[str] = ()
) -> str | None:
    """Name of the engine that the others are compared with: the first oracle that can run the subject.

    Candidates are the engines under test and the independent oracles; for a lone engine any oracle that is installed,
    so that a new engine can be compared with an old one.

    Args:
        backends: The engines under test.
        precision: "float32" or "float64".
        training: True if gradients are compared.
        only_on: Engines that can run the subject at all; empty for all.

    Returns:
        The name, or None where there is nothing to compare with.
    """

    def can(name: str) -> bool:
        return supports(name, precision) and (not training or trains(name)) and (not only_on or name in only_on)

    able = [name for name in backends if can(name)]
    oracles = ORACLES if len(able) == 1 else INDEPENDENT
    others = [name for name in _installed() if name in oracles and name not in able]
    pool = others if len(able) == 1 else [*able, *others] if able else []
    pool = sorted(pool, key=lambda name: ORACLES.index(name) if name in ORACLES else len(ORACLES))
    return next((name for name in pool if can(name)), None)  # lazily, since ``can`` loads the engine


@functools.cache  # each call reads the entry points of all installed packages
def _installed() -> tuple[str, ...]:
    """Names of the oracles that are installed."""
    return tuple(name for name in available_backends() if name in ORACLES)


def to_engine(engine: Any, tree: Any, precision: str) -> Any:
    """Converts NumPy arrays to the engine's, floating-point ones in the given type."""

    def convert(x: Any) -> Any:
        array = np.asarray(x)
        return engine.asarray(array.astype(precision) if array.dtype.kind == "f" else array)

    return tree_map(convert, tree)


def to_host(engine: Any, tree: Any) -> Any:
    """Copies the engine's arrays to NumPy arrays of the same types."""

    def convert(x: Any) -> np.ndarray:
        known = isinstance(x, bool | int | float | np.ndarray | np.generic)
        return np.array(x) if known else np.array(engine.to_numpy(x))

    return tree_map(convert, tree)
