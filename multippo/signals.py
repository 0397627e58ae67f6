"""Handling of signals that end a process: training finishes its iteration and saves it, and a process ends in time."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator

from multippo.errors import Terminated

_LOG = logging.getLogger("multippo")
_WORDS: dict[int, str] = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}
_PATIENCE_S = 5.0
"""Seconds that abandonable work may go on after the first signal."""
_TO_THE_END_S = 8.0
"""Seconds between a signal and the end that a ``Deadline`` makes."""
_active: list[DeferredInterrupt] = []


def save_what_is_finished() -> None:
    """Saves the last finished iteration of every training, the innermost first, for a process that has to end."""
    for interrupt in reversed(_active):
        interrupt.rescue()


def _raise_terminated(*_: object) -> None:
    """Handles SIGTERM by raising ``Terminated``, as Python's own handler of SIGINT raises KeyboardInterrupt."""
    raise Terminated


_DEFAULTS = {signal.SIGINT: (signal.default_int_handler,), signal.SIGTERM: (signal.SIG_DFL, _raise_terminated)}


class DeferredInterrupt:
    """Defers the first SIGINT or SIGTERM inside a ``with`` block, so that no update is left half done.

    Work inside ``abandonable`` changes nothing that is kept, and is given up, by a KeyboardInterrupt (by ``Terminated``
    for SIGTERM), at the second signal or some seconds after the first, since an environment may be slow. Elsewhere a
    second signal raises at once.

    A signal that the caller handles is left to the caller. Python handles signals in the main thread alone; a deferred
    one is passed on to blocks in other threads.

    Args:
        rescue: Function that saves all finished work, from any thread; see ``save_what_is_finished``.
    """

    def __init__(self, rescue: Callable[[], object] = str) -> None:
        self.rescue = rescue
        self._signal: int | None = None
        self._abandonable = self._late = False
        self._undoing = contextlib.ExitStack()

    def __enter__(self) -> DeferredInterrupt:
        if threading.current_thread() is threading.main_thread():
            # A caller's own handlers keep their say; only the defaults are replaced.
            for number, defaults in _DEFAULTS.items():
                if signal.getsignal(number) in defaults:
                    self._handle(number, self._note)
        _active.append(self)
        self._undoing.callback(_active.remove, self)
        return self

    def __exit__(self, *_: object) -> None:
        self._undoing.close()

    @property
    def requested(self) -> bool:
        """True after a signal."""
        return self._signal is not None

    @contextlib.contextmanager
    def abandonable(self) -> Generator[None]:
        """Marks work that can be given up at any point."""
        self._abandonable = True
        try:
            if self._late:
                self.raise_if_requested()
            yield
        except Exception:
            # SIGTERM often goes to the processes of the environments as well, and they end at once.
            self.raise_if_requested()
            raise
        finally:
            self._abandonable = False

    def raise_if_requested(self) -> None:
        """Raises the deferred KeyboardInterrupt, or for SIGTERM the ``Terminated``, if there is one."""
        if self.requested:
            raise Terminated if self._signal == signal.SIGTERM else KeyboardInterrupt

    def _note(self, signum: int, *_: object) -> None:
        self.raise_if_requested()
        for interrupt in _active:
            interrupt._signal = signum
        _LOG.warning("%s: finishing this iteration first. Once more stops at once.", _WORDS[signum].capitalize())
        # Windows has no such timer, and the program may use the only one.
        if hasattr(signal, "setitimer") and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL:
            self._handle(signal.SIGALRM, self._expire)
            self._undoing.callback(signal.setitimer, signal.ITIMER_REAL, 0.0)
            signal.setitimer(signal.ITIMER_REAL, _PATIENCE_S)

    def _handle(self, number: int, handler: Callable[..., None]) -> None:
        self._undoing.callback(signal.signal, number, signal.signal(number, handler))

    def _expire(self, *_: object) -> None:
        self._late = True
        if self._abandonable:
            self.raise_if_requested()


class Deadline:
    """Ends the process some seconds after a SIGINT or SIGTERM inside a ``with`` block, unless it ends by itself.

    Python calls a signal's handler between two bytecodes of the main thread. A main thread that compiles a large
    programme, or waits in an environment's native code, comes to none for a minute or more; another thread learns of
    the signal all the same, by ``signal.set_wakeup_fd``.

    Only a process that is all ours, such as the command line's, may be ended so: all its other work is lost.

    The command line enters the block at its first import, since JAX calls Python from the garbage collector, where the
    KeyboardInterrupt of Python's own handler is printed and forgotten. Without another handler SIGTERM raises
    ``Terminated`` inside the block, as Ctrl-C raises KeyboardInterrupt; training defers both.

    Attributes:
        last_words: Function called in the other thread before the end, which saves all finished work and returns the
            last message.
    """

    def __init__(self) -> None:
        self.last_words: Callable[[], str] = str
        self._left = threading.Event()
        self._undoing = contextlib.ExitStack()

    def __enter__(self) -> Deadline:
        if threading.current_thread() is threading.main_thread():
            listening, written = socket.socketpair()
            written.setblocking(False)
            thread = threading.Thread(target=self._listen, args=[listening], name="deadline", daemon=True)
            thread.start()
            # Python stops a thread that still runs at its end, and C++ then aborts the process.
            self._undoing.callback(thread.join)
            self._undoing.callback(written.close)  # which ends the thread
            previous = signal.set_wakeup_fd(written.fileno(), warn_on_full_buffer=False)
            self._undoing.callback(signal.set_wakeup_fd, previous)
            self._undoing.callback(self._left.set)
            if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
                self._undoing.callback(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, _raise_terminated))
        return self

    def __exit__(self, *_: object) -> None:
        self._undoing.close()

    def _listen(self, listening: socket.socket) -> None:
        with listening:
            while received := listening.recv(1):
                if received[0] in _WORDS:
                    if not self._left.wait(_TO_THE_END_S):
                        self._end(received[0])
                    return

    def _end(self, number: int) -> None:
        said = ""
        with contextlib.suppress(Exception):  # the process ends, saved or not
            said = self.last_words()
        for process in multiprocessing.active_children():
            process.kill()
        print(f"\nmultippo: {_WORDS[number]}. {said}".rstrip(), file=sys.stderr, flush=True)
        os._exit(128 + number)
