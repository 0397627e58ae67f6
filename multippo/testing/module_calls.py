"""What a call of a module must look like: its arguments, its output, and what the module holds."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

from multippo.arguments import describe
from multippo.networks.outputs import is_engine_array, wrong_scalars
from multippo.networks.types import StatefulModuleOutput
from multippo.trees import named_leaves, tree_leaves

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
            if not is_engine_array(engine, leaf) or tuple(leaf.shape[:1]) != (batch,):
                what = f"{field}{f' {name!r}' if name else ''}"
                return f"The {what} is {describe(leaf)}; expected an array [B, ...] with B = {batch}."
    return wrong_scalars(engine, out.regularization_loss, out.metrics, batch)


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
                yield f"{path}.{name}" if path else name, describe(held[0])
