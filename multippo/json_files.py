"""The one reader of JSON, for files that may come from anywhere: strict, with limits, checked against types.

A description of a file is a type: ``dict[str, float | None]``, or ``Annotated[int, Limit(...)]`` for a narrower one.
"""

from __future__ import annotations

import json
import math
import types
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from multippo.atomic_files import LIMIT, read_bytes

_DEEPEST = 100
_INTEGERS = range(-(2**63), 2**64)
_MOST_SHOWN = 200
_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}


class Limit(NamedTuple):
    """A narrowing of a type, in ``Annotated[TYPE, Limit(...)]``.

    Attributes:
        holds: Returns something true for a value that is within it.
        words: The type in words, for errors.
    """

    holds: Callable[[Any], Any]
    words: str


FormatVersion = Annotated[int, Limit(lambda version: version >= 1, "an integer of at least 1")]


def read_json(path: Path, limit: int = LIMIT, *, follow: bool = False) -> Any:
    """The value in a file of JSON.

    Args:
        path: The file.
        limit: Bytes at most.
        follow: True if it may be a link, see ``atomic_files.read_bytes``.

    Raises:
        ValueError: If it is not JSON as ``parse_json`` takes it, not a regular file, or too large.
        OSError: If it is missing or can't be read.
    """
    content = read_bytes(path, limit=limit, follow=follow)
    try:
        return parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: If it is not JSON, if an object names a key twice, if it is nested more than 100 deep, or if a
            number is not finite or beyond 64 bits.

    >>> parse_json('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: it names 'a' twice
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    level: Iterable[Any] = [value]
    for _ in range(_DEEPEST):
        level = [item for node in level for item in _held(node)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def checked(value: Any, hint: Any, name: str) -> Any:
    """Returns a value that is of a type.

    Args:
        value: From ``parse_json``.
        hint: A type of JSON's (``int``, ``float``, which has the integers, ``str``, ``bool``, ``None``, ``list[X]``,
            ``dict[str, X]``), ``Any``, a union, or one with a ``Limit``. A truth value is not a number.
        name: Its name in the error.

    Raises:
        ValueError: If it is not.

    >>> checked({"a": 1, "b": None}, dict[str, float | None], "line")
    {'a': 1, 'b': None}
    >>> checked(True, int, "step")
    Traceback (most recent call last):
    ValueError: step is True; expected an integer
    """
    if not _is(value, hint):
        raise ValueError(f"{name} is {short(value)}; expected {_words(hint)}")
    return value


def short(value: Any) -> str:
    """The ``repr`` of a value, cut off where it is longer than an error should be."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = set[str]()
        twice = next(name for name, _ in pairs if name in names or names.add(name))
        raise ValueError(f"it names {short(twice)} twice")
    return found


def _held(node: Any) -> Iterable[Any]:
    """Entries of a node of a tree; a number beyond 64 bits or not finite is refused."""
    if isinstance(node, dict | list):
        return node.values() if isinstance(node, dict) else node
    if isinstance(node, float) and not math.isfinite(node):
        raise ValueError(f"{node} is not a number that JSON has")
    if isinstance(node, int) and node not in _INTEGERS:
        raise ValueError(f"{short(node)} does not fit in 64 bits")
    return ()


def _is(value: Any, hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is(value, args[0]) and all(limit.holds(value) for limit in args[1:])
    if origin in (Union, types.UnionType):
        return any(_is(value, option) for option in args)
    if origin is dict:
        return isinstance(value, dict) and all(_is(item, args[1]) for item in value.values())
    if origin is list:
        return isinstance(value, list) and all(_is(item, args[0]) for item in value)
    return hint is Any or type(value) in ((int, float) if hint is float else (hint,))


def _words(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return args[1].words
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, args))
    if origin in (dict, list):
        every = "" if args[-1] is Any else f" in which everything is {_words(args[-1])}"
        return ("an object" if origin is dict else "a list") + every
    return _NAMES[hint]
