"""Resumes from the last intact checkpoint and reports damaged ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.checkpointing.manifest import read_manifest
from multippo.algorithms.checkpointing.steps import step_directories, step_entries
from multippo.algorithms.metrics import drop_after
from multippo.algorithms.types import TrainingState
from multippo.atomic_files import remove_leftovers
from multippo.errors import DamagedCheckpointError, UsageError, one_line
from multippo.runs.directory import RunDirectory

__all__ = ["Damaged", "mend", "pointing_to_another", "restore_last_good"]

_MOST_SHOWN = 3


class Damaged(NamedTuple):
    """A checkpoint that can't be read.

    Attributes:
        path: Where it is.
        why: What is wrong with it.
    """

    path: Path
    why: str


def restore_last_good(directory: RunDirectory, network: Any) -> tuple[Checkpoint, TrainingState, list[Damaged]]:
    """Reads the latest checkpoint of a run that is whole.

    Args:
        directory: The run's.
        network: Gets the weights.

    Returns:
        The checkpoint, what is in it, and the later ones that are damaged.

    Raises:
        UsageError: If all are damaged.
        ValueError: If it does not fit the network, or is of a later format.
    """
    damaged: list[Damaged] = []
    for path in step_entries(directory.checkpoints):
        if path.is_symlink() or not path.is_dir():
            damaged.append(Damaged(path, "it is a link or a file, and a checkpoint is a directory."))
            continue
        try:
            checkpoint = Checkpoint(path=path, manifest=read_manifest(path))
            return checkpoint, checkpoint.restore(network), damaged
        except (DamagedCheckpointError, FileNotFoundError) as error:
            damaged.append(Damaged(path, _why(error)))
    found = "; ".join(f"{path.name}: {why}" for path, why in damaged[:_MOST_SHOWN])
    more = f"; and {len(damaged) - _MOST_SHOWN} more" if len(damaged) > _MOST_SHOWN else ""
    raise UsageError(
        f"no checkpoint of {directory.path} can be read. {found.rstrip('.')}{more}. Copy the directory again, or start "
        "another run."
    )


def mend(directory: RunDirectory, step: int, damaged: Iterable[Damaged]) -> list[str]:
    """Prepares a run's directory for going on after ``step``: metrics of later steps and what is unfinished go.

    Returns:
        A line about each damaged checkpoint, which gets another name.
    """
    drop_after(directory.metrics, step)
    lines = [f"Skipped {path.name}: {why} It is {_set_aside(path).name} now." for path, why in damaged]
    for place in (directory.path, directory.checkpoints):
        remove_leftovers(place)
    return lines


def _set_aside(damaged: Path) -> Path:
    """Gives a damaged checkpoint a name under which nobody takes it for one; the run may come to that step again."""
    path, number = damaged.with_name(f"damaged_{damaged.name}"), 2
    while os.path.lexists(path):
        path, number = damaged.with_name(f"damaged_{damaged.name}_{number}"), number + 1
    return damaged.rename(path)


@contextlib.contextmanager
def pointing_to_another(directory: RunDirectory) -> Generator[None]:
    """For the time in which a checkpoint's weights are read.

    Raises:
        UsageError: If it is damaged; says which other can be read.
    """
    try:
        yield
    except (DamagedCheckpointError, FileNotFoundError) as error:
        where = Path(error.filename).parent.name if isinstance(error, FileNotFoundError) and error.filename else ""
        raise UsageError(f"{where}{': ' * bool(where)}{_why(error)} {_another(directory)}") from error


def _another(directory: RunDirectory) -> str:
    for path in step_directories(directory.checkpoints):
        with contextlib.suppress(ValueError, OSError):
            step = Checkpoint(path=path, manifest=read_manifest(path))
            step.weights()
            return f"The last whole one: --checkpoint {step.manifest.step}"
    return "No other can be read: copy the whole directory again."


def _why(error: Exception) -> str:
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{Path(error.filename).name} is missing."
    return one_line(error)
