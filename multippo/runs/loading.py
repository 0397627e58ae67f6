"""A run of ``multippo train``, made again in Python or resumed, from the last checkpoint that is not damaged."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.checkpointing.manifest import (
    read_manifest,
    read_steps,
    step_directories,
    step_directory,
    step_entries,
)
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.metrics import drop_after
from multippo.algorithms.types import TrainingState
from multippo.arguments import check_size, is_integer
from multippo.envs.api import Env
from multippo.errors import DamagedCheckpointError, UsageError, one_line
from multippo.files import remove_leftovers
from multippo.runs.directory import RunDirectory
from multippo.runs.settings import RunSettings


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that ``load_run`` made again.

    Attributes:
        network: The network with the checkpoint's parameters and statistics, on the active engine.
        env: Environments of the run's kind; ``close`` them.
        config: The configuration of its training.
        checkpoint: Source of the weights. ``checkpoint.restore(network)`` is the whole training state.
    """

    network: Any
    env: Env
    config: TrainConfig
    checkpoint: Checkpoint


def load_run(
    run_dir: str | os.PathLike[str], checkpoint: str | Path | int = "latest", num_envs: int | None = None
) -> Run:
    """Makes a run of ``multippo train`` again on the active engine, whichever engine made it.

    The weights come in the active precision, not the run's: ``with multippo.precision(...)`` for another than float32.

    Args:
        run_dir: The run's directory, the one with the ``config.json``.
        checkpoint: ``"latest"``, ``"best"``, a step, or a path.
        num_envs: Number of environments; ``None`` for as many as in training.

    Raises:
        MultippoError: If the directory, the checkpoint or the environment can't be used.
        ImportError: If a package of the environment is missing.
        ValueError: If ``num_envs`` is not an integer of at least 1, ``checkpoint`` none of the above, or the network
            not the checkpoint's.
    """
    if num_envs is not None:
        check_size("", "num_envs", num_envs, otherwise=", or None for as many as trained")
    directory = RunDirectory(Path(run_dir))
    settings = directory.settings()
    which = _which(directory, checkpoint)
    read_checkpoint(directory, which)  # damage is reported at once, before the environment is made
    env = settings.make_env(num_envs)
    try:
        network = settings.make_network(env)
        found = read_checkpoint(directory, which, lambda found: found.restore_weights(network))
    except BaseException:
        with contextlib.suppress(Exception):  # the first error is the one to report
            env.close()
        raise
    return Run(network=network, env=env, config=settings.train, checkpoint=found)


def _which(directory: RunDirectory, checkpoint: Any) -> str:
    """Argument of ``RunDirectory.checkpoint`` for one of ``load_run``: a step becomes a path, as text may be either.

    Raises:
        ValueError: If ``checkpoint`` is none of those of ``load_run``.
    """
    if is_integer(checkpoint, 0):
        return str(step_directory(directory.checkpoints.absolute(), int(checkpoint)))
    if isinstance(checkpoint, str | Path) and str(checkpoint):
        return str(checkpoint)
    raise ValueError(
        f"checkpoint={checkpoint!r} is not possible: expected 'latest', 'best', a path, or a step, an integer of at "
        "least 0."
    )


def read_checkpoint(
    directory: RunDirectory, which: str, read: Callable[[Checkpoint], None] = lambda _: None
) -> Checkpoint:
    """Opens a checkpoint and calls ``read`` with it, again if a training at work replaces it meanwhile.

    Raises:
        UsageError: If the checkpoint does not exist, or is damaged.
    """
    while True:
        there = step_directories(directory.checkpoints)
        try:
            checkpoint = directory.checkpoint(which)
            read(checkpoint)
            return checkpoint
        except (DamagedCheckpointError, FileNotFoundError) as error:
            missing = isinstance(error, FileNotFoundError)
            if missing and step_directories(directory.checkpoints) != there:
                continue
            where = f"{Path(error.filename).parent.name}: " if missing and error.filename else ""
            raise UsageError(f"{where}{reason(error)} {another_checkpoint(directory)}") from error


def restore_last_good(directory: RunDirectory, network: Any) -> tuple[Checkpoint, TrainingState, dict[Path, str]]:
    """Reads the latest checkpoint of a run that is whole.

    Args:
        directory: The run's directory.
        network: Network to write the weights into.

    Returns:
        The checkpoint, its training state, and the faults of later ones that are damaged.

    Raises:
        UsageError: If none is whole.
        ValueError: If the checkpoint does not fit the network, or is of a later format.
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
        UsageError: If the two numbers differ.
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
    """Sentence that names the last whole checkpoint of a run with a damaged one."""
    for path in step_directories(directory.checkpoints):
        with contextlib.suppress(ValueError, OSError):
            step = Checkpoint(path=path, manifest=read_manifest(path))
            step.weights()
            return f"The last whole one: --checkpoint {step.manifest.step}"
    return "No other can be read: copy the whole directory again."


def reason(error: DamagedCheckpointError | FileNotFoundError) -> str:
    """Reason for which a checkpoint could not be read, in one line."""
    if isinstance(error, FileNotFoundError) and error.filename:
        return f"{Path(error.filename).name} is missing."
    return one_line(error)
