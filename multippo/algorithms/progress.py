"""Display of a run's progress on a terminal, in a notebook or in a log."""

from __future__ import annotations

import collections
import html
import importlib
import math
import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

from multippo.algorithms.metric_names import EVAL_RETURN, RECENT_RETURN

_SECONDS_BETWEEN_LINES, _SECONDS_BETWEEN_TABLES = 5.0, 0.2


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
        self._began = time.perf_counter()

    def update(self, metrics: Mapping[str, float]) -> None:
        """Takes an iteration's or an evaluation's metrics."""
        if EVAL_RETURN in metrics:
            self.note(f"step {int(metrics['step']):,}  evaluation: return {metrics[EVAL_RETURN]:.1f}")
            return
        self._return = metrics.get(RECENT_RETURN, math.nan)
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
            elapsed=_duration(now - self._began),
            left=_duration(max(0, self._total - iteration) * seconds),
        )

    def note(self, text: str) -> None:
        """Shows a line of text between two updates."""

    def stage(self, text: str) -> None:
        """Shows an activity that lasts until the next update, such as compiling."""

    def part(self, done: float) -> None:
        """Shows the share of the evaluation after training that is done, from 0 to 1."""

    def _show(self, iteration: int, **words: str) -> None:
        """Shows an iteration: its ``step``, ``score``, ``speed``, and the times ``elapsed`` and ``left``."""

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
        line = "step {step} ({percent}%)  return {score}  {speed} steps/s  {elapsed} elapsed  {left} left"
        self.note(line.format(percent=percent, **words))

    def note(self, text: str) -> None:
        """Writes a line."""
        print(text, file=self._stream, flush=True)

    stage = note


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
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            TextColumn("{task.percentage:>3.0f}%{task.fields[numbers]}"),
            TimeElapsedColumn(),
            TextColumn("elapsed{task.fields[rest]}"),
            console=console,
        )
        self._task = self._bar.add_task(f"step –/{total_steps:,}", total=total_iterations, numbers="", rest="")
        self._evaluation: Any = None

    def __enter__(self) -> BarProgress:
        """Shows the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the bar as it is, and the cursor visible."""
        self._bar.stop()

    def _show(self, iteration: int, **words: str) -> None:
        numbers, rest = "  return {score}  {speed} steps/s", "  {left} left"
        fields: dict[str, Any] = {"numbers": numbers.format(**words), "rest": rest.format(**words)}
        self._bar.update(self._task, completed=iteration, description=f"step {words['step']}", **fields)

    def stage(self, text: str) -> None:
        """Shows an activity behind the bar."""
        rest: Any = f"  {text}"
        self._bar.update(self._task, rest=rest)

    def part(self, done: float) -> None:
        """Shows a second bar."""
        if self._evaluation is None:
            self._evaluation = self._bar.add_task("evaluation", total=1.0, numbers="", rest="")
        self._bar.update(self._evaluation, completed=done)

    def note(self, text: str) -> None:
        """Writes a line above the bar."""
        self._bar.console.print(text, markup=False, highlight=False)


class NotebookProgress(Progress):
    """Table in a notebook's output that is kept up to date, with the last evaluations below it.

    Args:
        total_steps: Environment steps of the whole run.
        total_iterations: Iterations of the whole run.
    """

    def __init__(self, total_steps: int, total_iterations: int) -> None:
        super().__init__(total_steps, total_iterations)
        self._display: Any = importlib.import_module("IPython.display")
        self._words: dict[str, str] = {}
        self._notes, self._drawn = collections.deque[str](maxlen=10), -math.inf
        self._output = self._display.display(self._display.HTML(""), display_id=True)

    def _show(self, iteration: int, **words: str) -> None:
        done, score, speed = f"{100 * iteration // self._total}%", words.pop("score"), words.pop("speed")
        self._words = {"done": done, "return": score, "steps/s": speed, **words}
        if iteration == self._total or time.perf_counter() - self._drawn > _SECONDS_BETWEEN_TABLES:
            self._draw()

    def note(self, text: str) -> None:
        """Writes a line below the table."""
        self._notes.append(text)
        self._draw()

    def stage(self, text: str) -> None:
        """Shows an activity in the table."""
        self._words["now"] = text
        self._draw()

    def __exit__(self, *_: object) -> None:
        """Leaves the last numbers."""
        self._draw()

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        rows = self._words.keys(), self._words.values()
        names, numbers = ("".join(f"<td>{html.escape(word)}</td>" for word in row) for row in rows)
        lines = html.escape("\n".join(self._notes))
        self._output.update(self._display.HTML(f"<table><tr>{names}</tr><tr>{numbers}</tr></table><pre>{lines}</pre>"))


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


def progress_where_seen(shown: bool, total_steps: int, total_iterations: int) -> Progress:
    """Display of a run's progress from Python: a bar on a terminal, a table in a notebook, elsewhere none.

    Args:
        shown: False for none anywhere.
        total_steps: Environment steps of the whole run.
        total_iterations: Iterations of the whole run.
    """
    if shown and "ipykernel" in sys.modules:
        return NotebookProgress(total_steps, total_iterations)
    return make_progress("auto" if shown and sys.stderr.isatty() else "off", total_steps, total_iterations, sys.stderr)


def _duration(seconds: float) -> str:
    if not math.isfinite(seconds):
        return "–"
    whole = max(0, round(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"
