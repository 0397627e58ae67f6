"""What a call of a module must look like: its arguments, its output, and what the module holds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from multippo.networks.recording import ACTIVATION_KEY
from multippo.networks.types import StatefulModuleOutput
from multippo.networks.utils import named_leaves, tree_leaves

__all__ = ["inspect_output", "takes_three", "untracked_arrays"]


def takes_three(module: Any) -> bool:
    """Whether a module can be called with ``(state, x, rollout_extras)``."""
    neutral = type(module).__mro__[1]
    try:
        inspect.signature(neutral.__call__).bind(module, None, None, None)
    except TypeError:
        return False
    return True


def inspect_output(engine: Any, out: Any, batch: int) -> str | None:
    """What is wrong with what a call returned, in words; None if nothing is.

    Args:
        engine: The module's.
        out: What came.
        batch: How many environments there were.
    """
    if not isinstance(out, StatefulModuleOutput):
        return f"A call returned a {type(out).__name__}; it must return a StatefulModuleOutput."
    if not tree_leaves(out.output):
        return f"The output is {out.output!r}; expected an array [B, ...], or a tree of them."
    for field in ("output", "rollout_extras"):
        for name, leaf in named_leaves(getattr(out, field)):
            if not _is_array(engine, leaf) or tuple(leaf.shape[:1]) != (batch,):
                what = f"{field}{f' {name!r}' if name else ''}"
                return f"The {what} is {_kind(leaf)}; expected an array [B, ...] with B = {batch}."
    loss = out.regularization_loss
    if not (isinstance(loss, int | float) or (_is_array(engine, loss) and tuple(loss.shape) in ((), (batch,)))):
        return f"regularization_loss is {_kind(loss)}; expected an array [B], here ({batch},), or a number."
    if not isinstance(out.metrics, Mapping):
        return f"metrics is {_kind(out.metrics)}; expected a dict of arrays."
    for name, leaf in named_leaves(_without_activations(out.metrics)):
        if not _is_array(engine, leaf):
            return f"The metric {name!r} is {_kind(leaf)}; expected an array of the engine."
        if tuple(leaf.shape) not in ((), (batch,)):
            return f"The metric {name!r} is {_kind(leaf)}; expected a scalar, or an array [B], here ({batch},)."
    return None


def untracked_arrays(own: list[tuple[str, Any]], engine: Any) -> Iterator[tuple[str, str]]:
    """Attributes of a user's own modules that hold real numbers which are no Param and no Variable.

    Args:
        own: The modules by path.
        engine: Theirs.

    Yields:
        Path of the attribute, and what it holds.
    """
    kind = type(engine.zeros((1,)))
    for path, module in own:
        for name, value in vars(module).items():
            entries = value if isinstance(value, list | tuple) else [value]
            held = [entry for entry in entries if isinstance(entry, kind) and "float" in str(entry.dtype)]
            if held and not name.startswith("_"):
                yield f"{path}.{name}" if path else name, _kind(held[0])


def _without_activations(metrics: Any) -> Any:
    """Metrics but for what a recording module says of its units."""
    if not isinstance(metrics, Mapping):
        return metrics
    return {key: _without_activations(value) for key, value in metrics.items() if key != ACTIVATION_KEY}


def _is_array(engine: Any, leaf: Any) -> bool:
    if isinstance(leaf, type(engine.zeros((1,)))):
        return True
    # While it is compiled, an array is of another type.
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.ndarray | np.generic)


def _kind(value: Any) -> str:
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"a {type(value).__name__} ({value!r})"
