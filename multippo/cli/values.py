"""From what users write, on a command line or in a file, to values of a type.

Both come here, so that ``1e6`` is a whole number, ``"false"`` is no truth and ``1e-4`` no text, wherever they stand.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, Union, get_args, get_origin

from multippo.arguments import did_you_mean
from multippo.cli.errors import UsageError

__all__ = ["convert", "metavar", "shown"]

_TRUE, _FALSE, _NONE = {"true", "yes", "on", "1"}, {"false", "no", "off", "0"}, {"none", "null", "~", ""}


def convert(value: Any, hint: Any, name: str) -> Any:
    """The value as ``hint`` wants it.

    Args:
        value: Text from a command line, or what JSON or YAML made of a file's.
        hint: bool, int, float, str, a Literal of strings, a sequence of these, or a union with None.
        name: What the error calls it.

    Raises:
        UsageError: If it is no such value.

    >>> convert("1e6", int, "total_steps"), convert("false", bool, "shared"), convert("64,32", tuple[int, ...], "sizes")
    (1000000, False, (64, 32))
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        if type(None) in args and (value is None or (isinstance(value, str) and value.strip().lower() in _NONE)):
            return None
        return convert(value, _only(args), name)
    if origin is Literal:
        return _choice(value, args, name)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return _sequence(value, args[0], name)
    reader = _READERS.get(hint)
    if reader is None:
        raise TypeError(f"{name} is of type {hint}, which can't be read from text.")
    return reader(value, name)


def metavar(hint: Any) -> str:
    """What ``--help`` shows in place of a value."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return metavar(_only(args)) + ("|none" if type(None) in args else "")
    if origin is Literal:
        return "|".join(args)
    if isinstance(origin, type) and issubclass(origin, Sequence):
        return f"{metavar(args[0])} ..."
    return {bool: "true|false", int: "INT", float: "FLOAT"}.get(hint, "TEXT")


def shown(value: Any) -> str:
    """A value as a user would write it.

    >>> shown((64, 64)), shown(True), shown(None), shown(1e-05)
    ('64 64', 'true', 'none', '1e-05')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(shown(item) for item in value) or "none"
    return str(value)


def _only(args: Sequence[Any]) -> Any:
    """The one member of a union that can be written as text: not None, not a callable."""
    return next(
        arg for arg in args if arg is not type(None) and get_origin(arg) is not Callable and arg is not Callable
    )


def _bool(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower()
    if text in _TRUE | _FALSE:
        return text in _TRUE
    raise UsageError(f"{name}={value!r} is neither true nor false: write true or false.")


def _int(value: Any, name: str) -> int:
    number: Any = value
    if isinstance(value, str):
        try:
            return int(value)
        except ValueError:
            number = _number(value)
    is_number = isinstance(number, int | float) and not isinstance(number, bool)
    if not is_number or not math.isfinite(number) or int(number) != number:
        raise UsageError(f"{name}={value!r} is no whole number: write one such as 100000 or 1e5.")
    return int(number)


def _float(value: Any, name: str) -> float:
    number = _number(value) if isinstance(value, str) else value
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise UsageError(f"{name}={value!r} is no finite number: write one such as 0.001 or 1e-3.")
    return float(number)


def _str(value: Any, name: str) -> str:
    if not isinstance(value, str):
        raise UsageError(f"{name}={value!r} is no text.")
    return value


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _choice(value: Any, choices: Sequence[str], name: str) -> str:
    # YAML reads a bare on or off as a truth value.
    text = {True: "on", False: "off"}[value] if isinstance(value, bool) else str(value)
    if text not in choices:
        raise UsageError(
            f"{name}={value!r} is not known: expected one of {', '.join(choices)}.{did_you_mean(text, choices)}"
        )
    return text


def _sequence(value: Any, item: Any, name: str) -> tuple[Any, ...]:
    if isinstance(value, str) and value.strip().lower() in _NONE:
        return ()
    if isinstance(value, str):
        value = value.strip().strip("[]()").replace(",", " ").split()
    elif isinstance(value, list | tuple):
        value = [
            part for entry in value for part in (_sequence(entry, str, name) if isinstance(entry, str) else [entry])
        ]
    else:
        value = [value]
    return tuple(convert(part, item, name) for part in value)


_READERS: dict[Any, Callable[[Any, str], Any]] = {bool: _bool, int: _int, float: _float, str: _str}
