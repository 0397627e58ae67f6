"""``update_statistics`` with and without a mask of the entries that count."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from multippo.trees import tree_map

__all__ = ["needs_only_valid", "takes_valid", "with_mask"]


def takes_valid(update: Callable[..., None]) -> bool:
    """True if an ``update_statistics``, as its author wrote it, takes ``valid``."""
    parameters = inspect.signature(update).parameters.values()
    return any(p.name == "valid" or p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)


def with_mask(update: Callable[..., None]) -> Callable[..., None]:
    """An ``update_statistics(self, rollout_extras)`` as one that takes ``valid``, and is given the valid entries only.

    So parents can hand ``valid`` to any module. Without a valid entry it is not called, since the mean of none is NaN.
    """

    @functools.wraps(update)
    def masked(self: Any, rollout_extras: Any, valid: Any = None) -> None:
        if valid is None:
            update(self, rollout_extras)
        elif bool(self.xp.any(valid)):
            # Boolean indexing: its shape depends on the data, so this path runs outside compiled code.
            update(self, tree_map(lambda x: x[valid][:, None], rollout_extras))

    return masked


@functools.cache
def _class_takes_valid(cls: type) -> bool:
    return takes_valid(cls.update_statistics)  # pyright: ignore[reportAttributeAccessIssue]


def needs_only_valid(module: Any) -> bool:
    """True if a module in the tree takes no mask, so that statistics can't be updated inside compiled code."""
    children = (child for _, child in module.engine.children(module))
    own = not _class_takes_valid(type(module)) if hasattr(type(module), "update_statistics") else False
    return own or any(needs_only_valid(child) for child in children if hasattr(type(child), "update_statistics"))
