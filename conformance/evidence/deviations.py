"""Deviations: the distance of two trees of arrays, and the place where it is largest."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from multippo.trees import named_leaves


@dataclasses.dataclass(frozen=True)
class Deviation:
    """The largest difference found.

    Attributes:
        worst: Size of the difference; infinity where structures, shapes or finiteness differ.
        where: Place, such as ``t=3, env=2`` or ``layers.0.kernel[1, 4]``; empty where there is no difference.
        detail: The mistake in words, where a number does not suffice.
    """

    worst: float
    where: str = ""
    detail: str = ""


def compare(
    got: Any,
    expected: Any,
    *,
    axes: Sequence[str] = ("t", "env"),
    mask: np.ndarray | None = None,
    relative: bool = False,
) -> Deviation:
    """Largest ``|got - expected|`` over the leaves of two trees of NumPy arrays.

    Args:
        got: Tree.
        expected: Tree of the same structure.
        axes: Names of the leading axes, for ``where``.
        mask: False where an entry does not count; of the shape of the leading axes.
        relative: True to divide by the largest magnitude of the expected leaf where that is above 1.
    """
    pair = named_leaves(got), named_leaves(expected)
    names = [[name for name, _ in leaves] for leaves in pair]
    if names[0] != names[1]:
        return Deviation(np.inf, "", f"leaves {sorted(names[0])} instead of {sorted(names[1])}")
    # Compared in order and not by name, since two leaves may have one name where a key holds a dot.
    return worst_of(
        _compare_leaf(name, np.asarray(leaf), np.asarray(other), axes, mask, relative)
        for (name, leaf), (_, other) in zip(*pair, strict=True)
    )


def portable_deviation(got: Mapping[str, Any], expected: Mapping[str, Any], *, relative: bool = False) -> Deviation:
    """Compares arrays by portable name, such as ``to_portable`` returns."""
    return compare(dict(got), dict(expected), axes=(), relative=relative)


def worst_of(deviations: Any) -> Deviation:
    """Largest of some deviations; 0 for an empty list."""
    return max(deviations, key=lambda deviation: deviation.worst, default=Deviation(0.0))


def _compare_leaf(
    name: str, got: np.ndarray, expected: np.ndarray, axes: Sequence[str], mask: np.ndarray | None, relative: bool
) -> Deviation:
    if got.shape != expected.shape:
        return Deviation(np.inf, name, f"shape {got.shape} instead of {expected.shape}")
    if not expected.size:
        return Deviation(0.0)
    a, b = got.astype(np.float64), expected.astype(np.float64)
    with np.errstate(invalid="ignore"):
        difference = np.where(a == b, 0.0, np.abs(a - b))
    if mask is not None:
        mask = np.reshape(mask, mask.shape + (1,) * (difference.ndim - mask.ndim))
        difference, b = np.where(mask, difference, 0.0), np.where(mask, b, 0.0)
    difference = np.where(np.isnan(difference), np.inf, difference)
    if relative:
        scale = np.max(np.abs(b), where=np.isfinite(b), initial=1.0)
        difference = difference / scale
    worst = float(np.max(difference))
    if worst == 0.0:
        return Deviation(0.0)
    place = np.unravel_index(int(np.argmax(difference)), difference.shape)
    return Deviation(worst, _describe(name, [int(i) for i in place], axes))


def _describe(name: str, place: list[int], axes: Sequence[str]) -> str:
    named = [f"{axis}={index}" for axis, index in zip(axes, place, strict=False)]
    rest = place[len(named) :]
    leaf = (name + (f"{rest}" if rest else "")) if name or rest else ""
    return ", ".join([*named, *([leaf] if leaf else [])])
