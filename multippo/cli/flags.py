"""Command lines: tyro takes them apart and writes the help; what the values mean is ``values``' business."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, get_origin

from multippo.arguments import did_you_mean
from multippo.cli.errors import UsageError
from multippo.cli.options import Option
from multippo.cli.values import convert, metavar, shown

__all__ = ["parse"]

_NEGATIVE = re.compile(r"-\.?\d")
_SECTIONS = {"ppo.": "", "train.": "", "network.": "", "eval.": "eval-"}


class _Unset:
    """Stands for a flag that was not given."""


_UNSET = _Unset()


def parse(
    command: str, description: str, options: Iterable[Option], argv: Sequence[str], *positionals: Option
) -> dict[str, Any]:
    """What a command line says.

    Args:
        command: Such as ``train``.
        description: What the command does, for ``--help``.
        options: The flags.
        argv: The command line after the command's name.
        *positionals: What may stand without a flag, in this order.

    Returns:
        The values given, by option name; nothing for what was left out.

    Raises:
        UsageError: If a flag is unknown, lacks its value, or has one that it can't have.
        SystemExit: After ``--help``.
    """
    # Imported here, so that a mistyped command is refused at once.
    import tyro

    by_name = {option.name: option for option in options}
    everything = {**by_name, **{positional.name: positional for positional in positionals}}
    tokens = _canonical(_without_idle_dashes(argv), by_name)
    complaints = io.StringIO()
    try:
        with contextlib.redirect_stderr(complaints):
            found, unknown = tyro.cli(
                _flags_class(by_name.values(), positionals),
                prog=f"multippo {command}",
                description=description,
                args=tokens,
                return_unknown_args=True,
                config=(tyro.conf.OmitArgPrefixes,),
            )
    except SystemExit as stop:
        if not stop.code:
            raise
        raise UsageError(_unboxed(complaints.getvalue())) from None
    _refuse_unknown(command, unknown, by_name, positionals)
    given: dict[str, Any] = {}
    for part in (found, *vars(found).values()):
        for name, value in vars(part).items() if dataclasses.is_dataclass(part) else ():
            text = _text(value)
            if name in everything and text is not None:
                given[name] = convert(text, everything[name].hint, everything[name].name)
    return given


def _without_idle_dashes(argv: Sequence[str]) -> list[str]:
    """The command line, without a ``--`` behind which nothing stands.

    Raises:
        UsageError: If a flag stands behind it, where it would be a positional.
    """
    tokens = list(argv)
    if "--" not in tokens:
        return tokens
    place = tokens.index("--")
    for token in tokens[place + 1 :]:
        if _is_flag(token):
            raise UsageError(f"unexpected {token!r}: behind a lone -- nothing is taken for a flag. Leave the -- out.")
    return tokens if tokens[place + 1 :] else tokens[:place]


def _canonical(tokens: list[str], options: dict[str, Option]) -> list[str]:
    """The same command line in the one form tyro is told of.

    Flags get dashes and lose the name of their section; a truth value gets its word (``--x``, ``--no-x``); a flag that
    takes several values and is given several times gets them all at its last place.
    """
    canonical: list[str] = []
    lists: dict[str, list[str]] = {}
    behind: list[str] = []
    position = 0
    while position < len(tokens):
        token = tokens[position]
        position += 1
        if token == "--":
            behind = tokens[position - 1 :]
            break
        if not token.startswith("--"):
            canonical.append(token)
            continue
        flag, equals, value = token.partition("=")
        name = _option_name(flag)
        option = options.get(name)
        if option is None and name.startswith("no_") and not equals:
            option, value = options.get(name.removeprefix("no_")), "false"
            if option is None or option.hint is not bool:
                canonical.append(token)
                continue
            canonical.append(f"{option.flag}={value}")
        elif option is None:
            canonical.append(token)
        elif _takes_several(option):
            values = [value] if equals else []
            while not equals and position < len(tokens) and not _is_flag(tokens[position]):
                values.append(tokens[position])
                position += 1
            lists.setdefault(option.flag, []).extend(values)
        elif equals:
            canonical.append(f"{option.flag}={value}")
        elif position < len(tokens) and not _is_flag(tokens[position]) and _fits(option, tokens[position]):
            canonical.append(f"{option.flag}={tokens[position]}")
            position += 1
        else:
            canonical.append(f"{option.flag}=true" if option.hint is bool else option.flag)
    for flag, values in lists.items():
        canonical.append(f"{flag}={','.join(values)}")
    return canonical + behind


def _option_name(flag: str) -> str:
    name = flag.removeprefix("--")
    for section, prefix in _SECTIONS.items():
        if name.startswith(section):
            name = prefix + name.removeprefix(section)
    return name.replace("-", "_")


def _takes_several(option: Option) -> bool:
    origin = get_origin(option.hint)
    return isinstance(origin, type) and issubclass(origin, Sequence)


def _is_flag(token: str) -> bool:
    return token.startswith("-") and not _NEGATIVE.match(token)


def _fits(option: Option, token: str) -> bool:
    """Whether a word after a flag is its value: after a truth value's flag only a truth value is."""
    return option.hint is not bool or token.lower() in ("true", "false", "yes", "no", "on", "off", "1", "0")


def _flags_class(options: Iterable[Option], positionals: Iterable[Option]) -> Any:
    """A dataclass of dataclasses, one for each group, as tyro wants to have it described."""
    import tyro

    groups: dict[str, list[Any]] = {}
    for option in options:
        groups.setdefault(option.group, []).append(_field(option))
    fields: list[Any] = []
    for positional in positionals:
        name, hint, default = _field(positional, positional.name.upper())
        fields.append((name, tyro.conf.Positional[hint], default))
    for number, (group, members) in enumerate(groups.items()):
        cls = dataclasses.make_dataclass(f"Group{number}", members)
        cls.__doc__ = ""
        fields.append((group.replace(" ", "_"), cls, dataclasses.field(default_factory=cls)))
    flags = dataclasses.make_dataclass("Flags", fields)
    flags.__doc__ = ""
    return flags


def _field(option: Option, placeholder: str | None = None) -> tuple[str, Any, Any]:
    import tyro

    default = shown(option.default)
    spec = tyro.constructors.PrimitiveConstructorSpec[Any](
        nargs=1,
        metavar=placeholder or metavar(option.hint),
        instance_from_str=lambda words: list(words),
        is_instance=lambda value: True,
        str_from_instance=lambda value: [default],
    )
    hint: Any = Annotated[Any, spec, tyro.conf.arg(help=option.help)]
    return option.name, hint, dataclasses.field(default=_UNSET)


def _text(value: Any) -> str | None:
    """The word tyro found, whichever way it wrapped it."""
    while isinstance(value, list):
        if not value:
            return None
        value = value[0]
    return value if isinstance(value, str) else None


def _refuse_unknown(
    command: str, unknown: Sequence[str], options: dict[str, Option], positionals: Sequence[Option]
) -> None:
    flags = [token.partition("=")[0] for token in unknown if _is_flag(token)]
    if flags:
        hint = did_you_mean(flags[0], [option.flag for option in options.values()])
        raise UsageError(f"unknown flag {flags[0]}.{hint} `multippo {command} --help` lists the flags.")
    if unknown:
        names = " and ".join(f"one {positional.name.upper()}" for positional in positionals)
        expected = f"{names} alone" if positionals else "flags alone"
        raise UsageError(f"unexpected {unknown[0]!r}: multippo {command} takes {expected} without a flag's name.")


def _unboxed(text: str) -> str:
    """Tyro's message without its frame."""
    lines = [line.strip(" │╭╮╰╯─") for line in text.splitlines()]
    return " ".join(line for line in lines[1:] if line and not line.startswith("For full helptext"))
