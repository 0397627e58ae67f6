"""The checkpoints of one run, which lie side by side in directories ``step_…``: all of them, the latest, the best."""

from __future__ import annotations

import os
import re
from pathlib import Path

from multippo.algorithms.checkpoint_manifest import MANIFEST

__all__ = ["latest_checkpoint", "step_directories", "step_directory"]

_STEP = re.compile(r"step_(\d{1,19})")


def step_directory(directory: Path, step: int) -> Path:
    """Where the checkpoint of a step is in a directory of checkpoints."""
    return directory / f"step_{step:012d}"


def step_directories(directory: str | os.PathLike[str]) -> list[Path]:
    """The ``step_…`` in a directory, the highest step first, damaged ones too; links are left out."""
    found: list[tuple[int, Path]] = []
    directory = Path(directory)
    for entry in directory.iterdir() if directory.is_dir() else ():
        match = _STEP.fullmatch(entry.name)
        if match and not entry.is_symlink():
            found.append((int(match[1]), entry))
    return [path for _, path in sorted(found, reverse=True)]


def latest_checkpoint(directory: str | os.PathLike[str]) -> Path | None:
    """The checkpoint of the highest step among the ``step_…`` in a directory."""
    return next((path for path in step_directories(directory) if (path / MANIFEST).is_file()), None)
