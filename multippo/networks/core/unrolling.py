"""Running a module over time: the reference scan, and the fold for modules without a carry."""

from __future__ import annotations

from typing import Any

from multippo.networks.core.carry_checks import check_batch, check_steps
from multippo.networks.core.outputs import is_constant, per_environment
from multippo.trees import select, tree_leaves, tree_map


def reset_where(module: Any, done: Any, state: Any) -> Any:
    """``module.reset_state(state)`` for the environments where ``done`` holds, ``state`` for the others."""
    if not tree_leaves(state):
        return state
    # A copy, since a reset that writes to what it is given would write to all environments' carries.
    return select(module.xp, done, module.reset_state(module.engine.writable(state)), state)


def scan_unroll(module: Any, state: Any, xs: Any, done: Any, rollout_extras: Any) -> Any:
    """The default of ``StatefulModule.unroll``: folded where there is no carry, else step by step."""
    kind = type(module).__name__
    check_steps(kind, xs, done)
    check_batch(kind, state, done.shape[1])
    if not tree_leaves(state):
        return fold_unroll(module, state, xs, rollout_extras, done.shape)
    return step_unroll(module, state, xs, done, rollout_extras)


def step_unroll(module: Any, state: Any, xs: Any, done: Any, rollout_extras: Any) -> Any:
    """The reference that every parallel ``unroll`` is held to: call, reset where done, next step."""

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
    """Values of K steps before each of T steps and after them; ``start`` where another episode began since.

    Args:
        xp: Array namespace.
        past: ``[K, B, ...]``, the K steps before the first one, the oldest first; ``start`` where there was none.
        xs: ``[T, B, ...]``.
        done: ``[T, B]`` bool; an episode ends after that step.
        start: Broadcasts to ``[...]``; None for zeros.

    Returns:
        ``[T + K, B, ...]``: entry t is step t - K as seen at step t, for t < T; the last K are what the next T steps
        would be given as ``past``.
    """
    delay, time = past.shape[0], done.shape[0]
    ended = xp.cumulative_sum(xp.astype(done, xp.int32), axis=0)
    ended = xp.concat((xp.zeros_like(ended[:1]), ended), axis=0)
    # A step is of the same episode if as many have ended before it; the past is of the first step's, or ``start``.
    at_source = xp.concat((*[ended[:1]] * delay, ended[:time]), axis=0)
    at_reader = xp.concat((ended[:time], *[ended[time:]] * delay), axis=0)
    values = xp.concat((past, xs), axis=0)
    kept = xp.reshape(at_source == at_reader, (time + delay, -1) + (1,) * (values.ndim - 2))
    return xp.where(kept, values, xp.zeros_like(values) if start is None else start)


def _with_arrays(module: Any, metrics: Any) -> Any:
    """Metrics with scalar arrays in the place of numbers, which can't be stacked."""
    return tree_map(lambda x: module.engine.zeros(()) + float(x) if is_constant(x) else x, metrics)
