"""The checkpoints of one run, which lie side by side in directories ``step_…``: all of them, the latest, the best."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterable
from pathlib import Path

from multippo.algorithms.checkpointing.manifest import MANIFEST, Manifest, read_manifest

_STEP = re.compile(r"step_(\d{1,19})")


def step_directory(directory: Path, step: int) -> Path:
    """The directory of a step's checkpoint in a directory of checkpoints."""
    return directory / f"step_{step:012d}"


def step_entries(directory: str | os.PathLike[str]) -> list[Path]:
    """All entries ``step_…`` of a directory, the highest step first: damaged checkpoints, files and links too."""
    found: list[tuple[int, Path]] = []
    directory = Path(directory)
    for entry in directory.iterdir() if directory.is_dir() else ():
        match = _STEP.fullmatch(entry.name)
        if match:
            found.append((int(match[1]), entry))
    return [path for _, path in sorted(found, reverse=True)]


def step_directories(directory: str | os.PathLike[str]) -> list[Path]:
    """The directories ``step_…`` in a directory, the highest step first, damaged ones too; links are left out."""
    return [path for path in step_entries(directory) if path.is_dir() and not path.is_symlink()]


def latest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest step among the ``step_…`` in a directory."""
    return next((path for path in step_directories(directory) if (path / MANIFEST).is_file()), None)


def read_steps(directory: str | os.PathLike[str]) -> list[tuple[Path, Manifest]]:
    """The checkpoints in a directory with their descriptions, the highest step first; unreadable ones are left out."""
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
    """The checkpoint of the best evaluation among the ``step_…`` in a directory; None if none was made at one."""
    return next(iter(best_first(read_steps(directory))), None)
