"""A run's metrics, written to the disk."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Any

from multippo.algorithms.metrics import JsonlWriter, TensorBoardWriter
from multippo.runs.directory import RunDirectory

_LOG = logging.getLogger("multippo")


class RunRecord:
    """Writer of a run's metrics to the disk; files are made when there is something to write.

    Args:
        directory: The run's directory.
        goes_on: True if a full disk is only worth a warning.

    Attributes:
        first_step: Step at which the run begins or goes on; may be set until something is written.
        followers: Functions of metrics and step that pass the metrics on to other places.
    """

    def __init__(self, directory: RunDirectory, goes_on: bool) -> None:
        self.first_step = 0
        self.followers: list[Callable[..., Any]] = []
        self._goes_on = goes_on
        self._make: dict[str, Callable[[], JsonlWriter | TensorBoardWriter]] = {
            "metrics.jsonl": lambda: JsonlWriter(directory.metrics),
            "TensorBoard's events": lambda: TensorBoardWriter(directory.path, self.first_step),
        }
        self._writers: dict[str, JsonlWriter | TensorBoardWriter] = {}
        self._failing: set[str] = set()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Writes metrics to all files, and passes them on.

        Raises:
            OSError: If the disk is full, or the like, and the run is to stop.
        """
        for follower in self.followers:
            follower(dict(metrics), step=int(metrics["step"]))
        for name, make in self._make.items():
            try:
                if name not in self._writers:
                    self._writers[name] = make()
                self._writers[name].write(metrics)
                self._failing.discard(name)
            except OSError as error:
                if not self._goes_on:
                    raise
                if name not in self._failing:
                    _LOG.warning("Metrics are missing in %s: %s. The run goes on.", name, error)
                self._failing.add(name)
                # Opened again for the next metrics, when there may be space on the disk.
                if (writer := self._writers.pop(name, None)) is not None:
                    with contextlib.suppress(OSError):
                        writer.close()

    def close(self) -> None:
        """Closes the files."""
        for writer in self._writers.values():
            with contextlib.suppress(*((OSError,) if self._goes_on else ())):
                writer.close()
