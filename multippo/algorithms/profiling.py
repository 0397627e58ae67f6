"""Traces of a few iterations of a run."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any


class Profile:
    """Trace of some iterations, after those in which programmes are compiled.

    Args:
        directory: Where the trace is written to.
        first: The first iteration that is traced, counted from 0 in this process.
        num_iterations: Number of iterations traced.
    """

    def __init__(self, directory: Path, first: int = 2, num_iterations: int = 3) -> None:
        self.directory, self._window = directory, (first, first + num_iterations)
        self._seen, self._stack = 0, contextlib.ExitStack()

    def before(self, engine: Any) -> bool:
        """Starts or ends the trace before an iteration; returns True if the trace is not over."""
        first, end = self._window
        if self._seen == first:
            self._stack.enter_context(engine.profile(self.directory))
        if self._seen == end:
            self.close()
        self._seen += 1
        return self._seen <= end

    def close(self) -> bool:
        """Ends the trace; returns True if there is one."""
        self._stack.close()
        return self._seen > self._window[0]
