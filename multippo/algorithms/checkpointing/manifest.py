"""The JSON part of a checkpoint, ``checkpoint.json``. Its presence makes a directory a checkpoint."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from multippo.atomic_files import LIMIT, read_bytes
from multippo.errors import DamagedCheckpointError, UnexpectedFileError
from multippo.json_files import FormatVersion, Limit, checked, parse_json, short
from multippo.version import __version__

MANIFEST = "checkpoint.json"
FORMAT, FORMAT_VERSION = "multippo.checkpoint", 1

_Count = Annotated[int, Limit(range(2**63).__contains__, "an integer in [0, 2**63)")]
_EngineCount = Annotated[int, Limit(range(2**31).__contains__, "an integer in [0, 2**31)")]  # engines have 32 bits
_Leaves = Annotated[int, Limit(range(100_001).__contains__, "an integer in [0, 100000]")]
_Rate = Annotated[float, Limit(lambda rate: 0 <= rate < 2**63, "a number in [0, 2**63)")]
_Sha256 = Annotated[str, Limit(re.compile("[0-9a-f]{64}").fullmatch, "64 hexadecimal digits")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a checkpoint without its arrays. The types of its fields are those of the file.

    Attributes:
        step: Environment steps taken.
        iteration: Iterations finished.
        backend: The engine that wrote it.
        num_envs: Environments trained in.
        optimizer_count: Steps of the optimiser.
        learning_rate: Of the next iteration, where no schedule but the run itself decides on it.
        environment: True if the environment's state is in it.
        episodes: Structure of ``TrainingState.episodes``, see ``descriptions``.
        config: What was stored as config, as JSON has it.
        extra: What was stored beside it.
        teacher_leaves: Arrays of a teacher's carry, in a distillation; else None.
        planned_steps: See ``TrainingState``.
        eval_return: See ``TrainingState``.
        eval_due: See ``TrainingState``; None in checkpoints without.
        sha256: SHA-256 of each file of arrays by its name, in hexadecimal digits; None in checkpoints without.
    """

    step: _Count
    iteration: _EngineCount
    backend: str
    num_envs: _EngineCount
    optimizer_count: _EngineCount
    learning_rate: _Rate | None
    environment: bool
    episodes: dict[str, Any]
    config: dict[str, Any] | None
    extra: dict[str, Any]
    teacher_leaves: _Leaves | None = None
    planned_steps: _Count | None = None
    eval_return: float | None = None
    eval_due: bool | None = None
    sha256: dict[str, _Sha256] | None = None


def write_manifest(manifest: Manifest) -> str:
    """The text of the file.

    Raises:
        TypeError: If ``config`` or ``extra`` holds what JSON can't, or too much.
    """
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "multippo_version": __version__}
    try:
        text = json.dumps({**head, **dataclasses.asdict(manifest)}, indent=2) + "\n"
        parse_json(text)  # refuses NaN, the keys 1 and "1", a number beyond 64 bits
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"config and extra of a checkpoint must be what JSON can hold: {error}.") from error
    if len(text) > LIMIT:
        raise TypeError(f"config and extra of a checkpoint come to {len(text)} characters; at most {LIMIT} are read.")
    return text


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks the file.

    Raises:
        DamagedCheckpointError: If it is damaged, or not a checkpoint's.
        ValueError: If it is of a later format.
        FileNotFoundError: If it is missing.
    """
    file = directory / MANIFEST
    try:
        found = parse_json(read_bytes(file))
    except UnexpectedFileError as error:
        raise DamagedCheckpointError(str(error)) from error
    except ValueError as error:
        raise DamagedCheckpointError(f"{file} is damaged: it is not JSON ({error}).") from error
    try:
        checked(found, dict[str, Any], "it")
        if found.get("format") != FORMAT:
            raise ValueError("it does not describe a checkpoint of multippo")
        version = checked(found.get("format_version"), FormatVersion, "format_version")
        if version <= FORMAT_VERSION:
            hints = get_type_hints(Manifest, include_extras=True)
            return Manifest(**{name: checked(found.get(name), hint, name) for name, hint in hints.items()})
    except ValueError as error:
        raise DamagedCheckpointError(f"{file} is damaged: {error}.") from error
    raise ValueError(
        f"{file} is of checkpoint format {version}, written by multippo {short(found.get('multippo_version'))}; this "
        f"version reads formats up to {FORMAT_VERSION}: upgrade multippo."
    )
