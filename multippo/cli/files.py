"""Files of settings: JSON or YAML, written by a user, or the ``config.json`` of a run."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from multippo.arguments import did_you_mean
from multippo.cli.errors import UsageError
from multippo.cli.options import Option
from multippo.cli.values import convert

__all__ = ["read_object", "read_settings", "settings_of"]

_MOST_BYTES = 2**24
_SECTIONS = ("ppo", "train", "eval", "options", "kwargs")
_RUN_ONLY = {"format", "format_version", "versions", "numerics"}


def read_settings(path: Path, options: Iterable[Option]) -> dict[str, Any]:
    """The settings in a file, by option name.

    A setting stands under its option's name (``learning_rate``), alone or in the section it belongs to (``ppo``,
    ``eval``, ``train``, ``network``, ``env``; ``eval: {every_steps: …}`` is ``eval_every_steps``). The ``config.json``
    of a run has this form as well.

    Raises:
        UsageError: If it is no such file, a name is unknown, or a value is none that its setting can have.
    """
    return settings_of(read_object(path), options, str(path))


def read_object(path: Path) -> Mapping[str, Any]:
    """The object in a JSON or YAML file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise UsageError(f"{path} is too large for a file of settings.")
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise UsageError(f"{path} can't be read: {reason}.") from error
    found = _json(path, text) if path.suffix.lower() == ".json" else _yaml(path, text)
    if not isinstance(found, dict):
        raise UsageError(f"{path} holds no names with values: write YAML lines such as 'learning_rate: 1e-3', or JSON.")
    return {str(key): value for key, value in found.items()}


def settings_of(found: Mapping[str, Any], options: Iterable[Option], source: str) -> dict[str, Any]:
    """The settings in an object; see ``read_settings``."""
    known = {option.name: option for option in options}
    settings: dict[str, Any] = {}
    for name, value in _flat(found):
        if name in _RUN_ONLY:
            continue
        if name in _SECTIONS and name not in known:
            raise UsageError(f"{source}: {name} is a section and has {value!r}; expected names with values.")
        if name not in known:
            hint = did_you_mean(name, known) or " `multippo train --help` lists the names, there as flags."
            raise UsageError(f"unknown key {name!r} in {source}.{hint}")
        if name in settings:
            raise UsageError(f"{source} gives {name} twice; leave one of them out.")
        try:
            settings[name] = convert(value, known[name].hint, name)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from error
    return settings


def _flat(found: Mapping[str, Any]) -> Iterable[tuple[str, Any]]:
    for key, value in found.items():
        name = str(key).replace("-", "_")
        section, _, rest = name.partition(".")
        if rest:
            yield from _flat({section: {rest: value}})
        elif not isinstance(value, dict) or name in _RUN_ONLY:
            yield name, value
        elif name in ("ppo", "train"):
            yield from _flat(value)
        elif name == "eval":
            yield from ((inner if inner.startswith("eval_") else f"eval_{inner}", item) for inner, item in _flat(value))
        elif name == "network":
            yield from (("network" if inner == "kind" else inner, item) for inner, item in _flat(value))
        elif name == "env":
            yield from ((_ENV_NAMES.get(inner, inner), item) for inner, item in _flat(value))
        elif name in ("options", "kwargs"):
            yield from _flat(value)
        else:
            yield name, value


_ENV_NAMES = {"id": "env", "backend": "env_backend"}


def _json(path: Path, text: str) -> Any:
    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        _refuse_repeated(path, [key for key, _ in pairs])
        return dict(pairs)

    try:
        return json.loads(text, object_pairs_hook=once)
    except UsageError:
        raise
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}.") from error


def _yaml(path: Path, text: str) -> Any:
    import yaml

    class Loader(yaml.SafeLoader):
        """yaml's own takes the last of several values under one key without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
            # What is merged in by "<<" is overridden on purpose.
            _refuse_repeated(path, [key.value for key, _ in node.value if key.tag != "tag:yaml.org,2002:merge"])
            return super().construct_mapping(node, deep)

    try:
        return yaml.load(text, Loader)
    except UsageError:
        raise
    except (yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error


def _refuse_repeated(path: Path, keys: list[Any]) -> None:
    for key in keys:
        if keys.count(key) > 1:
            raise UsageError(f"{path} gives {key} twice; leave one of them out.")
