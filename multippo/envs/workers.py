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
import multiprocessing
import multiprocessing.connection
import os
import queue
import time
from typing import TYPE_CHECKING, Any

import gymnasium.logger
from gymnasium.vector import AsyncVectorEnv

from multippo.envs.members import MemberConstructor

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from multiprocessing.connection import Connection

    import numpy as np
    from gymnasium.vector import VectorEnv

__all__ = [
    "WORKER_TIMEOUT_S",
    "DifferentSpacesError",
    "TimedPipe",
    "TimedVectorEnv",
    "Workers",
    "stop_workers",
    "unwrapped_error",
    "without_tracebacks",
]

WORKER_TIMEOUT_S = 20.0

_STARTS_PER_CORE = 4
"""How many processes one core is trusted to start, imports included, within the time that a worker has."""


class DifferentSpacesError(RuntimeError):
    """The environments of a batch have different spaces.

    Attributes:
        places: The numbers of those that differ from the first.
    """

    def __init__(self, places: list[int]) -> None:
        super().__init__(f"The environments {places} have other spaces than the first.")
        self.places = places


class TimedVectorEnv(AsyncVectorEnv):
    """An ``AsyncVectorEnv`` whose workers may not take for ever to make their environments.

    Args:
        *args: For ``AsyncVectorEnv``.
        timeout_s: Seconds in which at least one more worker must have made its environment. It is longer by what the
            first environment took, which is made in this process, and where there are many workers for each core.
        **kwargs: For ``AsyncVectorEnv``.

    Raises:
        RuntimeError: If none of the remaining workers gives an answer in time. The processes go on; ``stop_workers``
            ends them.
    """

    def __init__(self, *args: Any, timeout_s: float, **kwargs: Any) -> None:
        self._timeout_s, self._began = timeout_s, time.monotonic()
        super().__init__(*args, **kwargs)

    def _check_spaces(self) -> None:
        # The first question to the workers, which they answer when their environments are made.
        limit_s = self._timeout_s + time.monotonic() - self._began
        limit_s *= max(1.0, self.num_envs / (_STARTS_PER_CORE * (os.cpu_count() or 1)))
        awaited = dict(enumerate(self.parent_pipes))
        timed = [TimedPipe(pipe, awaited, limit_s) for pipe in self.parent_pipes]
        self.parent_pipes: list[Any] = list(timed)
        try:
            super()._check_spaces()
        except RuntimeError:
            # gymnasium's says which space differs, but not whose.
            if places := [place for place, pipe in enumerate(timed) if pipe.answer and not all(pipe.answer)]:
                raise DifferentSpacesError(places) from None
            raise
        finally:
            # gymnasium forgets the pipe of a worker that has failed.
            self.parent_pipes = [None if pipe is None else pipe.pipe for pipe in self.parent_pipes]


class TimedPipe:
    """A worker's pipe whose ``recv`` gives up when for some time none of the workers that are waited for answers.

    Args:
        pipe: The worker's.
        awaited: The pipes of all workers that owe an answer, by number; those of one vector environment share it.
        limit_s: Seconds without a further answer after which to give up.
    """

    def __init__(self, pipe: Connection, awaited: dict[int, Connection], limit_s: float) -> None:
        self.pipe, self._awaited, self._limit_s = pipe, awaited, limit_s
        self.send, self.close = pipe.send, pipe.close
        # Whether its spaces are those of the first environment, once it has said so.
        self.answer: Any = None

    def recv(self) -> Any:
        """As ``Connection.recv``."""
        silent = {number: pipe for number, pipe in self._awaited.items() if not pipe.poll(0)}
        while self.pipe in silent.values():
            ready = multiprocessing.connection.wait(silent.values(), self._limit_s)
            if not ready:
                raise RuntimeError(
                    f"The workers of environments {list(silent)} did not make their environments: none gave an answer "
                    f"within {self._limit_s:.3g} s, and all were ended. The first environment was made in this process "
                    "without fault, so look for what an environment waits for in a new process: a lock, a port, a "
                    "display, a download. If it may take longer, pass a larger worker_timeout."
                )
            silent = {number: pipe for number, pipe in silent.items() if pipe not in ready}
        for number in [number for number, pipe in self._awaited.items() if pipe is self.pipe]:
            del self._awaited[number]
        message = self.pipe.recv()
        self.answer = message[0] if isinstance(message, tuple) else None
        return message


class Workers:
    """Resets, steps and closes a vector environment whose members live in worker processes.

    Args:
        vector_env: The environment.
        base: The ``AsyncVectorEnv`` at its heart. Where ``vector_env`` wraps it, a hanging worker can't be told from a
            slow one, and only dead ones are noticed.
        timeout_s: Seconds that the slowest worker may take for a step or a reset.
    """

    def __init__(self, vector_env: VectorEnv[Any, Any, Any], base: AsyncVectorEnv, timeout_s: float) -> None:
        self._vector_env, self._base, self._timeout_s = vector_env, base, timeout_s
        self._has_notes = all(isinstance(constructor, MemberConstructor) for constructor in base.env_fns)
        # Else without limit: an exception that can't be pickled is announced and never comes.
        base.error_queue.get = functools.partial(base.error_queue.get, timeout=timeout_s)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        """As ``VectorEnv.reset``."""
        if self._vector_env is not self._base:
            return self._watch("reset", lambda: self._vector_env.reset(seed=seed, options=options))

        def call() -> Any:
            self._base.reset_async(seed=seed, options=options)
            return self._base.reset_wait(timeout=self._timeout_s)

        return self._watch("reset", call)

    def step(self, actions: np.ndarray | dict[str, Any]) -> Any:
        """As ``VectorEnv.step``."""
        if self._vector_env is not self._base:
            return self._watch("step", lambda: self._vector_env.step(actions))

        def call() -> Any:
            self._base.step_async(actions)  # type: ignore[arg-type]
            return self._base.step_wait(timeout=self._timeout_s)

        return self._watch("step", call)

    def close(self) -> None:
        """Lets the workers close their environments and ends them."""
        try:
            self._vector_env.close()
        except (EOFError, ConnectionError):
            self._stop()

    def _watch(self, name: str, call: Callable[[], Any]) -> Any:
        try:
            with without_tracebacks() if self._has_notes else contextlib.nullcontext():
                return call()
        except (EOFError, ConnectionError) as error:
            dead = self._dead_workers()
            self._stop()
            raise RuntimeError(
                f"In {name} of {self._vector_env}, a worker process died (exit codes by environment: {dead}); the "
                "others were ended. Look for a crash in the environment's native code, or for a lack of memory."
            ) from error
        except multiprocessing.TimeoutError as error:
            silent = [i for i, pipe in enumerate(self._base.parent_pipes) if pipe is not None and not pipe.poll(0)]
            self._stop()
            raise RuntimeError(
                f"In {name} of {self._vector_env}, the workers of environments {silent} gave no answer within "
                f"{self._timeout_s:g} s and were ended. If the environment may take longer, pass a larger "
                "worker_timeout."
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

    def _dead_workers(self) -> dict[int, int | None]:
        # The pipe closes a moment before the process is gone.
        multiprocessing.connection.wait([process.sentinel for process in self._base.processes], timeout=5.0)
        return {i: process.exitcode for i, process in enumerate(self._base.processes) if not process.is_alive()}

    def _stop(self) -> None:
        stop_workers(self._base)


def stop_workers(base: AsyncVectorEnv) -> None:
    """Ends the worker processes that have been started, whatever they are doing."""
    # A constructor that failed early has left no list, or one with a process that could not be started.
    started = [process for process in vars(base).get("processes", ()) if process.pid is not None]
    for process in started:
        process.terminate()
    for process in started:
        process.join(timeout=2.0)
        if process.is_alive():
            process.kill()
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
    level = gymnasium.logger.min_level
    gymnasium.logger.min_level = max(level, gymnasium.logger.ERROR + 1)
    try:
        yield
    finally:
        gymnasium.logger.min_level = level
