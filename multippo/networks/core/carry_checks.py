"""Checks that a carry fits an input: one row for each environment.

Shapes are known before anything is computed, so nothing of this is in compiled code. Without it a carry of one row
would be broadcast over the batch, and all environments have the same noise; and a fused kernel read beyond a short one.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from multippo.arguments import describe
from multippo.trees import named_leaves, tree_leaves

_Method = TypeVar("_Method", bound=Callable[..., Any])


def check_batch(kind: str, state: Any, batch: int) -> None:
    """Raises a ValueError, which names the leaf, unless every leaf of a carry has ``batch`` rows.

    Args:
        kind: Module that was given the carry.
        state: Tree of arrays.
        batch: B.
    """
    for leaf in tree_leaves(state):
        if not getattr(leaf, "shape", ()) or leaf.shape[0] != batch:
            break
    else:
        return
    for name, leaf in named_leaves(state):
        if not getattr(leaf, "shape", ()) or leaf.shape[0] != batch:
            at = f" {name!r}" if name else ""
            raise ValueError(f"{kind} got a carry{at}, {describe(leaf)}; expected {_rows(batch)}.")


def check_rows(kind: str, held: Any, batch: int) -> None:
    """``check_batch`` of one array."""
    if held.shape[0] != batch:
        raise ValueError(f"{kind} got a carry, {describe(held)}; expected {_rows(batch)}.")


def check_steps(kind: str, xs: Any, done: Any) -> None:
    """Checks the inputs of an ``unroll``.

    Args:
        kind: Module that was given them.
        xs: Tree of arrays.
        done: ``[T, B]``.

    Raises:
        ValueError: If a leaf does not begin with the axes of ``done``, or that has zero steps.
        TypeError: If ``done`` does not hold truth values.
    """
    shape = tuple(done.shape)
    if 0 in shape[:1]:
        raise ValueError(f"{kind} got done of shape {shape}, of zero steps; expected [T, B] with a T of at least 1.")
    if str(done.dtype).rpartition(".")[2] != "bool":
        raise TypeError(f"{kind} got done of type {done.dtype}; expected truth values [T, B], such as done > 0.")
    for leaf in (xs,) if hasattr(xs, "shape") else tree_leaves(xs):
        if tuple(leaf.shape[:2]) != shape or len(shape) != 2:
            raise ValueError(
                f"{kind} got inputs of shape {tuple(leaf.shape)} and done of shape {shape}; expected both to begin "
                "with time and batch, [T, B, ...] and [T, B]."
            )


def _is_count(value: Any) -> bool:
    try:
        return not isinstance(value, bool) and operator.index(value) >= 0
    except (TypeError, ValueError):
        return False


def with_batch_size(initialize_state: _Method) -> _Method:
    """``initialize_state`` with a check of its argument, whose error is plainer than a framework's.

    Raises:
        ValueError: When it is called with anything but an integer of at least 0.
    """

    @functools.wraps(initialize_state)
    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        # By whatever name the module calls it.
        for batch_size in (*args, *keywords.values())[:1]:
            if not _is_count(batch_size):
                raise ValueError(
                    f"{type(self).__name__}.initialize_state({batch_size!r}) is not possible: expected a number of "
                    "environments, an integer of at least 0."
                )
        return initialize_state(self, *args, **keywords)

    return cast("_Method", checked)


def take_carry(kind: str, state: Any, names: Sequence[str], shape: tuple[int, ...]) -> list[Any]:
    """The arrays of a carry that is a dict, in the order of ``names``.

    Args:
        kind: Module that was given it.
        state: Carry.
        names: Its entries.
        shape: Of each of them.

    Raises:
        ValueError: If it is not such a dict, or an entry has another shape.
    """
    held: list[Any] = []
    for name in names:
        leaf = state[name] if isinstance(state, dict) and name in state else None
        if leaf is None or leaf.shape != shape:
            received = f"{describe(state)} as its state" if leaf is None else f"a carry {name!r}, {describe(leaf)}"
            raise ValueError(
                f"{kind} got {received}; expected a dict of {', '.join(names)}, each of shape {shape} here, as "
                f"initialize_state({shape[0] if len(shape) > 1 else 'batch_size'}) makes it."
            )
        held.append(leaf)
    return held


def _rows(batch: int) -> str:
    return f"{batch} rows, one for each environment of the input, as initialize_state({batch}) makes them"
