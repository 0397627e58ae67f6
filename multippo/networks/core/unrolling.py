"""Running a module over time: checks that a carry fits an input, the reference scan, and the fold without a carry.

A carry has one row for each environment. Without a check a carry of one row would be broadcast over the batch, and all
environments would have the same noise; and a fused kernel would read beyond a short one. Shapes are known before
anything is computed, so the check is not in compiled code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar, cast

from multippo.arguments import describe, is_integer
from multippo.networks.core.outputs import is_constant, per_environment
from multippo.trees import named_leaves, select, tree_leaves, tree_map

_Method = TypeVar("_Method", bound=Callable[..., Any])


def check_batch(kind: str, state: Any, batch: int) -> None:
    """Raises a ValueError, which names the leaf, unless every leaf of a carry has ``batch`` rows.

    Args:
        kind: Name of the module that was given the carry.
        state: Tree of arrays.
        batch: Number of environments, B.
    """
    if all(getattr(leaf, "shape", ())[:1] == (batch,) for leaf in tree_leaves(state)):
        return
    for name, leaf in named_leaves(state):
        if getattr(leaf, "shape", ())[:1] != (batch,):
            at = f" {name!r}" if name else ""
            raise ValueError(f"{kind} got a carry{at}, {describe(leaf)}; expected {_rows(batch)}.")


def check_rows(kind: str, held: Any, batch: int) -> None:
    """Raises a ValueError unless one array of a carry has ``batch`` rows."""
    if held.shape[0] != batch:
        raise ValueError(f"{kind} got a carry, {describe(held)}; expected {_rows(batch)}.")


def check_steps(kind: str, xs: Any, done: Any) -> None:
    """Checks the inputs of an ``unroll``.

    Args:
        kind: Name of the module that was given the inputs.
        xs: Tree of ``[T, B, ...]`` arrays.
        done: ``[T, B]`` bool.

    Raises:
        ValueError: If a leaf does not begin with the axes of ``done``, or ``done`` has zero steps.
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


def with_batch_size(initialize_state: _Method) -> _Method:
    """``initialize_state`` with a check of its argument, whose error is plainer than a framework's.

    Raises:
        ValueError: In a call with anything but an integer of at least 0.
    """

    @functools.wraps(initialize_state)
    def checked(self: Any, *args: Any, **keywords: Any) -> Any:
        # The first argument, whatever its name in the module.
        for batch_size in (*args, *keywords.values())[:1]:
            if not is_integer(batch_size, 0):
                raise ValueError(
                    f"{type(self).__name__}.initialize_state({batch_size!r}) is not possible: expected a number of "
                    "environments, an integer of at least 0."
                )
        return initialize_state(self, *args, **keywords)

    return cast("_Method", checked)


def take_carry(kind: str, state: Any, names: Sequence[str], shape: tuple[int, ...]) -> list[Any]:
    """The arrays of a carry that is a dict, in the order of ``names``.

    Args:
        kind: Name of the module that was given the carry.
        state: Carry.
        names: Entries of the carry.
        shape: Shape of each entry.

    Raises:
        ValueError: If ``state`` is not a dict with these entries, or an entry has another shape.
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


def reset_where(module: Any, done: Any, state: Any) -> Any:
    """``module.reset_state(state)`` for the environments where ``done`` holds, ``state`` for the others."""
    if not tree_leaves(state):
        return state
    # A copy, since a reset that writes to its argument would write to all environments' carries.
    return select(module.xp, done, module.reset_state(module.engine.writable(state)), state)


def scan_unroll(module: Any, state: Any, xs: Any, done: Any, rollout_extras: Any) -> Any:
    """The default of ``StatefulModule.unroll``: one folded call without a carry, else step by step."""
    kind = type(module).__name__
    check_steps(kind, xs, done)
    check_batch(kind, state, done.shape[1])
    if not tree_leaves(state):
        return fold_unroll(module, state, xs, rollout_extras, done.shape)
    return step_unroll(module, state, xs, done, rollout_extras)


def step_unroll(module: Any, state: Any, xs: Any, done: Any, rollout_extras: Any) -> Any:
    """The reference of every parallel ``unroll``: call, reset where done, next step."""

    def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
        x, done_t, extras_t = inputs
        out = module(carry, x, extras_t)
        loss = out.regularization_loss
        if not hasattr(loss, "shape") or tuple(loss.shape) != tuple(done_t.shape):
            loss = per_environment("regularization_loss", loss, module.engine.zeros(done_t.shape))
        metrics = _with_arrays(module, out.metrics)
        stacked = out._replace(next_state=(), regularization_loss=loss, metrics=metrics)
        return reset_where(module, done_t, out.next_state), stacked

    carry, stacked = module.engine.scan(body, state, (xs, done, rollout_extras), done.shape[0])
    return stacked._replace(next_state=carry)


def fold_unroll(module: Any, state: Any, xs: Any, rollout_extras: Any, time_batch: tuple[int, int]) -> Any:
    """Runs a module without a carry once, on all ``T * B`` rows."""
    time, batch = time_batch
    xp = module.xp
    out = module(state, fold_time(xp, xs), fold_time(xp, rollout_extras))
    loss = out.regularization_loss
    return out._replace(
        next_state=state,
        output=unfold_time(xp, out.output, time, batch),
        regularization_loss=unfold_time(xp, loss, time, batch) if hasattr(loss, "shape") else loss,
        metrics=unfold_time(xp, _with_arrays(module, out.metrics), time, batch),
        rollout_extras=unfold_time(xp, out.rollout_extras, time, batch),
    )


def fold_time(xp: Any, tree: Any) -> Any:
    """``[T, B, ...]`` to ``[T * B, ...]``, leaf by leaf."""
    return tree_map(lambda x: xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), tree)


def unfold_time(xp: Any, tree: Any, time: int, batch: int) -> Any:
    """``[T * B, ...]`` to ``[T, B, ...]``, leaf by leaf; scalars stay."""
    return tree_map(lambda x: xp.reshape(x, (time, batch, *x.shape[1:])) if x.ndim else x, tree)


def shift_in_time(xp: Any, past: Any, xs: Any, done: Any, start: Any = None) -> Any:
    """Values of K steps before each of T steps and after them, with ``start`` where another episode began since.

    Args:
        xp: Array namespace.
        past: Values of the K steps before the first one, ``[K, B, ...]``, the oldest first; ``start`` where there was
            none.
        xs: Values of the T steps, ``[T, B, ...]``.
        done: ``[T, B]`` bool, True where an episode ends after the step.
        start: Value that broadcasts to ``[...]``; None for zeros.

    Returns:
        ``[T + K, B, ...]``: entry t is step t - K as seen at step t, for t < T; the last K entries are ``past`` for the
        next T steps.
    """
    delay, time = past.shape[0], done.shape[0]
    ended = xp.cumulative_sum(xp.astype(done, xp.int32), axis=0)
    ended = xp.concat((xp.zeros_like(ended[:1]), ended), axis=0)
    # Steps are of one episode if equally many have ended before; the past is of the first step's, or ``start``.
    at_source = xp.concat((*[ended[:1]] * delay, ended[:time]), axis=0)
    at_reader = xp.concat((ended[:time], *[ended[time:]] * delay), axis=0)
    values = xp.concat((past, xs), axis=0)
    kept = xp.reshape(at_source == at_reader, (time + delay, -1) + (1,) * (values.ndim - 2))
    return xp.where(kept, values, xp.zeros_like(values) if start is None else start)


def _with_arrays(module: Any, metrics: Any) -> Any:
    """Metrics with scalar arrays in place of numbers, which can't be stacked."""
    return tree_map(lambda x: module.engine.zeros(()) + float(x) if is_constant(x) else x, metrics)
