"""A run's progress: shown on a terminal or in a log, and its metrics written to the disk."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from multippo.algorithms.metrics import EVAL_RETURN, RETURN, JsonlWriter, TensorBoardWriter
from multippo.runs.directory import RunDirectory

_SECONDS_BETWEEN_LINES = 5.0


class Progress:
    """Display of step, return, steps per second and time left; this base class shows nothing.

    A context manager; ``update`` is a ``log_fn``.

    Args:
        total_steps: Environment steps of the whole run.
        total_iterations: Iterations of the whole run, which measure progress, as some host steps may not count.
    """

    def __init__(self, total_steps: int, total_iterations: int) -> None:
        self._total_steps, self._total = total_steps, total_iterations
        self._return = math.nan
        self._since: tuple[float, int] | None = None

    def update(self, metrics: Mapping[str, float]) -> None:
        """Takes an iteration's or an evaluation's metrics."""
        if EVAL_RETURN in metrics:
            self.note(f"step {int(metrics['step']):,}  evaluation: return {metrics[EVAL_RETURN]:.1f}")
            return
        if math.isfinite(metrics.get(RETURN, math.nan)):
            self._return = metrics[RETURN]
        now, iteration = time.perf_counter(), int(metrics["iteration"])
        speed = metrics.get("throughput/train_sps", math.nan)
        seconds = metrics["step"] / iteration / speed if speed else math.nan
        # Measured by the clock, which includes evaluations and checkpoints, from the second call on, since the first
        # iteration compiles.
        if self._since is None:
            self._since = now, iteration
        elif iteration > self._since[1]:
            seconds = (now - self._since[0]) / (iteration - self._since[1])
        self._show(
            iteration,
            step=f"{int(metrics['step']):,}/{self._total_steps:,}",
            score=f"{self._return:.1f}" if math.isfinite(self._return) else "–",
            speed=f"{speed:,.0f}",
            left=_duration(max(0, self._total - iteration) * seconds),
        )

    def note(self, text: str) -> None:
        """Shows a line of text between two updates."""

    def _show(self, iteration: int, **words: str) -> None:
        """Shows an iteration: its ``step``, ``score``, ``speed`` and the time ``left``."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        """Cleans up; does nothing by default."""


class PlainProgress(Progress):
    """Lines for a log: the first, the last, and one every few seconds in between.

    Args:
        total_steps: Environment steps of the whole run.
        total_iterations: Iterations of the whole run.
        stream: The file to write lines to.
    """

    def __init__(self, total_steps: int, total_iterations: int, stream: TextIO) -> None:
        super().__init__(total_steps, total_iterations)
        self._stream, self._last_line = stream, -math.inf

    def _show(self, iteration: int, **words: str) -> None:
        if iteration < self._total and time.perf_counter() - self._last_line < _SECONDS_BETWEEN_LINES:
            return
        self._last_line = time.perf_counter()
        percent = min(100, 100 * iteration // self._total)
        line = "step {step} ({percent}%)  return {score}  {speed} steps/s  {left} left"
        self.note(line.format(percent=percent, **words))

    def note(self, text: str) -> None:
        """Writes a line."""
        print(text, file=self._stream, flush=True)


class BarProgress(Progress):
    """Bar that rich keeps up to date.

    Args:
        total_steps: Environment steps of the whole run.
        total_iterations: Iterations of the whole run.
        console: A ``rich.console.Console`` on a terminal.
    """

    def __init__(self, total_steps: int, total_iterations: int, console: Any) -> None:
        from rich.progress import BarColumn, SpinnerColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichProgress

        super().__init__(total_steps, total_iterations)
        self._bar = RichProgress(
            SpinnerColumn(),
            TextColumn("step {task.fields[step]}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("return {task.fields[score]}"),
            TextColumn("{task.fields[speed]} steps/s"),
            TextColumn("{task.fields[left]} left"),
            TimeElapsedColumn(),
            console=console,
        )
        step: Any = f"–/{total_steps:,}"
        self._task = self._bar.add_task("", total=total_iterations, step=step, score="–", speed="–", left="–")

    def __enter__(self) -> BarProgress:
        """Shows the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the bar as it is, and the cursor visible."""
        self._bar.stop()

    def _show(self, iteration: int, **words: Any) -> None:
        self._bar.update(self._task, completed=iteration, **words)

    def note(self, text: str) -> None:
        """Writes a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)


def make_progress(kind: str, total_steps: int, total_iterations: int, stream: TextIO) -> Progress:
    """Makes the display of progress.

    Args:
        kind: ``bar``, ``plain``, ``off``; or ``auto``: a bar on a terminal, else plain lines.
        total_steps: Environment steps of the whole run.
        total_iterations: Iterations of the whole run.
        stream: The file to write to.
    """
    totals = total_steps, total_iterations
    if kind == "off":
        return Progress(*totals)
    draws = stream.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    if kind == "plain" or (kind == "auto" and not draws):
        return PlainProgress(*totals, stream)
    from rich.console import Console

    return BarProgress(*totals, Console(file=stream, force_terminal=True))


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


_LOG = logging.getLogger("multippo")


class RunRecord:
    """Writer of a run's metrics to the disk; files are made when there is something to write.

    Args:
        directory: The run's directory.
        goes_on: True if a full disk is only worth a warning.

    Attributes:
        first_step: Step at which the run begins or goes on; may be set until something is written.
    """

    def __init__(self, directory: RunDirectory, goes_on: bool) -> None:
        self.first_step = 0
        self._goes_on = goes_on
        self._make: dict[str, Callable[[], JsonlWriter | TensorBoardWriter]] = {
            "metrics.jsonl": lambda: JsonlWriter(directory.metrics),
            "TensorBoard's events": lambda: TensorBoardWriter(directory.path, self.first_step),
        }
        self._writers: dict[str, JsonlWriter | TensorBoardWriter] = {}
        self._failing: set[str] = set()

    def write(self, metrics: Mapping[str, float]) -> None:
        """Writes metrics to all files.

        Raises:
            OSError: If the disk is full, or the like, and the run is to stop.
        """
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
