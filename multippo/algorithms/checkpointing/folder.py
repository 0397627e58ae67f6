"""``CheckpointFolder``, which saves a run's checkpoints and removes old ones."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from multippo.algorithms.checkpointing.checkpoint import save_checkpoint
from multippo.algorithms.checkpointing.manifest import (
    best_checkpoint,
    best_first,
    latest_checkpoint,
    read_steps,
    step_directory,
)
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.types import TrainingState
from multippo.arguments import check_size, require
from multippo.files import remove_directory, remove_leftovers

_LOG = logging.getLogger("multippo")

OnSaveError = Literal["stop", "continue"]


class CheckpointFolder:
    """Saves a run's checkpoints as ``step_…`` in a directory, and removes old ones.

    ``train_ppo(..., checkpoint_fn=folder.save)``. A checkpoint is removed only after the next one is complete, and in
    one step: a reader finds all of it or nothing, whenever the process is killed. Leftovers of a killed process are
    cleared at each save, so no two processes may save to one directory. Checkpoints found in it count as the run's
    own, so that a resumed run knows which was best before; those that can't be read are left alone.

    Args:
        path: The directory; made at the first save.
        network: The network in training.
        keep_last: Number of checkpoints of the highest steps to keep. None: all, or the last one with ``keep_best``.
        keep_best: Number of best ones to keep besides, by the mean return of the evaluation after the same iteration;
            of equal ones the later. ``TrainConfig(checkpoint_at_evals=True)`` saves at every evaluation. None: none.
        on_save_error: Reaction to a disk that is full or can't be written: ``"stop"`` raises the OSError,
            ``"continue"`` warns and leaves it in ``error`` until a later save succeeds.
        config: Settings to store in each checkpoint, see ``save_checkpoint``.
        extra: More to store in each, see ``save_checkpoint``.

    Attributes:
        path: The directory.
        saved: The last checkpoint saved; None before the first. A run that goes on from a checkpoint may set it.
        error: Error of the last save; None if it succeeded.

    Raises:
        ValueError: If ``keep_last`` or ``keep_best`` is not an integer of at least 1, or ``on_save_error`` is another
            word.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        network: Any,
        *,
        keep_last: int | None = None,
        keep_best: int | None = None,
        on_save_error: OnSaveError = "stop",
        config: TrainConfig | Mapping[str, Any] | None = None,
        extra: Mapping[str, Any] | None = None,
    ) -> None:
        for name, number in (("keep_last", keep_last), ("keep_best", keep_best)):
            if number is not None:
                check_size("CheckpointFolder", name, number, otherwise=", or None")
        require(on_save_error in ("stop", "continue"), "on_save_error", on_save_error, "'stop' or 'continue'")
        self.path = Path(path)
        self.saved: Path | None = None
        self.error: OSError | None = None
        self._network, self._config, self._extra = network, config, extra
        self._keep_last, self._keep_best = keep_last, keep_best
        self._continues = on_save_error == "continue"
        self._lock = threading.Lock()

    def save(self, training_state: TrainingState, step: int) -> None:
        """Saves a state; a ``checkpoint_fn``. Threads may call it side by side.

        Raises:
            OSError: If the disk is full, read-only, …, and ``on_save_error`` is ``"stop"``; earlier checkpoints stay.
            FileExistsError: If something other than a checkpoint is in the checkpoint's place.
        """
        with self._lock:
            try:
                remove_leftovers(self.path)
                directory = step_directory(self.path, step)
                self.saved = save_checkpoint(
                    directory, training_state, self._network, config=self._config, extra=self._extra
                )
                self.error = None
                self._remove_others(directory)
            except OSError as error:
                # Without a number the error is not the disk's: something else is in the checkpoint's place.
                if error.errno is None or not self._continues:
                    raise
                self.error = error
                last = "Nothing is saved yet" if self.saved is None else f"The last checkpoint is {self.saved.name}"
                _LOG.warning("The checkpoint of step %d was not saved: %s. %s; the run goes on.", step, error, last)

    def latest(self) -> Path | None:
        """Path of the checkpoint of the highest step; None if there is none."""
        return latest_checkpoint(self.path)

    def best(self) -> Path | None:
        """Path of the checkpoint of the best evaluation; None if none was made at one."""
        return best_checkpoint(self.path)

    def _remove_others(self, saved: Path) -> None:
        """Removes checkpoints that are neither among the last nor among the best, nor saved just now."""
        if self._keep_last is None and self._keep_best is None:
            return
        found = read_steps(self.path)
        kept = {path for path, _ in found[: self._keep_last or 1]} | set(best_first(found)[: self._keep_best or 0])
        for path, _ in found:
            if path in kept or path.name == saved.name:
                continue
            try:
                remove_directory(path)
            except OSError as error:
                _LOG.warning("The checkpoint %s could not be removed: %s.", path, error)
