"""The first difference between two runs: by iteration in the metrics, by leaf in the checkpoints."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multippo.algorithms.checkpointing.checkpoint import load_checkpoint

_OF_THE_MACHINE = ("time/", "throughput/")
"""Metrics that no two runs have in common."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Apart:
    """A number that two runs do not share.

    Attributes:
        leaf: Its metric or array.
        index: Place in the array at which the two are furthest apart; empty for a number.
        a: The first run's number; None if it lacks the leaf, or the two are of different shapes.
        b: The second run's number.
        shapes: The shapes of the two, where they differ; None for the one that lacks the leaf.
        by: Their distance in proportion to the larger of them and 1; infinite where one lacks the leaf or is NaN.
    """

    leaf: str
    index: tuple[int, ...]
    a: float | None
    b: float | None
    by: float
    shapes: tuple[tuple[int, ...] | None, tuple[int, ...] | None] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parting:
    """The first iteration after which two runs are not the same.

    Attributes:
        iteration: Iterations finished.
        num_equal: Iterations before it that both have, and in which they are the same.
        num_leaves: Leaves that were compared in it.
        leaves: Those that differ, the one furthest apart first.
    """

    iteration: int
    num_equal: int
    num_leaves: int
    leaves: tuple[Apart, ...]


def logged_by_iteration(records: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """The metrics of each iteration, without times and speeds.

    Args:
        records: From ``read_metrics``, in the order in which they were logged. An evaluation is of the iteration
            before it.
    """
    found: dict[int, dict[str, Any]] = {}
    iteration = 0
    for record in records:
        iteration = int(record.get("iteration") or iteration)
        kept = {name: value for name, value in record.items() if not name.startswith(_OF_THE_MACHINE)}
        # A number that was not finite is null in the file.
        found.setdefault(iteration, {}).update({name: math.nan if x is None else x for name, x in kept.items()})
    return found


def checkpoint_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint: ``weights: NAME``, ``optimizer: NAME``, ``carry: NAME``, ``environment: NAME``.

    Raises:
        ValueError: If a file can't be read.
        FileNotFoundError: If one is missing.
    """
    parts = load_checkpoint(path).arrays()
    return {f"{part}: {name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def first_parting(
    a: Mapping[int, Any], b: Mapping[int, Any], tolerance: float = 0.0, read: Any = lambda leaves: leaves
) -> Parting | int:
    """The first iteration that both have, and in which a leaf differs.

    Args:
        a: Of the first run, by iteration: its leaves by name.
        b: Of the second.
        tolerance: Distance up to which two numbers count as equal; see ``Apart.by``.
        read: Makes leaves of an entry of ``a`` or ``b`` when they are compared.

    Returns:
        The place where they part; or the number of iterations in which they are the same, if they never part.
    """
    both = sorted(set(a) & set(b))
    for place, iteration in enumerate(both):
        left, right = read(a[iteration]), read(b[iteration])
        names = sorted(set(left) | set(right))
        differing = [found for name in names for found in apart(name, left.get(name), right.get(name), tolerance)]
        if differing:
            differing.sort(key=lambda found: -found.by)
            return Parting(iteration=iteration, num_equal=place, num_leaves=len(names), leaves=tuple(differing))
    return len(both)


def apart(leaf: str, a: Any, b: Any, tolerance: float) -> Iterator[Apart]:
    """The place in a leaf where two runs are furthest apart; nothing if it is within the tolerance.

    NaN equals NaN, and an infinity the same infinity. Whole numbers (counters, the words of random keys) are equal or
    are not, whatever the tolerance.
    """
    if a is None or b is None or np.shape(a) != np.shape(b):
        shapes = _shape(a), _shape(b)
        yield Apart(leaf=leaf, index=(), a=_only(a), b=_only(b), by=math.inf, shapes=shapes)
        return
    left, right = np.asarray(a), np.asarray(b)
    whole = left.dtype.kind not in "fc" and right.dtype.kind not in "fc"
    same = (left == right) | ((left != left) & (right != right))
    if np.all(same):
        return
    x, y = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(x - y) / np.maximum(np.maximum(np.abs(x), np.abs(y)), 1.0)
    distance = np.where(same, 0.0, np.where(np.isfinite(distance), distance, math.inf))
    if whole:
        # Words of 64 bits may be the same in double precision and differ all the same.
        distance = np.where(same, 0.0, np.maximum(distance, np.finfo(np.float64).tiny))
    index = np.unravel_index(int(np.argmax(distance)), distance.shape)
    by = float(distance[index])
    if whole or by > tolerance:
        yield Apart(leaf=leaf, index=tuple(map(int, index)), a=float(x[index]), b=float(y[index]), by=by)


def _shape(value: Any) -> tuple[int, ...] | None:
    return None if value is None else np.shape(value)


def _only(value: Any) -> float | None:
    return float(value) if value is not None and np.ndim(value) == 0 else None
