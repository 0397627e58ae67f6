"""Attributes that a module holds beside its arrays, and those that were written to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from multippo.networks.types import StatefulModule

_FRAMEWORKS = frozenset({"builtins", "flax", "functools", "jax", "jaxlib", "multippo", "numpy", "optree", "torch"})
"""Packages whose objects keep books of their own, or are Variables, and so may change."""

_DEPTH = 3
"""Levels of nested objects of a user's own classes that are looked into."""


def named_parts(module: Any) -> Iterator[tuple[str, Any]]:
    """Yields a module and the StatefulModules below, with their paths; that of the module itself is empty."""

    def walk(node: Any, path: str) -> Iterator[tuple[str, Any]]:
        yield path, node
        for name, child in node.engine.children(node):
            if isinstance(child, StatefulModule):
                yield from walk(child, f"{path}.{name}" if path else name)

    return walk(module, "")


def plain_attributes(module: Any) -> dict[str, Any]:
    """Attributes of a module and its children, by path, in a form that is unequal after a write."""
    return {
        f"{path}.{name}" if path else name: _as_it_is(value)
        for path, part in named_parts(module)
        for name, value in vars(part).items()
        if not name.startswith("_pytree__")  # NNX's own books
    }


def written_attributes(module: Any, before: dict[str, Any]) -> set[str]:
    """Paths of attributes that were written to since ``plain_attributes`` returned ``before``."""
    after, absent = plain_attributes(module), object()
    return {name for name in {**before, **after} if before.get(name, absent) != after.get(name, absent)}


class _Same:
    """Mark of an object, equal to marks of the same object as long as nothing is written to it.

    The object is held, so that no other one gets its address.
    """

    def __init__(self, held: Any, depth: int) -> None:
        self._held = held
        self._writes = _writes(held)
        own = type(held).__module__.partition(".")[0] not in _FRAMEWORKS and not isinstance(held, type | StatefulModule)
        inside = getattr(held, "__dict__", None) if own and depth else None
        self._inside = _as_it_is(dict(inside), depth - 1) if isinstance(inside, Mapping) else None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, _Same) or self._held is not other._held:
            return False
        return self._writes == other._writes and self._inside == other._inside

    __hash__ = object.__hash__


def _as_it_is(value: Any, depth: int = _DEPTH) -> Any:
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return type(value), value
    if isinstance(value, np.ndarray):
        return value.dtype, value.shape, value.tobytes()
    if isinstance(value, Mapping) and not isinstance(value, StatefulModule):
        return type(value), [(str(key), _as_it_is(item, depth)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [_as_it_is(item, depth) for item in value]
    return _Same(value, depth)


def _writes(value: Any) -> int:
    """Number of times that torch has written to a tensor in place; 0 for all else."""
    try:
        return int(value._version)
    except (AttributeError, RuntimeError, TypeError):
        return 0
