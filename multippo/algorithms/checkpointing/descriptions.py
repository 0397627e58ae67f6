"""Trees whose structure is written down as JSON, so that they can be rebuilt without an example.

Only node types named here exist: a file can't make Python look for a class.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from multippo.algorithms.reward_scaling import RewardScale
from multippo.algorithms.types import EpisodeState

__all__ = ["describe", "named_arrays", "rebuild"]

_NAMED = {kind.__name__: kind for kind in (EpisodeState, RewardScale)}
_DEEPEST = 50


def describe(tree: Any) -> Any:
    """The structure of a tree of dicts with string keys, lists, tuples, None and the NamedTuples known here.

    ``null`` is None, ``"array"`` a leaf, and an object with one entry a node: its kind, and what it holds.

    Raises:
        TypeError: If the tree has another kind of node.

    >>> describe({"a": [1.0, None]})
    {'dict': {'a': {'list': ['array', None]}}}
    """
    if tree is None:
        return None
    kind = type(tree).__name__
    if (fields := _fields(tree)) is not None:
        return {kind: {name: describe(value) for name, value in fields.items()}}
    if isinstance(tree, dict):
        if not all(isinstance(key, str) for key in tree):
            raise TypeError(f"A dict with keys {list(tree)} can't be described in a checkpoint; expected strings.")
        return {"dict": {key: describe(value) for key, value in tree.items()}}
    if isinstance(tree, list | tuple):
        if type(tree) not in (list, tuple):
            raise TypeError(f"A {kind} can't be described in a checkpoint; known are {', '.join(sorted(_NAMED))}.")
        return {kind: [describe(item) for item in tree]}
    return "array"


def named_arrays(tree: Any, name: str) -> dict[str, Any]:
    """The leaves of such a tree by their paths, such as ``episodes.scale['goal'].mean``.

    >>> named_arrays({"a": [1.0, None, 2.0]}, "x")
    {"x['a'][0]": 1.0, "x['a'][2]": 2.0}
    """
    if tree is None:
        return {}
    if (fields := _fields(tree)) is not None:
        parts = [(f"{name}.{field}", value) for field, value in fields.items()]
    elif isinstance(tree, dict):
        parts = [(f"{name}[{key!r}]", value) for key, value in tree.items()]
    elif isinstance(tree, list | tuple):
        parts = [(f"{name}[{index}]", value) for index, value in enumerate(tree)]
    else:
        return {name: tree}
    return {path: leaf for part, value in parts for path, leaf in named_arrays(value, part).items()}


def rebuild(description: Any, arrays: Mapping[str, Any], name: str, depth: int = 0) -> Any:
    """The tree that ``describe`` and ``named_arrays`` took apart.

    Raises:
        ValueError: If the description is none, or an array is missing.

    >>> tree = {"a": [1.0, None]}
    >>> rebuild(describe(tree), named_arrays(tree, "x"), "x")
    {'a': [1.0, None]}
    """
    if description is None:
        return None
    if description == "array":
        if name not in arrays:
            raise ValueError(f"the array {name!r} is missing")
        return arrays[name]
    if depth > _DEEPEST or not isinstance(description, dict) or len(description) != 1:
        raise ValueError(f"the structure of {name!r} is none that is known")
    ((kind, held),) = description.items()
    below = depth + 1
    if isinstance(held, list) and kind in ("list", "tuple"):
        items = [rebuild(item, arrays, f"{name}[{index}]", below) for index, item in enumerate(held)]
        return items if kind == "list" else tuple(items)
    if isinstance(held, dict) and kind == "dict":
        return {key: rebuild(value, arrays, f"{name}[{key!r}]", below) for key, value in held.items()}
    if isinstance(held, dict) and kind in _NAMED and set(held) <= set(_NAMED[kind]._fields):
        fields = {field: rebuild(value, arrays, f"{name}.{field}", below) for field, value in held.items()}
        return _NAMED[kind](**fields)
    raise ValueError(f"the structure of {name!r} is none that is known")


def _fields(tree: Any) -> dict[str, Any] | None:
    """What a NamedTuple known here holds; None for anything else."""
    known = type(tree) in _NAMED.values()
    return dict(zip(type(tree)._fields, tree, strict=True)) if known else None
