"""The JSON part of a checkpoint, ``checkpoint.json``. Its presence makes a directory a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from multippo.algorithms.checkpointing.tensor_files import check_regular, unique
from multippo.errors import DamagedCheckpointError

__all__ = ["MANIFEST", "Manifest", "read_manifest", "write_manifest"]

MANIFEST = "checkpoint.json"
FORMAT, FORMAT_VERSION = "multippo.checkpoint", 1

_MOST_BYTES = 2**24
_SIGNED = {"eval_return"}
_COUNTED = {"iteration", "optimizer_count", "num_envs"}  # by engines, in 32 bits
_SHA256 = re.compile("[0-9a-f]{64}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is known about a checkpoint without its arrays.

    Attributes:
        step: Environment steps taken.
        iteration: Iterations finished.
        backend: The engine that wrote it.
        num_envs: Environments trained in.
        optimizer_count: Steps of the optimiser.
        learning_rate: Of the next iteration, where no schedule but the run itself decides on it.
        environment: Whether the environment's state is in it.
        episodes: Structure of ``TrainingState.episodes``, see ``stored_trees``.
        config: What was stored as config, as JSON has it.
        extra: What was stored beside it.
        teacher_leaves: Arrays of a teacher's carry, in a distillation; else None.
        planned_steps: See ``TrainingState``.
        eval_return: See ``TrainingState``.
        eval_due: See ``TrainingState``; None in checkpoints without.
        sha256: SHA-256 of each file of arrays by its name, in hexadecimal digits; None in checkpoints without.
    """

    step: int
    iteration: int
    backend: str
    num_envs: int
    optimizer_count: int
    learning_rate: float | None
    environment: bool
    episodes: dict[str, Any]
    config: dict[str, Any] | None
    extra: dict[str, Any]
    teacher_leaves: int | None = None
    planned_steps: int | None = None
    eval_return: float | None = None
    eval_due: bool | None = None
    sha256: dict[str, str] | None = None


def write_manifest(manifest: Manifest) -> str:
    """The text of the file.

    Raises:
        TypeError: If ``config`` or ``extra`` holds what JSON can't, or too much.
    """
    from multippo import __version__

    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "multippo_version": __version__}
    try:
        text = json.dumps({**head, **dataclasses.asdict(manifest)}, indent=2, allow_nan=False) + "\n"
        json.loads(text, object_pairs_hook=unique)  # the keys 1 and "1" are one there
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"config and extra of a checkpoint must be what JSON can hold: {error}.") from error
    if len(text) > _MOST_BYTES:
        raise TypeError(
            f"config and extra of a checkpoint come to {len(text)} characters; at most {_MOST_BYTES} are read."
        )
    return text


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks the file.

    Raises:
        DamagedCheckpointError: If it is damaged, or no checkpoint's.
        ValueError: If it is of a later format.
        FileNotFoundError: If it is missing.
    """
    file = directory / MANIFEST
    found: Any = _read_object(file)
    if found.get("format") != FORMAT:
        raise DamagedCheckpointError(f"{file} does not describe a checkpoint of multippo.")
    version = found.get("format_version")
    if not _is(version, int) or version < 1:
        raise DamagedCheckpointError(f"{file} is damaged: format_version is {version!r}.")
    if version > FORMAT_VERSION:
        raise ValueError(
            f"{file} is of checkpoint format {version}, written by multippo {found.get('multippo_version')!r}; this "
            f"version reads formats up to {FORMAT_VERSION}: upgrade multippo."
        )
    values: dict[str, Any] = {}
    for name, hint in get_type_hints(Manifest).items():
        values[name] = value = found.get(name)
        least, most = (-(2**63) if name in _SIGNED else 0), (2**31 if name in _COUNTED else 2**63)
        if not _is(value, hint) or (_is(value, float) and not least <= value < most):
            raise DamagedCheckpointError(f"{file} is damaged: {name} is {value!r}.")
    sums = values["sha256"]
    if sums is not None and not all(isinstance(digits, str) and _SHA256.fullmatch(digits) for digits in sums.values()):
        raise DamagedCheckpointError(f"{file} is damaged: sha256 is {sums!r}.")
    return Manifest(**values)


def _read_object(file: Path) -> Mapping[str, Any]:
    check_regular(file)
    if file.stat().st_size > _MOST_BYTES:
        raise DamagedCheckpointError(f"{file} is too large for the description of a checkpoint.")
    try:
        found = json.loads(file.read_bytes(), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpointError(f"{file} is damaged: it is not JSON ({error}).") from error
    if not isinstance(found, dict):
        raise DamagedCheckpointError(f"{file} does not describe a checkpoint of multippo.")
    return found


def _is(value: Any, hint: Any) -> bool:
    """Whether a JSON value is of a type; a truth value is no number, and 1 as good as 1.0."""
    options = hint.__args__ if isinstance(hint, types.UnionType) else (hint,)
    kinds = tuple(getattr(option, "__origin__", option) for option in options)
    kinds = (*kinds, int) if float in kinds else kinds
    return isinstance(value, kinds) and (not isinstance(value, bool) or bool in kinds)
