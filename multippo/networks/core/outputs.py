"""Checks of a call's loss and metrics, one number for each environment; and the actions of samplers."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from multippo.arguments import describe
from multippo.trees import tree_leaves

ACTIVATION_KEY = "activations"
"""Key of a module's activations in its metrics."""


class Draw(NamedTuple):
    """An action that a sampler has put out.

    Attributes:
        sampler: The ``ActionSampler``.
        action: The action, ``[B, *action shape]``.
        num_choices: Result of ``ActionSampler.num_choices``; None if it is not known.
    """

    sampler: Any
    action: Any
    num_choices: Any


recorders: list[list[Draw]] = []
"""Lists to which every sampler adds its actions while a network is looked at before its first step."""


@contextlib.contextmanager
def drawing() -> Generator[list[Draw]]:
    """Yields a list to which every sampler called inside the block adds its action."""
    draws: list[Draw] = []
    recorders.append(draws)
    try:
        yield draws
    finally:
        recorders.remove(draws)


def is_constant(value: Any) -> bool:
    """True for a number of Python or NumPy, which stands for the same number in every environment."""
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def is_engine_array(engine: Any, leaf: Any) -> bool:
    """True for an array of the engine, or its placeholder while a function is compiled."""
    if isinstance(leaf, type(engine.zeros((1,)))):
        return True
    # An array in a function that is compiled is of another type.
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.ndarray | np.generic)


def check_scalars(module: Any, x: Any, out: Any) -> None:
    """Checks the loss and the metrics of a call, before the first step of a run.

    Args:
        module: Module that was called.
        x: Input of the call, a tree of ``[B, ...]`` arrays.
        out: Result of the call, a ``StatefulModuleOutput``.

    Raises:
        ValueError: If the metrics are not a dict, or loss or metrics are not one number for each environment.
    """
    leaves = tree_leaves(x)
    wrong = wrong_scalars(module.engine, out.regularization_loss, out.metrics, leaves[0].shape[0]) if leaves else None
    if wrong is not None:
        raise ValueError(wrong)


def wrong_scalars(engine: Any, loss: Any, metrics: Any, batch: int) -> str | None:
    """Describes the fault of the loss and the metrics of a call; None without one.

    Args:
        engine: Engine of the module.
        loss: ``regularization_loss`` of the output.
        metrics: Metrics of the output.
        batch: B, the number of environments.
    """
    # A loss of another shape would broadcast against the other losses: [B, 1] and [B] to [B, B].
    if not isinstance(metrics, Mapping):
        return f"metrics is {describe(metrics)}; expected a dict of arrays."
    named = [(f"The metric {name!r}", leaf) for name, leaf in _entries(metrics)]
    for name, leaf in (("regularization_loss", loss), *named):
        if not is_constant(leaf) and not (is_engine_array(engine, leaf) and tuple(leaf.shape) in ((), (batch,))):
            further = len(getattr(leaf, "shape", ())) > 1
            mend = " Sum or average over its other axes, such as xp.sum(..., axis=-1)." if further else ""
            return f"{name} is {describe(leaf)}; expected a number, or an array [B], here ({batch},).{mend}"
    return None


def _entries(metrics: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Metrics by their names in logs, without the activations of recording modules."""
    for name, value in metrics.items():
        if isinstance(value, Mapping) and name != ACTIVATION_KEY:
            yield from _entries(value, f"{prefix}{name}/")
        elif name != ACTIVATION_KEY:
            yield f"{prefix}{name}", value


def per_environment(what: str, value: Any, like: Any) -> Any:
    """A loss or a metric as an array like ``like``, with a scalar repeated for every environment.

    Args:
        what: Name of the value in the error.
        value: Number, scalar array, or array of the shape of ``like``.
        like: Zeros ``[B]`` or ``[T, B]``.

    Raises:
        ValueError: If ``value`` is of another shape, which would broadcast.
    """
    if is_constant(value):
        return like + float(value)
    if tuple(value.shape) not in ((), tuple(like.shape)):
        raise ValueError(
            f"{what} is {describe(value)}; expected one number for each environment, of shape {tuple(like.shape)}, "
            "or a scalar."
        )
    return value + like
