"""Ends a process in time that was asked to end, whatever its main thread is busy with."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator

from multippo.algorithms.interrupts import raise_terminated

__all__ = ["Deadline"]

_WORDS = {signal.SIGINT: "interrupted", signal.SIGTERM: "terminated"}


class Deadline:
    """While entered, the process ends some seconds after a SIGINT or SIGTERM, if it has not ended by itself.

    Python calls a signal's handler between two bytecodes of the main thread. One that compiles a large programme, or
    waits in an environment's native code, comes to none for a minute or more; a thread of its own hears of the signal
    all the same, by ``signal.set_wakeup_fd``.

    Only for a process that is all ours, such as the command line's: whatever else it was doing is lost.

    It is needed from the first import on: JAX calls Python from the garbage collector, where the KeyboardInterrupt of
    Python's own handler is printed and forgotten.

    Args:
        last_words: Called in the other thread before the end; saves what there is and returns what to say.
        seconds: How long after the signal.

    Attributes:
        last_words: The same; may be replaced when there is more to save.
    """

    def __init__(self, last_words: Callable[[], str] = str, seconds: float = 8.0) -> None:
        self.last_words, self._seconds = last_words, seconds
        self._left = threading.Event()
        self._previous: int | None = None
        self._thread = threading.Thread(target=self._listen, name="deadline", daemon=True)

    def __enter__(self) -> Deadline:
        if threading.current_thread() is threading.main_thread():
            self._listening, self._written = socket.socketpair()
            self._written.setblocking(False)
            self._previous = signal.set_wakeup_fd(self._written.fileno(), warn_on_full_buffer=False)
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._left.set()
        if self._previous is not None:
            signal.set_wakeup_fd(self._previous)
            self._written.close()  # which ends the thread
            # One that is still on its way when Python ends is ended in its midst, and with it, by C++, the process.
            self._thread.join()

    @contextlib.contextmanager
    def terminable(self) -> Generator[None]:
        """Around work in which SIGTERM raises, as Ctrl-C does, where nobody handles it; training defers either."""
        number = signal.SIGTERM
        ours = self._previous is not None and signal.getsignal(number) is signal.SIG_DFL
        if ours:
            signal.signal(number, raise_terminated)
        try:
            yield
        finally:
            if ours:
                signal.signal(number, signal.SIG_DFL)

    def _listen(self) -> None:
        with self._listening:
            while received := self._listening.recv(1):
                if received[0] not in _WORDS:
                    continue
                if not self._left.wait(self._seconds):
                    self._end(received[0])
                return

    def _end(self, number: int) -> None:
        said = ""
        with contextlib.suppress(Exception):  # there is nobody left to handle it
            said = self.last_words()
        for process in multiprocessing.active_children():
            process.kill()
        print(f"\nmultippo: {_WORDS[signal.Signals(number)]}. {said}".rstrip(), file=sys.stderr, flush=True)
        os._exit(128 + number)
