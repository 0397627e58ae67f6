"""Trees whose structure is written down as JSON, so that they can be rebuilt without an example.

Only node types named here exist: a file can't make Python look for a class.
"""

from __future__ import annotations

from typing import Any

import optree

from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState
from multippo.json_files import short

_NAMED = {kind.__name__: kind for kind in (EpisodeState, RewardScale)}


def describe(tree: Any) -> Any:
    """The structure of a tree of dicts with string keys, lists, tuples, None and the NamedTuples known here.

    ``null`` is None, ``"array"`` a leaf, and an object with one entry a node: its kind, and what it holds.

    Raises:
        TypeError: If the tree has another kind of node.

    >>> describe({"a": [1.0, None]})
    {'dict': {'a': {'list': ['array', None]}}}
    """
    kind = type(tree)
    if tree is None:
        return None
    if kind in _NAMED.values():
        return {kind.__name__: {name: describe(value) for name, value in tree._asdict().items()}}
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(f"A dict with keys {list(tree)} can't be described in a checkpoint; expected strings.")
        return {"dict": {key: describe(value) for key, value in tree.items()}}
    if kind in (list, tuple):
        return {kind.__name__: [describe(item) for item in tree]}
    if isinstance(tree, list | tuple):
        raise TypeError(f"A {kind.__name__} can't be described in a checkpoint; known are {', '.join(sorted(_NAMED))}.")
    return "array"


def rebuild(description: Any) -> Any:
    """The tree that ``describe`` wrote down, with ``"array"`` for each leaf.

    Raises:
        ValueError: If it is not a description.

    >>> rebuild(describe({"a": [1.0, None]}))
    {'a': ['array', None]}
    """
    if description is None or description == "array":
        return description
    kind, held = next(iter(description.items())) if isinstance(description, dict) and len(description) == 1 else ("", 0)
    if isinstance(held, list) and kind in ("list", "tuple"):
        items = [rebuild(item) for item in held]
        return items if kind == "list" else tuple(items)
    if isinstance(held, dict) and kind in ("dict", *_NAMED):
        parts = {name: rebuild(item) for name, item in held.items()}
        if kind == "dict":
            return parts
        # Fields that were added later have defaults.
        if set(parts) <= set(_NAMED[kind]._fields) <= {*parts, *_NAMED[kind]._field_defaults}:
            return _NAMED[kind](**parts)
    raise ValueError(f"{short(description)} describes no structure that is known")


def rebuild_episodes(description: Any) -> EpisodeState:
    """The ``EpisodeState`` of a description, as ``rebuild`` does.

    Raises:
        ValueError: If it describes something else.
    """
    found = rebuild(description)
    if isinstance(found, EpisodeState) and found.reward == found.length == "array":
        scales: list[Any] = optree.tree_leaves(found.scale, is_leaf=lambda node: isinstance(node, RewardScale))
        if all(scale == RewardScale("array", "array", "array", "array") for scale in scales):
            return found
    raise ValueError(f"{short(description)} does not describe the sums of episodes")


def leaves_by_path(tree: Any, root: str) -> dict[str, Any]:
    """The leaves of a tree by their paths, in the tree's order.

    >>> leaves_by_path({"a": [1.0, None, 2.0]}, "x")
    {"x['a'][0]": 1.0, "x['a'][2]": 2.0}
    """
    accessors, leaves, _ = optree.tree_flatten_with_accessor(tree)
    return {accessor.codify(root): leaf for accessor, leaf in zip(accessors, leaves, strict=True)}
