"""Ctrl-C that lets the iteration at hand finish, if it does so soon."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Generator
from types import FrameType
from typing import Any

__all__ = ["DeferredInterrupt"]

_LOG = logging.getLogger("multippo")


class DeferredInterrupt:
    """While entered, the first SIGINT is only noted, so that no update is left half done.

    Work inside ``abandonable`` changes nothing that is kept. It is given up, by a KeyboardInterrupt, at the second
    SIGINT or some seconds after the first: an environment may be slow. Elsewhere a second SIGINT raises at once.

    Outside the main thread, where Python lets nobody handle signals, all of this does nothing.

    Args:
        patience_s: How long abandonable work may go on after the first SIGINT.

    Attributes:
        requested: Whether there was one.
        abandoned: Whether work has been given up for it.
    """

    def __init__(self, patience_s: float = 5.0) -> None:
        self.requested = self.abandoned = False
        self._patience_s = patience_s
        self._abandonable = self._late = False
        self._previous: Any = None
        self._previous_alarm: Any = None

    def __enter__(self) -> DeferredInterrupt:
        # A caller's own handler keeps its say; only Python's default is replaced.
        on_main = threading.current_thread() is threading.main_thread()
        if on_main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._previous = signal.signal(signal.SIGINT, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._previous_alarm)
            self._previous_alarm = None
        if self._previous is not None:
            signal.signal(signal.SIGINT, self._previous)
            self._previous = None

    @contextlib.contextmanager
    def abandonable(self) -> Generator[None]:
        """Around work that can be given up at any point."""
        self._abandonable = True
        try:
            if self._late:
                self._abandon()
            yield
        finally:
            self._abandonable = False

    def raise_if_requested(self) -> None:
        """Raises the KeyboardInterrupt that was held back."""
        if self.requested:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        if self.requested:
            if self._abandonable:
                self._abandon()
            signal.default_int_handler(signum, frame)
        self.requested = True
        _LOG.warning("Interrupted: finishing this iteration and saving it. Ctrl-C once more stops at once.")
        # Where the system has such a timer and nobody else uses it.
        if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            self._previous_alarm = signal.signal(signal.SIGALRM, self._expire)
            signal.setitimer(signal.ITIMER_REAL, self._patience_s)

    def _expire(self, signum: int, frame: FrameType | None) -> None:
        del signum, frame
        self._late = True
        if self._abandonable:
            self._abandon()

    def _abandon(self) -> None:
        self.abandoned = True
        raise KeyboardInterrupt
