"""A run of ``multippo train``, made again in Python: its network with the weights of a checkpoint, its environments."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.checkpointing.steps import step_directories, step_directory
from multippo.algorithms.config import TrainConfig
from multippo.arguments import check_size, is_integer
from multippo.envs.api import Env
from multippo.errors import DamagedCheckpointError, UsageError
from multippo.runs.directory import RunDirectory
from multippo.runs.recovery import another_checkpoint, reason


@dataclasses.dataclass(frozen=True, kw_only=True)
class Run:
    """A run that ``load_run`` made again.

    Attributes:
        network: With the checkpoint's parameters and statistics, on the active engine.
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
        ValueError: If ``num_envs`` or ``checkpoint`` is anything else.
    """
    if num_envs is not None:
        check_size("", "num_envs", num_envs, otherwise=", or None for as many as trained")
    directory = RunDirectory(Path(run_dir))
    settings = directory.settings()
    which = _which(directory, checkpoint)
    read_checkpoint(directory, which)  # at once, not only after the environment is made
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
    """The checkpoint in the words of ``RunDirectory.checkpoint``, to which a number in text could be a path."""
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
    """A checkpoint, after ``read`` of it; a training at work may take one away at any moment, for a later one.

    Raises:
        UsageError: If there is none, or it is damaged.
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
