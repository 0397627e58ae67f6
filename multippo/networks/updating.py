"""Handing a rollout's snapshots to ``update_statistics``."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from multippo.networks.utils import tree_map

__all__ = ["needs_only_valid", "update_child"]


@functools.cache
def _takes_valid(cls: type) -> bool:
    parameters = inspect.signature(cls.update_statistics).parameters.values()  # pyright: ignore[reportAttributeAccessIssue]
    return any(p.name == "valid" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def update_child(child: Any, rollout_extras: Any, valid: Any) -> None:
    """Calls ``child.update_statistics``, with the mask if it takes one, else with the valid entries only.

    Args:
        child: A StatefulModule.
        rollout_extras: What it emitted, ``[T, B, ...]``.
        valid: ``[T, B]`` bool, or None where every entry counts.
    """
    if _takes_valid(type(child)):
        child.update_statistics(rollout_extras, valid=valid)
    elif valid is None:
        child.update_statistics(rollout_extras)
    else:
        # Boolean indexing: its shape depends on the data, so this path runs outside compiled code.
        child.update_statistics(tree_map(lambda x: x[valid][:, None], rollout_extras))


def needs_only_valid(module: Any) -> bool:
    """Whether a module in the tree takes no mask, so that statistics can't be updated inside compiled code."""
    children = (child for _, child in module.engine.children(module))
    own = not _takes_valid(type(module)) if hasattr(type(module), "update_statistics") else False
    return own or any(needs_only_valid(child) for child in children if hasattr(type(child), "update_statistics"))
