"""Ctrl-C and SIGTERM that let the iteration at hand finish, if it does so soon."""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
from collections.abc import Callable, Generator
from types import FrameType
from typing import Any

from multippo.errors import Terminated

__all__ = ["DeferredInterrupt", "raise_terminated", "rescues", "save_what_is_finished"]

_LOG = logging.getLogger("multippo")
_NAMES: dict[int, str] = {signal.SIGINT: "Interrupted", signal.SIGTERM: "Terminated"}

rescues: list[Callable[[], None]] = []
"""Of the trainings at work, outermost first: what saves the last finished iteration from another thread."""


def save_what_is_finished() -> None:
    """Saves the last finished iteration of the training at work, for a process that has to end in its midst."""
    if rescues:
        rescues[-1]()


def raise_terminated(signum: int, frame: FrameType | None) -> None:
    """A handler of SIGTERM that raises ``Terminated``, as Python's own one of SIGINT raises KeyboardInterrupt."""
    del signum, frame
    raise Terminated


_DEFAULTS = {signal.SIGINT: (signal.default_int_handler,), signal.SIGTERM: (signal.SIG_DFL, raise_terminated)}


class DeferredInterrupt:
    """While entered, the first SIGINT or SIGTERM is only noted, so that no update is left half done.

    Work inside ``abandonable`` changes nothing that is kept. It is given up, by a KeyboardInterrupt (by ``Terminated``
    for SIGTERM), at the second signal or some seconds after the first: an environment may be slow. Elsewhere a second
    signal raises at once.

    A signal that the caller handles is left to the caller. Outside the main thread, where Python lets nobody handle
    signals, all of this does nothing.

    Args:
        patience_s: How long abandonable work may go on after the first signal.

    Attributes:
        abandoned: Whether work has been given up for a signal.
    """

    def __init__(self, patience_s: float = 5.0) -> None:
        self.abandoned = False
        self._signal: int | None = None
        self._patience_s = patience_s
        self._abandonable = self._late = False
        self._previous: dict[int, Any] = {}
        self._previous_alarm: Any = None

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            # A caller's own handlers keep their say; only the defaults are replaced.
            for number, defaults in _DEFAULTS.items():
                if signal.getsignal(number) in defaults:
                    self._previous[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        if self._previous_alarm is not None:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, self._previous_alarm)
            self._previous_alarm = None
        for number, handler in self._previous.items():
            signal.signal(number, handler)
        self._previous.clear()

    @property
    def requested(self) -> bool:
        """Whether there was a signal."""
        return self._signal is not None

    @contextlib.contextmanager
    def abandonable(self) -> Generator[None]:
        """Around work that can be given up at any point."""
        self._abandonable = True
        try:
            if self._late:
                self._abandon()
            yield
        except Exception as error:
            # SIGTERM often goes to the processes of the environments as well, and they end at once.
            if self.requested and not self.abandoned:
                _LOG.debug("Given up with %r.", error)
                self._abandon()
            raise
        finally:
            self._abandonable = False

    def raise_if_requested(self) -> None:
        """Raises the KeyboardInterrupt, or for SIGTERM the ``Terminated``, that was held back."""
        if self._signal == signal.SIGTERM:
            raise Terminated
        if self._signal is not None:
            raise KeyboardInterrupt

    def _note(self, signum: int, frame: FrameType | None) -> None:
        del frame
        if self.requested:
            if self._abandonable:
                self._abandon()
            self.raise_if_requested()
        self._signal = signum
        _LOG.warning("%s: finishing this iteration first. Once more stops at once.", _NAMES[signum])
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
        self.raise_if_requested()
