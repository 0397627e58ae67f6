"""Trees of arrays: one vocabulary for every engine, over optree.

Dicts are walked in sorted key order, None is an empty subtree, tuples and NamedTuples are nodes: the conventions of
JAX's own trees, so that a structure means the same to both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optree


def tree_map(function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Applies ``function`` leaf by leaf to trees of one structure."""
    return optree.tree_map(function, tree, *rest)


def map_once(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies ``function`` to every leaf of one tree; an array that stands in two places stays one.

    >>> x, y = [1.0], object()
    >>> results = map_once(lambda leaf: object(), {"a": y, "b": y})
    >>> results["a"] is results["b"]
    True
    """
    found = {id(leaf): leaf for leaf in optree.tree_leaves(tree)}
    results = {key: function(leaf) for key, leaf in found.items()}
    return optree.tree_map(lambda leaf: results[id(leaf)], tree)


def tree_leaves(tree: Any) -> list[Any]:
    """The leaves of a tree, in order, with a fast path for a lone array."""
    return [tree] if hasattr(tree, "shape") else optree.tree_leaves(tree)


def tree_structure(tree: Any) -> Any:
    """The structure of a tree, which can be compared."""
    return optree.tree_structure(tree)


def tree_unflatten(structure: Any, leaves: Iterable[Any]) -> Any:
    """The tree of a structure with the given leaves, in order."""
    return optree.tree_unflatten(structure, leaves)


def tree_sum(tree: Any) -> Any:
    """The sum of all leaves of a tree, in order, without a zero in front."""
    first, *rest = optree.tree_leaves(tree)
    return sum(rest, first)


def named_leaves(tree: Any) -> list[tuple[str, Any]]:
    """The leaves of a tree with their paths, such as ``("camera.left", array)``; the path of a lone array is empty."""
    paths, leaves, _ = optree.tree_flatten_with_path(tree)
    return [(".".join(str(part) for part in path), leaf) for path, leaf in zip(paths, leaves, strict=True)]


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Applies ``function`` to every leaf of one tree, with a fast path for a lone array."""
    return function(tree) if hasattr(tree, "shape") else optree.tree_map(function, tree)


def map_named(function: Callable[[str, Any], Any], tree: Any) -> Any:
    """Applies ``function`` to the path, as in ``named_leaves``, and the array of every leaf of one tree."""
    if hasattr(tree, "shape"):
        return function("", tree)
    names = iter(name for name, _ in named_leaves(tree))
    return optree.tree_map(lambda leaf: function(next(names), leaf), tree)


def canonical_leaves(tree: Any) -> list[Any]:
    """The leaves of a tree by sorted keys, whatever the order of insertion, for every kind of dict.

    Raises:
        TypeError: If the keys of a dict have no common order.
    """
    if isinstance(tree, Mapping):
        try:
            keys = sorted(tree)
        except TypeError:
            raise TypeError(f"The keys {list(tree)} have no common order; give a dict keys of one kind.") from None
        return [leaf for key in keys for leaf in canonical_leaves(tree[key])]
    if isinstance(tree, tuple | list):
        return [leaf for entry in tree for leaf in canonical_leaves(entry)]
    return [] if tree is None else [tree]


def select(xp: Any, condition: Any, if_true: Any, if_false: Any) -> Any:
    """Selects row by row of the batch ``if_true`` where ``condition`` holds, else ``if_false``.

    Args:
        xp: Array namespace.
        condition: ``[B]`` (or ``[T, B]``) bool.
        if_true: Tree of arrays that lead with the axes of ``condition``.
        if_false: Tree like ``if_true``.
    """

    def pick(a: Any, b: Any) -> Any:
        return xp.where(xp.reshape(condition, condition.shape + (1,) * (a.ndim - condition.ndim)), a, b)

    return tree_map(pick, if_true, if_false)
