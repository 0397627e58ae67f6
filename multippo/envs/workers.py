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
    from collections.abc import Callable, Generator, Iterator, Sequence
    from multiprocessing.connection import Connection

    import gymnasium
    import numpy as np
    from gymnasium.vector import VectorEnv

__all__ = [
    "WORKER_TIMEOUT_S",
    "DiedAtStartError",
    "DifferentSpacesError",
    "TimedVectorEnv",
    "Workers",
    "stop_workers",
    "unwrapped_error",
    "without_tracebacks",
]

WORKER_TIMEOUT_S = 20.0

_STARTS_PER_CORE = 2
"""How many workers are started at a time for each core; each must import its environment's packages."""

_ERROR_TIMEOUT_S = 5.0
"""For an exception that a worker has announced; it comes through a thread of the worker's."""


class DifferentSpacesError(RuntimeError):
    """The environments of a batch have different spaces.

    Attributes:
        places: The numbers of those that differ from the first.
    """

    def __init__(self, places: list[int]) -> None:
        super().__init__(f"The environments {places} have other spaces than the first.")
        self.places = places


class DiedAtStartError(RuntimeError):
    """A worker died before its environment was made.

    Args:
        number: The environment's, if it is known.
    """

    def __init__(self, number: int | None = None) -> None:
        name = "A worker process" if number is None else f"The worker process of environment {number}"
        super().__init__(
            f"{name} died while it made its environment. The first environment was made in this process without fault, "
            "so look for what differs in a new process: files, environment variables, memory, or a script without "
            'if __name__ == "__main__":'
        )


class TimedVectorEnv(AsyncVectorEnv):
    """An ``AsyncVectorEnv`` whose workers may not take for ever to make their environments.

    Only so many are started at a time as the cores can serve, so that the time that one takes says something about
    that one, however many there are.

    Args:
        env_fns: The constructors of the environments, for workers that run ``run_member``.
        *args: For ``AsyncVectorEnv``.
        timeout_s: Seconds from its start in which a worker must have made its environment. It is longer by what the
            first environment took, which is made in this process.
        **kwargs: For ``AsyncVectorEnv``.

    Raises:
        RuntimeError: If a worker has not made its environment in time. The processes go on; ``stop_workers`` ends them.
        DiedAtStartError: If a worker died meanwhile.
        Exception: What the constructor of an environment raised in a worker.
    """

    def __init__(
        self, env_fns: Sequence[Callable[[], gymnasium.Env[Any, Any]]], *args: Any, timeout_s: float, **kwargs: Any
    ) -> None:
        self._limit_s, self._began = timeout_s, time.monotonic()
        self._deadlines: dict[int, float] = {}
        """When a worker that has been started must have made its environment, by its number."""
        announced: Any = _Announced(env_fns, self._expect)
        super().__init__(announced, *args, **kwargs)
        self.env_fns = env_fns

    def _expect(self, number: int) -> None:
        """Waits until another worker can be started, which will be the one of this number."""
        if number == 0:
            self._limit_s += time.monotonic() - self._began
        self._wait_until_at_most(_STARTS_PER_CORE * _num_cores() - 1)
        self._deadlines[number] = time.monotonic() + self._limit_s

    def _wait_until_at_most(self, num_starting: int) -> None:
        while len(self._deadlines) > num_starting:
            starting: dict[Any, int] = {self.parent_pipes[number]: number for number in self._deadlines}
            left_s = min(self._deadlines.values()) - time.monotonic()
            ready: list[Any] = multiprocessing.connection.wait(list(starting), max(left_s, 0.0))
            if not ready:
                # Those that were started at the same time likely wait for the same.
                late = [number for number, deadline in self._deadlines.items() if deadline < time.monotonic() + 1.0]
                raise RuntimeError(
                    f"The workers of environments {late} did not make their environments within {self._limit_s:.3g} s "
                    "of their start, and all workers were ended. The first environment was made in this process "
                    "without fault, so look for what an environment waits for in a new process: a lock, a port, a "
                    "display, a download. If it may take longer, pass a larger worker_timeout."
                )
            for pipe in ready:
                number = starting[pipe]
                try:
                    made = pipe.recv()
                except (EOFError, ConnectionError) as error:
                    raise DiedAtStartError(number) from error
                if not made:
                    raise self.error_queue.get(timeout=_ERROR_TIMEOUT_S)[2]
                del self._deadlines[number]

    def _check_spaces(self) -> None:
        # What comes first after the last start.
        self._wait_until_at_most(0)
        pipes = [_RememberingPipe(pipe) for pipe in self.parent_pipes]
        self.parent_pipes: list[Any] = list(pipes)
        try:
            super()._check_spaces()
        except RuntimeError:
            # gymnasium's says which space differs, but not whose.
            if places := [place for place, pipe in enumerate(pipes) if not all(pipe.same_spaces)]:
                raise DifferentSpacesError(places) from None
            raise
        finally:
            self.parent_pipes = [pipe.pipe for pipe in pipes]


class _Announced:
    """Constructors of which each is announced, by its number, before the loop that starts the workers gets it."""

    def __init__(self, env_fns: Sequence[Callable[[], Any]], announce: Callable[[int], None]) -> None:
        self._env_fns, self._announce = env_fns, announce

    def __len__(self) -> int:
        return len(self._env_fns)

    def __getitem__(self, index: int) -> Callable[[], Any]:
        return self._env_fns[index]

    def __iter__(self) -> Iterator[Callable[[], Any]]:
        for number, env_fn in enumerate(self._env_fns):
            self._announce(number)
            yield env_fn


class _RememberingPipe:
    """A worker's pipe that keeps the worker's answer to whether its spaces are those of the first environment."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.send = pipe.send
        self.same_spaces: tuple[bool, ...] = ()

    def recv(self) -> Any:
        """As ``Connection.recv``."""
        message = self.pipe.recv()
        self.same_spaces = message[0]
        return message


def _num_cores() -> int:
    """The cores that this process may use, of which a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


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
