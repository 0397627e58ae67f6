"""Ctrl-C that lets the iteration at hand finish."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any

__all__ = ["DeferredInterrupt"]


class DeferredInterrupt:
    """While entered, the first SIGINT is only noted, so that no update is left half done; a second one raises at once.

    Outside the main thread, where Python lets nobody handle signals, it does nothing.
    """

    def __init__(self) -> None:
        self.requested = False
        self._previous: Any = None

    def __enter__(self) -> DeferredInterrupt:
        # A caller's own handler keeps its say; only Python's default is replaced.
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    def raise_if_requested(self) -> None:
        """Raises the KeyboardInterrupt that was held back."""
        if self.requested:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            signal.default_int_handler(signum, frame)
        self.requested = True
