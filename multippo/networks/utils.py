"""Trees of arrays: one vocabulary for both engines, over optree; and the layers that rearrange trees, by name.

Dicts are walked in sorted key order, None is an empty subtree, tuples and NamedTuples are nodes; the same conventions
as JAX's own trees, so a structure means the same to both.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

if TYPE_CHECKING:
    from multippo.networks.containers import Map, Merge
    from multippo.networks.structure import Filter, Flattener, Scale

__all__ = [
    "Filter",
    "Flattener",
    "Map",
    "Merge",
    "Scale",
    "canonical_leaves",
    "check_features",
    "check_leaves",
    "check_size",
    "describe",
    "map_leaves",
    "map_named",
    "named_leaves",
    "select",
    "tree_leaves",
    "tree_map",
    "tree_structure",
]

_LAYERS = {
    "Filter": "multippo.networks.structure",
    "Flattener": "multippo.networks.structure",
    "Map": "multippo.networks.containers",
    "Merge": "multippo.networks.containers",
    "Scale": "multippo.networks.structure",
}
"""Layers that are written elsewhere. They import this module, so it can't import them first."""


def __getattr__(name: str) -> Any:
    if name in _LAYERS:
        return getattr(importlib.import_module(_LAYERS[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Applies ``function`` leaf by leaf to trees of one structure."""
    return optree.tree_map(function, tree, *rest)


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves, in order."""
    return optree.tree_leaves(tree)


def tree_structure(tree: Any) -> Any:
    """The structure alone; comparable."""
    return optree.tree_structure(tree)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """Leaves with their paths, such as ``("camera.left", array)``; the path of a lone array is empty."""
    paths, leaves, _ = optree.tree_flatten_with_path(tree)
    return [(".".join(str(part) for part in path), leaf) for path, leaf in zip(paths, leaves, strict=True)]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """``tree_map`` of one tree, with a fast path for a lone array."""
    return function(tree) if hasattr(tree, "shape") else optree.tree_map(function, tree)


def map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """``tree_map`` of one tree by a function of a leaf's path, as in ``named_leaves``, and the leaf."""
    if hasattr(tree, "shape"):
        return function("", tree)
    names = iter(name for name, _ in named_leaves(tree))
    return optree.tree_map(lambda leaf: function(next(names), leaf), tree)


def canonical_leaves(tree: Any) -> list[Any]:
    """The leaves in an order that does not depend on that of insertion: sorted keys, for every kind of dict."""
    if isinstance(tree, Mapping):
        try:
            keys = sorted(tree)
        except TypeError:
            raise TypeError(f"The keys {list(tree)} have no common order; give a dict keys of one kind.") from None
        return [leaf for key in keys for leaf in canonical_leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for entry in tree for leaf in canonical_leaves(entry)]
    return [] if tree is None else [tree]


def all_modules(module: Any) -> Iterator[Any]:
    """A bound module and everything below it, native modules included."""
    engine = module.engine

    def walk(node: Any) -> Iterator[Any]:
        yield node
        for _, child in engine.children(node):
            yield from walk(child)

    return walk(module)


def select(xp: Any, condition: Any, if_true: Any, if_false: Any) -> Any:
    """Row by row of the batch: ``if_true`` where ``condition`` holds, else ``if_false``.

    Args:
        xp: Array namespace.
        condition: ``[B]`` (or ``[T, B]``) bool.
        if_true: Tree of arrays that lead with the axes of ``condition``.
        if_false: Like ``if_true``.
    """

    def pick(a: Any, b: Any) -> Any:
        return xp.where(xp.reshape(condition, condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return tree_map(pick, if_true, if_false)


def describe(x: Any) -> str:
    """What something is, in an error's words: its entries, its shape, or its type."""
    if isinstance(x, Mapping):
        return f"a dict with the entries {sorted(map(str, x))}"
    if isinstance(x, tuple | list):
        return f"a {type(x).__name__} of {len(x)} entries" if x else f"an empty {type(x).__name__}"
    return f"an array of shape {tuple(x.shape)}" if hasattr(x, "shape") else f"a {type(x).__name__}"


def check_size(kind: str, name: str, size: Any) -> int:
    """A layer's size, as an int.

    Raises:
        ValueError: If it is no integer of at least 1; the error names the layer and the argument.
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or size < 1:
        raise ValueError(f"{kind}({name}={size!r}) is not possible: expected an integer of at least 1.")
    return int(size)


def check_features(kind: str, x: Any, features: int) -> None:
    """Refuses an input of a layer that is no array with the layer's features on its last axis.

    Raises:
        TypeError: If it is no array.
        ValueError: If its last axis has another size.
    """
    if not hasattr(x, "shape"):
        raise TypeError(f"{kind} got {describe(x)}; expected an array with {features} features on the last axis.")
    if not x.shape or x.shape[-1] != features:
        raise ValueError(
            f"{kind} got an input of shape {tuple(x.shape)}; expected {features} features on the last axis."
        )


def check_leaves(kind: str, x: Any, names: list[str], lone: str = "an array") -> None:
    """Refuses an input whose leaves do not go by these names.

    Args:
        kind: Who was given it.
        x: A tree of arrays.
        names: As in ``named_leaves``, in any order; the empty one alone for a lone array.
        lone: What an error calls that.

    Raises:
        ValueError: If it has other leaves, fewer or more.
    """
    received, expected = sorted(name for name, _ in named_leaves(x)), sorted(names)
    if received != expected:
        if expected == [""]:
            raise ValueError(f"{kind} got {describe(x)}; expected {lone}.")
        if received in ([], [""]):
            raise ValueError(f"{kind} got {describe(x)}; expected a tree with leaves {expected}.")
        raise ValueError(f"{kind} got an input with leaves {received}; expected {expected}.")
