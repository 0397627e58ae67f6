"""gymnasium's worker processes, so watched that a dead or hanging one becomes an error that names it.

gymnasium waits for a worker without limit, reports one that died as a bare ``EOFError``, and raises a worker's
exception without its traceback. Here construction and each call have a time limit, an exception brings its traceback
along as a note (``Member`` attaches it), and after any of these no process is left behind.

An exception that can't be pickled never arrives, and gymnasium waits for it. ``Member`` raises another in its place; of
workers that the user has started only the waiting is limited.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import multiprocessing
import multiprocessing.connection
import queue
import threading
import time
from typing import TYPE_CHECKING, Any

import gymnasium.logger
import numpy as np
from gymnasium.vector import AsyncVectorEnv

from multippo.envs.members import MemberConstructor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    import gymnasium
    from gymnasium.vector import VectorEnv

__all__ = [
    "CLOSE_S",
    "NOTICE_S",
    "WORKER_TIMEOUT_S",
    "Workers",
    "check_worker_timeout",
    "stop_workers",
    "unwrapped_error",
    "without_tracebacks",
]

_LOG = logging.getLogger("multippo")

WORKER_TIMEOUT_S = 20.0
"""With ``NOTICE_S`` and ``CLOSE_S`` it makes less than the 30 s within which a worker is named and gone."""

NOTICE_S = 5.0
"""For what is on its way already: an announced exception, which a thread of the worker's sends, or a process's end."""

_LONGEST_S = 1e6
"""Waiting for several processes takes milliseconds of 32 bits."""

CLOSE_S = 2.0
"""How long processes that were told to end may take for it, all together."""


class Workers:
    """Resets, steps and closes a vector environment whose members live in worker processes.

    Args:
        vector_env: The environment.
        base: The ``AsyncVectorEnv`` at its heart: ``vector_env`` itself, or what it wraps. Waits that begin during a
            call have the time limit, whoever waits; a wrapper that passes a time of its own keeps that. Between the
            calls it waits as the user made it.
        timeout_s: Seconds that the slowest worker may take for a step or a reset.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any], base: AsyncVectorEnv, timeout_s: float) -> None:
        self._vector_env, self._base, self._timeout_s = vector_env, base, timeout_s
        self._waited_s, self._silent = timeout_s, list[int]()
        self._has_notes = all(isinstance(constructor, MemberConstructor) for constructor in base.env_fns)
        # Else without limit: an exception that can't be pickled is announced and never comes.
        base.error_queue.get = functools.partial(base.error_queue.get, timeout=min(timeout_s, NOTICE_S))

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As ``VectorEnv.reset``."""
        return self._watch("reset", lambda: self._vector_env.reset(seed=seed, options=options))

    def step(self, actions: np.ndarray | dict[str, Any]) -> Any:
        """As ``VectorEnv.step``."""
        return self._watch("step", lambda: self._vector_env.step(actions))

    def close(self) -> None:
        """Lets the workers close their environments and ends them."""
        # What closing comes to, through whatever wrappers. Not for longer: an environment that held on to itself would
        # keep its processes when nobody holds it any more.
        self._base.close_extras = self._close_workers
        try:
            self._vector_env.close()
        except (EOFError, ConnectionError):
            self._stop()
        finally:
            del self._base.close_extras

    def _close_workers(self, timeout: float | None = None, terminate: bool = False) -> None:
        """As ``AsyncVectorEnv.close_extras``, which would wait for ever for one that does not end."""
        base, deadline = self._base, time.monotonic() + (self._timeout_s if timeout is None else timeout)
        pipes = {pipe: place for place, pipe in enumerate(base.parent_pipes) if pipe is not None and not pipe.closed}
        for pipe in () if terminate else pipes:
            with contextlib.suppress(ConnectionError):
                pipe.send(("close", None))
        processes = () if terminate else base.processes
        silent = {process.sentinel: place for place, process in enumerate(processes)}
        while silent and (left_s := deadline - time.monotonic()) > 0:
            ended: list[Any] = multiprocessing.connection.wait(list(silent), left_s)
            silent = {sentinel: place for sentinel, place in silent.items() if sentinel not in ended}
        if silent:
            _LOG.warning(
                "The workers of environments %s did not end within worker_timeout=%g s of being told to; now they are. "
                "Look for what close() of the environment waits for, or for a thread that it leaves.",
                list(silent.values()),
                self._timeout_s,
            )
        stop_workers(base)

    def _watch(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            with without_tracebacks() if self._has_notes else contextlib.nullcontext(), self._limited():
                return call()
        except (EOFError, ConnectionError) as error:
            dead = self._dead_workers()
            self._stop()
            raise RuntimeError(
                f"In {name} of {self._vector_env}, a worker process died (exit codes by environment: {dead}); the "
                "others were ended. Look for a crash in the environment's native code, or for a lack of memory."
            ) from error
        except multiprocessing.TimeoutError as error:
            self._stop()
            is_ours = self._waited_s == self._timeout_s
            raise RuntimeError(
                f"In {name} of {self._vector_env}, the workers of environments {self._silent} gave no answer within "
                f"{self._waited_s:g} s and were ended. If the environment may take longer, "
                f"{'pass a larger worker_timeout' if is_ours else 'let the wrapper that waits allow more'}."
            ) from error
        except queue.Empty as error:
            ended = list(self._dead_workers())
            self._stop()
            raise RuntimeError(
                f"In {name} of {self._vector_env}, the workers of environments {ended} raised exceptions that can't be "
                "pickled, so they did not arrive: let make_env start the workers (a list of functions and "
                "vectorization='async'), which then send their text, or look at what the workers printed."
            ) from error
        except BaseException as error:
            self._stop()
            own = unwrapped_error(error)
            if own is not error:
                raise own from None
            raise

    @contextlib.contextmanager
    def _limited(self) -> Generator[None]:
        """Gives each wait of the base a limit, meanwhile: one with its own method in it would outlive its last user."""
        base = self._base
        bound = {name: self._limited_wait(getattr(base, name)) for name in ("reset_wait", "step_wait", "call_wait")}
        # A wrapper may close what has failed.
        bound["close_extras"] = functools.partial(self._close_workers, timeout=CLOSE_S)
        before = {name: vars(base)[name] for name in bound if name in vars(base)}
        vars(base).update(bound)
        try:
            yield
        finally:
            for name in bound:
                vars(base).pop(name, None)
            vars(base).update(before)

    def _limited_wait(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        def limited(timeout: float | None = None) -> Any:
            self._waited_s = self._timeout_s if timeout is None else timeout
            try:
                return wait(timeout=self._waited_s)
            except multiprocessing.TimeoutError:  # told now: a wrapper may close the pipes before it reaches us
                self._silent = [
                    place
                    for place, pipe in enumerate(self._base.parent_pipes)
                    if pipe is not None and not pipe.closed and not pipe.poll(0)
                ]
                raise

        return limited

    def _dead_workers(self) -> dict[int, int | None]:
        # The pipe closes a moment before the process is gone.
        multiprocessing.connection.wait([process.sentinel for process in self._base.processes], timeout=NOTICE_S)
        return {i: process.exitcode for i, process in enumerate(self._base.processes) if not process.is_alive()}

    def _stop(self) -> None:
        stop_workers(self._base)


def stop_workers(base: AsyncVectorEnv) -> None:
    """Ends the worker processes that have been started, whatever they are doing."""
    # A constructor that failed early has left no list, or one with a process that could not be started.
    started = [process for process in vars(base).get("processes", ()) if process.pid is not None]
    for process in started:
        process.terminate()
    deadline = time.monotonic() + CLOSE_S
    for process in started:
        process.join(timeout=max(0.0, deadline - time.monotonic()))
        if process.is_alive():
            process.kill()
    for process in started:
        process.join()
    for pipe in vars(base).get("parent_pipes", ()):
        if pipe is not None and not pipe.closed:
            pipe.close()
    base.closed = True


def unwrapped_error(error: BaseException) -> BaseException:
    """A worker's own exception, which holds the notes: gymnasium raises a new one around it."""
    return error.args[0] if error.args and type(error.args[0]) is type(error) else error


@contextlib.contextmanager
def without_tracebacks() -> Generator[None]:
    """Keeps gymnasium from issuing a worker's traceback as a warning, which a filter can turn into an exception."""
    with _quiet.lock:
        if _quiet.count == 0:
            _quiet.level = gymnasium.logger.min_level
            gymnasium.logger.min_level = max(_quiet.level, gymnasium.logger.ERROR + 1)
        _quiet.count += 1
    try:
        yield
    finally:
        with _quiet.lock:
            _quiet.count -= 1
            if _quiet.count == 0:
                gymnasium.logger.min_level = _quiet.level


class _Quiet:
    """How many threads want gymnasium to be quiet, and the level before, which there is only one of."""

    def __init__(self) -> None:
        self.lock, self.count, self.level = threading.Lock(), 0, 0


_quiet = _Quiet()


def check_worker_timeout(seconds: Any) -> float:
    """The seconds, as they are.

    Raises:
        ValueError: If they are no number above 0, or more than a wait of the system's takes.
    """
    is_number = isinstance(seconds, int | float | np.integer | np.floating) and not isinstance(seconds, bool)
    if not is_number or not 0 < seconds <= _LONGEST_S:
        raise ValueError(
            f"worker_timeout={seconds!r} is not possible: expected a finite number of seconds, more than 0 and at most "
            f"{_LONGEST_S:.0e}, which is as good as no limit."
        )
    return float(seconds)
