"""Resumes from the last intact checkpoint and reports damaged ones."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.checkpointing.manifest import read_manifest
from multippo.algorithms.checkpointing.steps import read_steps, step_directories, step_entries
from multippo.algorithms.metrics import drop_after
from multippo.algorithms.types import TrainingState
from multippo.atomic_files import remove_leftovers
from multippo.errors import DamagedCheckpointError, UsageError, one_line
from multippo.runs.directory import RunDirectory
from multippo.runs.settings import RunSettings


def restore_last_good(directory: RunDirectory, network: Any) -> tuple[Checkpoint, TrainingState, dict[Path, str]]:
    """Reads the latest checkpoint of a run that is whole.

    Args:
        directory: The run's.
        network: Gets the weights.

    Returns:
        The checkpoint, the training state in it, and the faults of later ones that are damaged.

    Raises:
        UsageError: If all are damaged.
        ValueError: If it does not fit the network, or is of a later format.
    """
    damaged: dict[Path, str] = {}
    for path in step_entries(directory.checkpoints):
        if path.is_symlink() or not path.is_dir():
            damaged[path] = "it is a link or a file, and a checkpoint is a directory."
            continue
        try:
            checkpoint = Checkpoint(path=path, manifest=read_manifest(path))
            return checkpoint, checkpoint.restore(network), damaged
        except (DamagedCheckpointError, FileNotFoundError) as error:
            damaged[path] = reason(error)
    found = "; ".join(f"{path.name}: {why}" for path, why in damaged.items())
    raise UsageError(
        f"no checkpoint of {directory.path} can be read. {found} Copy the directory again, or start another run."
    )


def check_num_envs(directory: RunDirectory, settings: RunSettings) -> None:
    """Raises unless a run's settings are of as many environments as its latest checkpoint, before any is made.

    Raises:
        UsageError: If they differ.
    """
    for path, manifest in read_steps(directory.checkpoints)[:1]:
        if manifest.num_envs != settings.train.ppo.num_envs:
            raise UsageError(
                f"{directory.config} is of num_envs={settings.train.ppo.num_envs}, and {path.name} of "
                f"{manifest.num_envs} environments: one of the two was changed; copy the directory again."
            )


def mend(directory: RunDirectory, step: int, damaged: Mapping[Path, str]) -> list[str]:
    """Removes metrics of steps after ``step`` and unfinished files, and renames damaged checkpoints.

    Returns:
        A line about each damaged checkpoint, which is renamed since the run may come to that step again.
    """
    drop_after(directory.metrics, step)
    lines: list[str] = []
    for path, why in damaged.items():
        new, number = path.with_name(f"damaged_{path.name}"), 2
        while os.path.lexists(new):
            new, number = path.with_name(f"damaged_{path.name}_{number}"), number + 1
        path.rename(new)
        lines.append(f"Skipped {path.name}: {why} It is {new.name} now.")
    for place in (directory.path, directory.checkpoints):
        remove_leftovers(place)
    return lines


def another_checkpoint(directory: RunDirectory) -> str:
    """A sentence that names the last whole checkpoint of a run of which another one is damaged."""
    for path in step_directories(directory.checkpoints):
        with contextlib.suppress(ValueError, OSError):
            step = Checkpoint(path=path, manifest=read_manifest(path))
            step.weights()
            return f"The last whole one: --checkpoint {step.manifest.step}"
    return "No other can be read: copy the whole directory again."


def reason(error: DamagedCheckpointError | FileNotFoundError) -> str:
    """The reason for which a checkpoint could not be read, in a line."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{Path(error.filename).name} is missing."
    return one_line(error)
