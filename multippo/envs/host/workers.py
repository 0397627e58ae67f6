"""gymnasium's worker processes with time limits: a worker that hangs, dies or fails is named, and none is left."""

from __future__ import annotations

import contextlib
import logging
import math
import multiprocessing
import multiprocessing.connection
import os
import pickle
import queue
import signal
import time
import traceback
from collections.abc import Callable, Generator, Sequence
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.vector.async_vector_env import _async_worker  # pyright: ignore[reportPrivateUsage]

_LOG = logging.getLogger("multippo")

WORKER_TIMEOUT_S = 20.0
"""Seconds for an answer; less than 30 with ``NOTICE_S`` and ``CLOSE_S``, within which a hanging worker is gone."""

NOTICE_S = 5.0
"""Seconds for an announced exception, which a thread of the worker's sends, or for a process's end to arrive."""

CLOSE_S = 2.0
"""Seconds for all processes together to end."""

_WORKERS_PER_CORE = 4
"""Number of workers on a core above which all have more time to make their environments."""

_LONGEST_S = 1e6
"""Longest wait in seconds, since the system counts milliseconds in 32 bits."""


class WatchedVectorEnv(AsyncVectorEnv):
    """An ``AsyncVectorEnv`` that limits its waits, and ends all of its workers if one hangs, dies or fails.

    gymnasium waits without limit, for answers, for exceptions that can't be pickled, and for workers to end. A call
    with a time-out of its own keeps it.

    Args:
        members: Constructors of the environments, which reset in the step in which an episode ends.
        timeout_s: Seconds for the slowest worker to answer. For making its environment a worker has in addition the
            time that the first one took in this process, and more where many workers share a core.

    Raises:
        RuntimeError: If a worker dies or takes longer.
        Exception: If the constructor of an environment raised it, in this process or in a worker.
    """

    timeout_s: float
    _is_starting = False

    def __init__(self, members: Sequence[Callable[[], Any]], timeout_s: float) -> None:
        self.timeout_s, self._began, self._is_starting = min(timeout_s, _LONGEST_S), time.monotonic(), True
        # Not forked, since JAX and torch run threads that a fork would break.
        context = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
        if context == "forkserver":
            multiprocessing.get_context(context).set_forkserver_preload(["multippo.envs.host.members"])
        try:
            with self.naming_the_dead(_START):
                # No copies of observations: the adapter copies.
                super().__init__(
                    members, copy=False, context=context, autoreset_mode=AutoresetMode.SAME_STEP, worker=run_member
                )
        except BaseException:
            _stop(self)
            raise
        self._is_starting = False

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> Any:
        """See ``AsyncVectorEnv.reset``."""
        with self.naming_the_dead("reset"):
            return super().reset(seed=seed, options=options)

    def step(self, actions: Any) -> Any:
        """See ``AsyncVectorEnv.step``."""
        with self.naming_the_dead("step"):
            return super().step(actions)

    def _check_spaces(self) -> None:
        # The constructors compare the spaces; the call here only waits for them.
        load = math.ceil(self.num_envs / (_WORKERS_PER_CORE * num_cores()))
        self.call_async("render_mode")
        self.call_wait(timeout=self.timeout_s * load + time.monotonic() - self._began)

    def _poll_pipe_envs(self, timeout: float | None = None) -> bool:
        limit_s = self.timeout_s if timeout is None else timeout
        if super()._poll_pipe_envs(limit_s):  # pyright: ignore[reportArgumentType]
            return True
        silent = [place for place, pipe in self._open_pipes() if not pipe.poll(0)]
        _stop(self)
        hint = f" {_NEW_PROCESS}: a lock, a port, a display, a download." if self._is_starting else ""
        raise RuntimeError(
            f"{self._where()}, the workers of environments {silent} gave no answer within {limit_s:.3g} s; all workers "
            f"were ended.{hint} If the environment may take longer, pass a larger worker_timeout (or let the wrapper "
            "that waits allow more)."
        )

    def _raise_if_errors(self, successes: Sequence[bool]) -> None:
        if all(successes):
            return
        try:
            place, _, error, trace = self.error_queue.get(timeout=NOTICE_S)
            error.add_note(f"In the worker process of environment {place}:\n{trace}")
        except queue.Empty:
            failed = [place for place, success in enumerate(successes) if not success]
            error = RuntimeError(
                f"{self._where()}, the workers of environments {failed} raised exceptions that can't be pickled, so "
                "they did not arrive: let make_env start the workers (a list of functions and vectorization='async'), "
                "which then send their text, or look at what the workers printed."
            )
        _stop(self)
        raise error

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """Lets the workers close their environments, and ends workers that do not end by themselves."""
        if not terminate:
            for _, pipe in self._open_pipes():
                with contextlib.suppress(ConnectionError):
                    pipe.send(("close", None))
            limit_s = self.timeout_s if timeout is None else timeout
            deadline = time.monotonic() + limit_s
            for process in self.processes:
                process.join(max(0.0, deadline - time.monotonic()))
            if silent := [place for place, process in enumerate(self.processes) if process.is_alive()]:
                _LOG.warning(
                    "The workers of environments %s, which did not close within %g s, are ended.", silent, limit_s
                )
        _stop(self)

    @contextlib.contextmanager
    def naming_the_dead(self, call: str) -> Generator[None]:
        """Turns the end of a pipe, the only sign of a dead worker in a call, into an error that names the worker."""
        try:
            yield
        except (EOFError, ConnectionError) as error:
            processes = [] if self.closed else _started(self)
            if not processes:  # an exception of an environment's own
                raise
            # The pipe closes a moment before the process is gone.
            multiprocessing.connection.wait([process.sentinel for process in processes], timeout=NOTICE_S)
            dead = {place: process.exitcode for place, process in enumerate(processes) if not process.is_alive()}
            _stop(self)
            hint = (
                f'{_NEW_PROCESS}: files, environment variables, memory, or a script without if __name__ == "__main__":'
                if call is _START
                else "Look for a crash in the environment's native code, or for a lack of memory."
            )
            raise RuntimeError(
                f"In {call} of {self}, a worker process died (exit codes by environment: {dead}); the others were "
                f"ended. {hint}"
            ) from error

    def _open_pipes(self) -> list[tuple[int, Any]]:
        return [
            (place, pipe)
            for place, pipe in enumerate(self.parent_pipes)
            if pipe is not None and not pipe.closed  # pyright: ignore[reportUnnecessaryComparison]
        ]

    def _where(self) -> str:
        return f"In {_START if self._is_starting else self._state.value} of {self}"


_START = "the start"

_NEW_PROCESS = (
    "The first environment was made in this process without fault, so look for what differs or is waited for in a new "
    "process"
)


def watch(base: AsyncVectorEnv, timeout_s: float) -> WatchedVectorEnv:
    """Gives a vector environment time limits; a user's becomes an instance of a subclass of its own class."""
    if not isinstance(base, WatchedVectorEnv):
        base.__class__ = type(type(base).__name__, (WatchedVectorEnv, type(base)), {})
    assert isinstance(base, WatchedVectorEnv)
    base.timeout_s = min(timeout_s, _LONGEST_S)
    return base


def num_cores() -> int:
    """Number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _stop(base: AsyncVectorEnv) -> None:
    """Ends all worker processes that have been started, at once."""
    started = _started(base)
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


def _started(base: AsyncVectorEnv) -> list[Any]:
    # A constructor that failed early has left no list, or a list whose last process could not be started.
    return [process for process in vars(base).get("processes", ()) if process.pid is not None]


def run_member(
    index: int, make: Callable[[], Any], pipe: Any, parent_pipe: Any, shared_memory: Any, errors: Any, *rest: Any
) -> None:
    """Runs gymnasium's own worker, and passes on exceptions of the constructor and of any kind as well."""
    # A terminal sends Ctrl-C to the workers as well. Workers go on, so that the iteration at hand can be finished and
    # saved, until the process that started them stops them.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # NumPy's global random state came with the fork, the same for all workers.
    np.random.seed()  # noqa: NPY002
    errors = _PortableErrors(errors)
    try:
        env = make()
    except (Exception, SystemExit) as error:
        parent_pipe.close()
        pipe.recv()
        errors.put((index, type(error), error, traceback.format_exc()))
        pipe.send((None, False))
        return
    _async_worker(index, lambda: env, pipe, parent_pipe, shared_memory, errors, *rest)


class _PortableErrors:
    """A queue of errors that sends the text of an exception that can't be pickled, which would be lost silently."""

    def __init__(self, errors: Any) -> None:
        self._errors = errors

    def put(self, entry: tuple[int, type, BaseException, str]) -> None:
        index, _, error, trace = entry
        try:
            is_portable = str(pickle.loads(ForkingPickler.dumps(error))) == str(error)
        except Exception:
            is_portable = False
        if not is_portable or isinstance(error, SystemExit):
            error = RuntimeError("".join(traceback.format_exception_only(error)).strip())
        self._errors.put((index, type(error), error, trace))
