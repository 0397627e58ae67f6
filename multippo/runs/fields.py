"""Fields of dataclasses as settings: a value means the same on a command line and in a file."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import docstring_parser

from multippo.arguments import did_you_mean
from multippo.errors import UsageError

TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NONE = {"none", "null", "~", ""}


class Setting(NamedTuple):
    """Something that can be set.

    Attributes:
        name: As a file has it; the flag has dashes.
        hint: Its type.
        default: Its value unless set.
        help: Its meaning.
        group: The heading under which ``--help`` lists it.
        positional: True if it stands on a command line without a flag.
    """

    name: str
    hint: Any
    default: Any
    help: str = ""
    group: str = ""
    positional: bool = False

    @property
    def flag(self) -> str:
        """The name on a command line."""
        return "--" + self.name.replace("_", "-")

    def read(self, value: Any) -> Any:
        """A value from a file or a command line, see ``convert``."""
        return convert(value, self.hint, self.name)


def fields_of(cls: type, group: str, *, prefix: str = "") -> list[Setting]:
    """The fields of a dataclass that have a plain default, each explained by the docstring below it.

    A field that is not keyword-only is positional on a command line, too.
    """
    hints = get_type_hints(cls)
    docs = {doc.args[1]: plain(doc.description) for doc in docstring_parser.parse_from_object(cls).params}
    return [
        Setting(prefix + field.name, hints[field.name], field.default, docs[field.name], group, not field.kw_only)
        for field in dataclasses.fields(cls)
        if field.default is not dataclasses.MISSING
    ]


def plain(text: str | None) -> str:
    """A docstring as one line, without its marks."""
    return " ".join((text or "").replace("``", "").split())


def convert(value: Any, hint: Any, name: str) -> Any:
    """The value as a type has it.

    Args:
        value: Text from a command line, or what JSON or YAML made of a file's.
        hint: bool, int, float, str, a Literal of strings, a sequence of these, or a union with None.
        name: The setting's name, for the error.

    Raises:
        UsageError: If the type does not have it.

    >>> convert("1e6", int, "total_steps"), convert("false", bool, "shared"), convert("64,32", tuple[int, ...], "sizes")
    (1000000, False, (64, 32))
    """
    origin, args = get_origin(hint), get_args(hint)
    text = shown(value).strip()
    if origin in (Union, types.UnionType):
        none = type(None) in args and text.lower() in _NONE
        return None if none else convert(value, readable(hint), name)
    if takes_several(hint):
        words = [] if text.lower() in _NONE else text.strip("[]()").replace(",", " ").split()
        return tuple(convert(word, args[0], name) for word in words)
    if origin is Literal:
        # YAML reads a bare on or off as a truth value.
        word = text if text in args else {"true": "on", "false": "off"}.get(text, text)
        if word in args:
            return word
        raise UsageError(f"{name}={value!r} is not known: expected one of {', '.join(args)}.{did_you_mean(text, args)}")
    expected, read = _TYPES[hint]
    try:
        if not isinstance(value, list | tuple):
            return read(text)
    except (ValueError, KeyError, OverflowError):
        pass
    raise UsageError(f"{name}={value!r} is not {expected}.")


def takes_several(hint: Any) -> bool:
    """Returns True for a type of sequences."""
    origin = get_origin(hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def readable(hint: Any) -> Any:
    """The member of a union that can be written as text: neither None nor a callable. Another type is its own."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(arg for arg in get_args(hint) if arg is not type(None) and get_origin(arg) is not Callable)


def shown(value: Any) -> str:
    """A value as a user would write it.

    >>> shown((64, 64)), shown(True), shown(None), shown(1e-05)
    ('64 64', 'true', 'none', '1e-05')
    """
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    if isinstance(value, list | tuple):
        return " ".join(map(shown, value)) or "none"
    return str(value)


def _whole(text: str) -> int:
    number = int(text) if text.lstrip("+-").replace("_", "").isdigit() else float(text)
    if int(number) != number or not -(2**63) <= number < 2**63:
        raise ValueError
    return int(number)


def _finite(text: str) -> float:
    number = float(text)
    int(number)  # which neither infinity nor NaN becomes
    return number


_TYPES: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: TRUTH[text.lower()]),
    int: ("a whole number of at most 64 bits, such as 100000 or 1e5", _whole),
    float: ("a finite number, such as 0.001 or 1e-3", _finite),
    str: ("text", str),
}
