"""Flags of the commands: the fields of a dataclass for each command.

tyro writes the help. The command line is taken apart here, since tyro does not report which flags were given, and knows
truth values as ``--x`` and ``--no-x`` or as ``--x true``, not both (docs/adr/0022-settings-in-layers.md).
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from multippo.arguments import did_you_mean
from multippo.errors import UsageError
from multippo.runs.notation import TRUTH, Setting, convert, fields_of, name_of, readable, shown, takes_several

_Flags = TypeVar("_Flags")

_NEGATIVE = re.compile(r"-\.?\d")


def parse(command: str, flags: type[_Flags], argv: Sequence[str]) -> _Flags:
    """Parses a command line to the flags of a command.

    Args:
        command: The command's name, such as ``eval``.
        flags: A dataclass whose docstring describes the command, and whose fields' docstrings the flags; fields that
            are not keyword-only are positional.
        argv: The command line after the command's name.

    Raises:
        UsageError: See ``given_flags``.
        SystemExit: After ``--help``.
    """
    return flags(**given_flags(command, flags.__doc__ or "", fields_of(flags, command), argv))


def given_flags(
    command: str, description: str, settings: Iterable[Setting], argv: Sequence[str], common: Collection[str] = ()
) -> dict[str, Any]:
    """Values on a command line, by name, without the flags that were left out.

    A value follows its flag or an equals sign. A truth value may be left out (``--x``, ``--no-x``). Several values
    stand side by side, with commas, or each behind a flag of its own.

    Args:
        command: See ``parse``.
        description: First lines of the help.
        settings: Flags of the command.
        argv: See ``parse``.
        common: Names of the flags in ``--help``, by the first sentence of each; all in full if empty.

    Raises:
        UsageError: If a flag is unknown, lacks its value, or can't have it.
        SystemExit: After ``--help`` and ``--help-all``.
    """
    known = {setting.name: setting for setting in settings}
    if not {"-h", "--help", "--help-all"}.isdisjoint(argv):
        if common and "--help-all" not in argv:
            description += f" The flags used most; --help-all explains all {len(known)}."
            first = {name: re.split(r"\.( |$)| \(", known[name].help)[0] + "." for name in common}
            known = {name: known[name]._replace(help=text, group="common") for name, text in first.items()}
        _print_help(command, description, known.values())
        raise SystemExit(0)
    flags = {name: setting for name, setting in known.items() if not setting.positional}
    positionals = [name for name in known if name not in flags]
    texts: dict[str, list[str]] = collections.defaultdict(list)
    others: list[str] = []
    words = collections.deque(argv)
    while words:
        word = words.popleft()
        flag, equals, value = word.partition("=")
        name = name_of(flag.removeprefix("--"))
        negated = flags.get(name.removeprefix("no_"))
        if word == "--":
            others += words
            break
        if not _is_flag(word):
            others.append(word)
        elif name in flags:
            values = [value] if equals else _values(flags[name], words)
            texts[name] = [*texts[name], *values] if takes_several(flags[name].hint) else values
        elif negated is not None and negated.hint is bool and not equals:
            texts[negated.name] = ["false"]
        else:
            hint = did_you_mean(flag, [setting.flag for setting in flags.values()])
            raise UsageError(f"unknown flag {flag}.{hint} `multippo {command} --help-all` lists the flags.")
    if positionals and takes_several(known[positionals[-1]].hint):
        texts[positionals[-1]] = others[len(positionals) - 1 :]
        others = others[: len(positionals) - 1]
    if len(others) > len(positionals):
        expected = " and ".join(f"one {name.upper()}" for name in positionals) or "flags"
        raise UsageError(
            f"unexpected {others[len(positionals)]!r}: multippo {command} takes {expected} alone without a flag's name."
        )
    texts |= {name: [word] for name, word in zip(positionals, others, strict=False)}
    return {
        name: convert(values if takes_several(known[name].hint) else values[0], known[name].hint, name)
        for name, values in texts.items()
    }


def _values(setting: Setting, words: collections.deque[str]) -> list[str]:
    """Takes a flag's values from the words behind it."""
    values = list(itertools.takewhile(lambda word: not _is_flag(word), words))
    if not takes_several(setting.hint):
        del values[1:]
        if setting.hint is bool and (not values or values[0].lower() not in TRUTH):
            return ["true"]
        if not values:
            raise UsageError(f"{setting.flag} lacks its value: write {setting.flag} {_metavar(setting.hint)}.")
    for _ in values:
        words.popleft()
    return values


def _is_flag(word: str) -> bool:
    return word.startswith("-") and not _NEGATIVE.match(word)


def _print_help(command: str, description: str, settings: Iterable[Setting]) -> None:
    """Prints the help that tyro writes for a dataclass of dataclasses, one for each group."""
    import tyro

    positionals: list[Any] = []
    groups: dict[str, list[Any]] = {}
    for setting in settings:
        explained = tyro.conf.arg(
            help=setting.help,
            metavar=f"[{setting.name.upper()}]" if setting.positional else _metavar(setting.hint),
            help_behavior_hint=f"(default: {shown(setting.default)})",
        )
        hint: Any = Annotated[str, explained]
        if setting.positional:
            positionals.append((setting.name, tyro.conf.Positional[hint], ""))
        else:
            groups.setdefault(setting.group, []).append((setting.name, hint, ""))
    members = [
        (name.replace(" ", "_"), dataclasses.make_dataclass(name.title().replace(" ", ""), fields))
        for name, fields in groups.items()
    ]
    help_class = dataclasses.make_dataclass("Help", [*positionals, *members], kw_only=True)
    tyro.cli(
        help_class,
        prog=f"multippo {command}",
        description=description,
        args=["--help"],
        config=(tyro.conf.OmitArgPrefixes,),
    )


def _metavar(hint: Any) -> str:
    """Placeholder of a value of a type."""
    only = readable(hint)
    if get_origin(only) is Literal:
        text = "|".join(get_args(only))
    elif get_origin(only) is Mapping:
        text = "NAME=VALUE ..."
    elif takes_several(only):
        text = f"{_metavar(get_args(only)[0])} ..."
    else:
        text = {bool: "true|false", int: "INT", float: "FLOAT"}.get(only, "TEXT")
    return text + ("|none" if type(None) in get_args(hint) else "")
