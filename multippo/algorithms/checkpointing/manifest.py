"""The JSON part of a checkpoint, ``checkpoint.json``, and the checkpoints of a run.

The file's presence makes a directory a checkpoint; those of a run lie side by side in directories ``step_…``.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, get_type_hints

from multippo.errors import DamagedCheckpointError, UnexpectedFileError
from multippo.files import LIMIT, FormatVersion, Limit, checked, parse_json, read_bytes, short
from multippo.version import __version__

MANIFEST = "checkpoint.json"
FORMAT, FORMAT_VERSION = "multippo.checkpoint", 1

_Count = Annotated[int, Limit(range(2**63).__contains__, "an integer in [0, 2**63)")]
_EngineCount = Annotated[int, Limit(range(2**31).__contains__, "an integer in [0, 2**31)")]  # engines have 32 bits
_Leaves = Annotated[int, Limit(range(100_001).__contains__, "an integer in [0, 100000]")]
_Episode = Annotated[list[float | None], Limit(lambda episode: len(episode) == 2, "a return and a length")]
_Rate = Annotated[float, Limit(lambda rate: 0 <= rate < 2**63, "a number in [0, 2**63)")]
_Sha256 = Annotated[str, Limit(re.compile("[0-9a-f]{64}").fullmatch, "64 hexadecimal digits")]
_STEP = re.compile(r"step_(\d{1,19})")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Manifest:
    """Description of a checkpoint without its arrays. The types of its fields are those of the file.

    Attributes:
        step: Environment steps taken.
        iteration: Iterations finished.
        backend: Name of the engine that wrote the checkpoint.
        num_envs: Environments trained in.
        optimizer_count: Steps of the optimiser.
        learning_rate: Learning rate of the next iteration under ``lr_schedule="adaptive_kl"``; else None.
        environment: True if the environment's state is stored.
        episodes: Structure of ``TrainingState.episodes``, in the form of ``checkpoint.describe``.
        config: Settings stored for readers, in the form of JSON.
        extra: More that was stored for readers.
        teacher_leaves: Number of arrays in a teacher's carry, in a distillation; else None.
        planned_steps: See ``TrainingState``.
        eval_return: See ``TrainingState``.
        eval_due: See ``TrainingState``; None in checkpoints without.
        recent_episodes: See ``TrainingState``; None in checkpoints without.
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
    recent_episodes: list[_Episode] | None = None
    sha256: dict[str, _Sha256] | None = None


def write_manifest(manifest: Manifest) -> str:
    """Text of the file of a manifest.

    Raises:
        TypeError: If JSON can't hold ``config`` or ``extra``, or the text would be too long to read.
    """
    head = {"format": FORMAT, "format_version": FORMAT_VERSION, "multippo_version": __version__}
    try:
        text = json.dumps({**head, **dataclasses.asdict(manifest)}, indent=2) + "\n"
        parse_json(text)  # raises for NaN, the keys 1 and "1", a number beyond 64 bits
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(f"config and extra of a checkpoint must be what JSON can hold: {error}.") from error
    if len(text) > LIMIT:
        raise TypeError(f"config and extra of a checkpoint come to {len(text)} characters; at most {LIMIT} are read.")
    return text


def read_manifest(directory: Path) -> Manifest:
    """Reads and checks the manifest of a checkpoint's directory.

    Raises:
        DamagedCheckpointError: If the file is damaged, or not a checkpoint's.
        ValueError: If the file is of a later format.
        FileNotFoundError: If the file is missing.
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


def step_directory(directory: Path, step: int) -> Path:
    """Directory of a step's checkpoint in a directory of checkpoints."""
    return directory / f"step_{step:012d}"


def step_entries(directory: str | os.PathLike[str]) -> list[Path]:
    """All entries ``step_…`` of a directory, the highest step first: damaged checkpoints, files and links too."""
    entries = Path(directory).iterdir() if Path(directory).is_dir() else ()
    found = [(int(match[1]), entry) for entry in entries if (match := _STEP.fullmatch(entry.name))]
    return [path for _, path in sorted(found, reverse=True)]


def step_directories(directory: str | os.PathLike[str]) -> list[Path]:
    """The directories ``step_…`` in a directory, the highest step first, damaged ones too; links are left out."""
    return [path for path in step_entries(directory) if path.is_dir() and not path.is_symlink()]


def latest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """Checkpoint of the highest step among the ``step_…`` in a directory; None if there is none."""
    return next((path for path in step_directories(directory) if (path / MANIFEST).is_file()), None)


def read_steps(directory: str | os.PathLike[str]) -> list[tuple[Path, Manifest]]:
    """Checkpoints in a directory with their manifests, the highest step first; unreadable ones are left out."""
    found: list[tuple[Path, Manifest]] = []
    for path in step_directories(directory):
        with contextlib.suppress(ValueError, OSError):
            found.append((path, read_manifest(path)))
    return found


def best_first(checkpoints: Iterable[tuple[Path, Manifest]]) -> list[Path]:
    """Checkpoints saved right after an evaluation, by its mean return; of equal ones the higher step leads."""
    evaluated = [(path, about.eval_return) for path, about in checkpoints if about.eval_return is not None]
    return [path for path, _ in sorted(evaluated, key=lambda entry: -entry[1])]


def best_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """Checkpoint of the best evaluation among the ``step_…`` in a directory; None if none was made at one."""
    return next(iter(best_first(read_steps(directory))), None)
