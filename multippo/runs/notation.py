"""Notation of settings: their names and values on a command line and in files.

A setting's hint, the type of a field or of an argument, decides which values it can have.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import re
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import docstring_parser

from multippo.algorithms.metrics import json_ready
from multippo.arguments import did_you_mean
from multippo.errors import UsageError
from multippo.files import parse_json, read_json, read_text


def name_of(path: str) -> str:
    """Name of a setting from its path through sections.

    >>> name_of("eval.every-steps"), name_of("train.ppo.learning_rate"), name_of("network.kind")
    ('eval_every_steps', 'learning_rate', 'network')
    """
    *sections, name = path.replace("-", "_").split(".")
    if not SECTIONS.issuperset(sections):
        return path
    prefix = "eval_" if sections[-1:] == ["eval"] and not name.startswith("eval_") else ""
    return _NAMES.get(".".join([*sections[-1:], name]), prefix + name)


SECTIONS = frozenset({"ppo", "train", "eval", "network", "env", "options", "kwargs"})
_NAMES = {"network.kind": "network", "env.id": "env", "env.backend": "env_backend", "kwargs.backend": "env_backend"}


_RUN_ONLY = {"format", "format_version", "versions", "numerics"}


def read_settings(path: Path, known: Mapping[str, Setting]) -> dict[str, Any]:
    """Settings in a file, by name.

    A setting stands under its name (``learning_rate``), alone or in its section (``ppo``, ``eval``, ``train``,
    ``network``, ``env``; ``eval: {every_steps: …}`` is ``eval_every_steps``). Names in ``env: {kwargs: …}`` that are
    not settings of environments are arguments of the constructor, ``env_kwargs``. The ``config.json`` of a run has
    this form as well.

    Raises:
        UsageError: If the file is neither JSON nor YAML, a name is unknown, or a setting can't have its value.
    """
    return settings_of(read_object(path, follow=True), known, str(path))


def read_object(path: Path, *, follow: bool = False) -> Mapping[str, Any]:
    """Object in a JSON or YAML file; ``follow`` as in ``files.read_bytes``.

    Raises:
        UsageError: If the file can't be read, or does not hold an object.
    """
    try:
        found = read_json(path, follow=follow) if path.suffix.lower() == ".json" else _read_yaml(path, follow)
    except OSError as error:
        raise UsageError(f"{path} can't be read: {error.strerror}.") from error
    except ValueError as error:
        raise UsageError(str(error)) from error
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no names with values: write YAML lines such as 'learning_rate: 1e-3', or JSON.")
    return found


def settings_of(found: Mapping[str, Any], known: Mapping[str, Setting], source: str) -> dict[str, Any]:
    """Settings in an object, by name; see ``read_settings``, errors included."""
    settings: dict[str, Any] = {}
    constructor: dict[str, Any] = {}
    for section, name, value in _flat(found):
        if section.endswith("kwargs.") and (name not in known or known[name].group != "environment"):
            constructor[name] = value
            continue
        if name in _RUN_ONLY:
            continue
        if name in SECTIONS and name not in known:
            raise UsageError(f"{source}: {name} is a section and has {value!r}; expected names with values.")
        if name not in known:
            hint = did_you_mean(name, known) or " `multippo train --help-all` lists the names, there as flags."
            raise UsageError(f"unknown key {name!r} in {source}.{hint}")
        if name in settings:
            raise UsageError(f"{source} names {name!r} twice; leave one of them out.")
        try:
            settings[name] = convert(value, known[name].hint, name)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from error
    if constructor:
        settings["env_kwargs"] = {**constructor, **settings.get("env_kwargs", {})}
    return settings


def _flat(found: Mapping[Any, Any], section: str = "") -> Iterator[tuple[str, str, Any]]:
    """Yields the path of the section, the name and the value of everything in any section."""
    for key, value in found.items():
        path = f"{section}{key}"
        if isinstance(value, dict) and path.rpartition(".")[2] in SECTIONS and not section.endswith("kwargs."):
            yield from _flat(value, f"{path}.")
        else:
            yield section, name_of(path), value


def _read_yaml(path: Path, follow: bool) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """YAML 1.1, in which 1e5 would be text, with the floats of YAML 1.2."""

    Loader.add_implicit_resolver(
        "tag:yaml.org,2002:float", re.compile(r"[-+]?\d+(\.\d*)?[eE][-+]?\d+$"), [*"-+0123456789"]
    )
    try:
        return yaml.load(read_text(path, follow=follow), Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error


TRUTH = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
_NONE = {"none", "null", "~", ""}


class Setting(NamedTuple):
    """Description of a value that files and command lines can set.

    Attributes:
        name: Name in files; the flag has dashes.
        hint: Type of the value.
        default: Value unless set.
        help: Meaning of the value.
        group: Heading of the setting in ``--help``.
        positional: True if the value stands on a command line without a flag.
    """

    name: str
    hint: Any
    default: Any
    help: str = ""
    group: str = ""
    positional: bool = False

    @property
    def flag(self) -> str:
        """Name of the setting on a command line."""
        return "--" + self.name.replace("_", "-")


def fields_of(cls: type, group: str, *, prefix: str = "") -> list[Setting]:
    """Settings for the fields of a dataclass that have a plain default, each explained by the docstring below it.

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
    """Docstring as one line, without its marks."""
    return " ".join((text or "").replace("``", "").split())


def convert(value: Any, hint: Any, name: str) -> Any:
    """Converts a value to a type.

    Args:
        value: Text from a command line, or a value from JSON or YAML.
        hint: bool, int, float, str, a Literal of strings, a sequence of these, a mapping, or a union with None.
        name: The setting's name, for the error.

    Raises:
        UsageError: If the type has no such value.

    >>> convert("1e6", int, "total_steps"), convert("false", bool, "shared"), convert("64,32", tuple[int, ...], "sizes")
    (1000000, False, (64, 32))
    """
    origin, args = get_origin(hint), get_args(hint)
    text = shown(value).strip()
    if origin in (Union, types.UnionType):
        none = type(None) in args and text.lower() in _NONE
        return None if none else convert(value, readable(hint), name)
    if origin is Mapping:
        words = value if isinstance(value, list | tuple) else [text]
        return dict(value) if isinstance(value, Mapping) else dict(_named(word, name) for word in words)
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


def _named(word: str, name: str) -> tuple[str, Any]:
    """Name and value of ``NAME=VALUE``, in which the value is a JSON or Python literal, or else text.

    Raises:
        UsageError: If ``word`` has no equals sign.
    """
    key, equals, text = word.partition("=")
    if not equals:
        raise UsageError(f"{name}: {word!r} is not NAME=VALUE, such as g=3.0.")
    for read in (parse_json, ast.literal_eval):
        with contextlib.suppress(ValueError, SyntaxError, TypeError):
            return key, json_ready(read(text))  # as config.json gives it back
    return key, text


def takes_several(hint: Any) -> bool:
    """Returns True for a type of sequences or mappings."""
    origin = get_origin(readable(hint))
    return isinstance(origin, type) and issubclass(origin, Sequence | Mapping)


def readable(hint: Any) -> Any:
    """Member of a union that can be written as text, neither None nor a callable; another type as it is."""
    if get_origin(hint) not in (Union, types.UnionType):
        return hint
    return next(arg for arg in get_args(hint) if arg is not type(None) and get_origin(arg) is not Callable)


def shown(value: Any) -> str:
    """Text of a value as a user would write it.

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
    int(number)  # raises for infinity and NaN
    return number


_TYPES: dict[Any, tuple[str, Callable[[str], Any]]] = {
    bool: ("true or false", lambda text: TRUTH[text.lower()]),
    int: ("a whole number of at most 64 bits, such as 100000 or 1e5", _whole),
    float: ("a finite number, such as 0.001 or 1e-3", _finite),
    str: ("text", str),
}
