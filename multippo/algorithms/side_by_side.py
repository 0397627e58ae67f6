"""Runs side by side: several in one process, each in a thread, whose iterations are computed in one compiled call."""

from __future__ import annotations

import contextvars
import logging
import threading
from collections.abc import Callable, Sequence
from typing import Any

from multippo.errors import one_line
from multippo.signals import DeferredInterrupt

_LOG = logging.getLogger("multippo")

Together = Callable[[list[Any], list[Any]], list[Any]]
"""Function of the first arguments of several calls, whose memory may be reused, and of the rest of their arguments."""


class _Call:
    """A call that waits for those of the other runs."""

    def __init__(self, first: Any, rest: tuple[Any, ...]) -> None:
        self.first, self.rest, self.result = first, rest, None


class Group:
    """Runs that take turns: one works while the others wait for it to come to its next iteration.

    Args:
        size: Number of runs.
    """

    def __init__(self, size: int) -> None:
        self._alive = size
        self.turn = threading.Condition()
        self._calls: list[_Call] = []
        self._most = 0
        self._together: tuple[Together, Callable[[Any], Any]] | None = None

    def joined(self, together: Together, copied: Callable[[Any], Any]) -> Callable[..., Any]:
        """A function whose call waits until all runs have made theirs.

        Args:
            together: Function that computes all of them, one programme for all runs.
            copied: Function that copies a first argument.
        """

        def call(first: Any, *rest: Any, lower: bool = False) -> Any:
            assert not lower, "nothing is traced ahead of its call"
            self._together, own = (together, copied), _Call(first, rest)
            self._calls.append(own)
            self._compute_if_complete()
            self.turn.wait_for(lambda: own.result is not None)
            if isinstance(own.result, BaseException):
                raise own.result
            return own.result

        return call

    def leave(self) -> None:
        """Lets the others go on without a run that has ended."""
        self._alive -= 1
        self._compute_if_complete()

    def _compute_if_complete(self) -> None:
        if self._together is None or not self._calls or len(self._calls) < self._alive:
            return
        (together, copied), calls, self._calls = self._together, self._calls, []
        self._most = max(self._most, len(calls))
        # In place of a run that has ended, so that nothing is compiled for fewer.
        copies = [_Call(copied(calls[0].first), calls[0].rest) for _ in range(self._most - len(calls))]
        results: list[Any]
        try:
            results = together(*([getattr(call, part) for call in calls + copies] for part in ("first", "rest")))
        except BaseException as error:
            results = [error] * self._most
        for call, result in zip(calls + copies, results, strict=True):
            call.result = result
        self.turn.notify_all()


_group: contextvars.ContextVar[Group | None] = contextvars.ContextVar("multippo_group", default=None)


def current_group() -> Group | None:
    """The group of the run in this thread, or None."""
    return _group.get()


def side_by_side(jobs: Sequence[Callable[[], Any]]) -> None:
    """Does jobs with a run each, the first in this thread; each works alone until it comes to its next iteration.

    Raises:
        BaseException: The error of the first job that failed, after all others have ended; others are logged.
    """
    group, errors = Group(len(jobs)), dict[int, BaseException]()

    def work(place: int) -> None:
        with group.turn:
            token = _group.set(group)
            try:
                jobs[place]()
            except BaseException as error:
                errors[place] = error
            finally:
                _group.reset(token)
                group.leave()

    threads = [threading.Thread(target=work, args=[place]) for place in range(1, len(jobs))]
    with DeferredInterrupt():  # of all runs at once
        for thread in threads:
            thread.start()
        work(0)
        for thread in threads:
            thread.join()
    if errors:
        first = errors.pop(min(errors))
        for error in errors.values():
            _LOG.error("A run beside the others ended early: %s", one_line(error))
        raise first
