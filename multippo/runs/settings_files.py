"""Files of settings: JSON or YAML, written by a user, or the ``config.json`` of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from multippo.arguments import did_you_mean
from multippo.atomic_files import read_text
from multippo.errors import UsageError
from multippo.json_files import read_json
from multippo.runs.fields import Setting
from multippo.runs.settings import SECTIONS, name_of

_RUN_ONLY = {"format", "format_version", "versions", "numerics"}


def read_settings(path: Path, known: Mapping[str, Setting]) -> dict[str, Any]:
    """The settings in a file, by name.

    A setting stands under its name (``learning_rate``), alone or in the section it belongs to (``ppo``, ``eval``,
    ``train``, ``network``, ``env``; ``eval: {every_steps: …}`` is ``eval_every_steps``). The ``config.json`` of a run
    has this form as well.

    Raises:
        UsageError: If it is another kind of file, a name is unknown, or a setting can't have its value.
    """
    return settings_of(read_object(path, follow=True), known, str(path))


def read_object(path: Path, *, follow: bool = False) -> Mapping[str, Any]:
    """The object in a JSON or YAML file; ``follow`` as in ``atomic_files.read_bytes``."""
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
    """The settings in an object; see ``read_settings``."""
    settings: dict[str, Any] = {}
    for name, value in _flat(found):
        if name in _RUN_ONLY:
            continue
        if name in SECTIONS and name not in known:
            raise UsageError(f"{source}: {name} is a section and has {value!r}; expected names with values.")
        if name not in known:
            hint = did_you_mean(name, known) or " `multippo train --help` lists the names, there as flags."
            raise UsageError(f"unknown key {name!r} in {source}.{hint}")
        if name in settings:
            raise UsageError(f"{source} names {name!r} twice; leave one of them out.")
        try:
            settings[name] = known[name].read(value)
        except UsageError as error:
            raise UsageError(f"{source}: {error}") from error
    return settings


def _flat(found: Mapping[Any, Any], section: str = "") -> Iterator[tuple[str, Any]]:
    """Yields names with values out of all sections."""
    for key, value in found.items():
        path = f"{section}{key}"
        if isinstance(value, dict) and path.rpartition(".")[2] in SECTIONS:
            yield from _flat(value, f"{path}.")
        else:
            yield name_of(path), value


def _read_yaml(path: Path, follow: bool) -> Any:
    import yaml

    try:
        return yaml.safe_load(read_text(path, follow=follow))
    except (yaml.YAMLError, RecursionError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}.") from error
