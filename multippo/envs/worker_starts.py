"""gymnasium's worker processes, so started that one which dies, fails or hangs meanwhile is named."""

from __future__ import annotations

import dataclasses
import multiprocessing.connection
import os
import pickle
import queue
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gymnasium.vector import AsyncVectorEnv
from gymnasium.vector.utils import CloudpickleWrapper

from multippo.envs.workers import CLOSE_S, NOTICE_S

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection

    import gymnasium

__all__ = ["DiedAtStartError", "DifferentSpacesError", "TimedVectorEnv"]

_STARTS_PER_CORE = 4
"""How many workers are started at a time for each core; each must import its environment's packages."""

_MOST_BYTES = 2**15
"""What fits into a pipe that nobody reads, with what else a new process is given."""


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
        exitcode: With which the process ended, if it is known; of a signal the negative number.
    """

    def __init__(self, number: int | None = None, exitcode: int | None = None) -> None:
        name = "A worker process" if number is None else f"The worker process of environment {number}"
        code = "" if exitcode is None else f" (exit code {exitcode})"
        super().__init__(
            f"{name} died while it made its environment{code}. The first environment was made in this process without "
            "fault, so look for what differs in a new process: files, environment variables, memory, or a script "
            'without if __name__ == "__main__":'
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
        self._announced: Any = _Announced(env_fns, self._expect)
        try:
            super().__init__(self._announced, *args, **kwargs)
        finally:
            self._announced.close()
        self.env_fns = env_fns

    def _expect(self, number: int) -> None:
        """Waits until another worker can be started, which will be the one of this number."""
        if number == 0:
            self._limit_s += time.monotonic() - self._began
        self._wait_until_at_most(_STARTS_PER_CORE * _num_cores() - 1)
        self._deadlines[number] = time.monotonic() + self._limit_s

    def _wait_until_at_most(self, num_starting: int) -> None:
        """Takes what the workers have said, and waits for more while there are too many. One that is late ends it."""
        is_waiting = True
        while self._deadlines and is_waiting:
            is_waiting = len(self._deadlines) > num_starting
            left_s = min(self._deadlines.values()) - time.monotonic() if is_waiting else 0.0
            starting: dict[Any, int] = {self.parent_pipes[number]: number for number in self._deadlines}
            ready: list[Any] = multiprocessing.connection.wait(list(starting), max(left_s, 0.0))
            for pipe in ready:
                self._take(starting[pipe])
            # Also where others are ready again and again, or started more slowly than they make theirs.
            if self._deadlines and min(self._deadlines.values()) <= (now := time.monotonic()):
                # Those that were started at the same time likely wait for the same.
                raise _late(
                    [number for number, deadline in self._deadlines.items() if deadline < now + 1.0], self._limit_s
                )

    def _take(self, number: int) -> None:
        try:
            made = self.parent_pipes[number].recv()
        except (EOFError, ConnectionError) as error:
            self.processes[number].join(CLOSE_S)
            raise DiedAtStartError(number, self.processes[number].exitcode) from error
        if not made:
            raise self._error_of(number)
        del self._deadlines[number]
        self._announced.arrived(number)

    def _error_of(self, number: int) -> BaseException:
        try:
            return self.error_queue.get(timeout=NOTICE_S)[2]
        except queue.Empty:
            return DiedAtStartError(number, self.processes[number].exitcode)

    def _check_spaces(self) -> None:
        # What comes first after the last start.
        self._wait_until_at_most(0)
        pipes = [_RememberingPipe(pipe, place, self._limit_s) for place, pipe in enumerate(self.parent_pipes)]
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
    """Constructors of which each is announced, by its number, before the loop that starts the workers gets it.

    They are pickled by then, so that what fails in unpickling one is an exception of the worker's like others. A large
    one takes the way of a file: whoever starts a process waits, without limit, until that has read what it is given.
    """

    def __init__(self, env_fns: Sequence[Callable[[], Any]], announce: Callable[[int], None]) -> None:
        self._env_fns, self._announce = env_fns, announce
        self._directory: tempfile.TemporaryDirectory[str] | None = None

    def __len__(self) -> int:
        return len(self._env_fns)

    def __getitem__(self, index: int) -> Callable[[], Any]:
        return self._env_fns[index]

    def __iter__(self) -> Iterator[Callable[[], Any]]:
        for number, env_fn in enumerate(self._env_fns):
            pickled = self._pickled(number, env_fn)
            self._announce(number)
            yield pickled

    def _pickled(self, number: int, env_fn: Callable[[], Any]) -> Callable[[], Any]:
        try:
            content = pickle.dumps(CloudpickleWrapper(env_fn))
        except Exception:
            # A lock of multiprocessing's travels with the start of a process alone; what can't be pickled fails there.
            return env_fn
        return _Pickled(content if len(content) <= _MOST_BYTES else self._stored(number, content))

    def arrived(self, number: int) -> None:
        """Removes what was given to a worker in a file."""
        if self._directory is not None:
            (Path(self._directory.name) / str(number)).unlink(missing_ok=True)

    def close(self) -> None:
        """Removes what was given to workers in files."""
        if self._directory is not None:
            self._directory.cleanup()

    def _stored(self, number: int, content: bytes) -> Path:
        if self._directory is None:
            self._directory = tempfile.TemporaryDirectory(prefix="multippo-")
        path = Path(self._directory.name) / str(number)
        path.write_bytes(content)
        return path


@dataclasses.dataclass(frozen=True)
class _Pickled:
    """A constructor on its way to a worker, or the file it is in."""

    content: bytes | Path

    def __call__(self) -> Any:
        content = self.content if isinstance(self.content, bytes) else self.content.read_bytes()
        return pickle.loads(content)()


class _RememberingPipe:
    """A worker's pipe that keeps the worker's answer to whether its spaces are those of the first environment."""

    def __init__(self, pipe: Connection, number: int, limit_s: float) -> None:
        self.pipe, self._number, self._limit_s = pipe, number, limit_s
        self.send = pipe.send
        self.same_spaces: tuple[bool, ...] = ()

    def recv(self) -> Any:
        """As ``Connection.recv``, but not for ever."""
        what = f"The worker of environment {self._number}, which had made it,"
        where = "when it was asked for its spaces: look for a thread or a handler that the environment leaves behind."
        if not self.pipe.poll(self._limit_s):
            raise RuntimeError(f"{what} gave no answer within {self._limit_s:.3g} s {where}")
        try:
            message = self.pipe.recv()
        except (EOFError, ConnectionError) as error:
            raise RuntimeError(f"{what} died {where}") from error
        self.same_spaces = message[0]
        return message


def _late(numbers: list[int], limit_s: float) -> RuntimeError:
    return RuntimeError(
        f"The workers of environments {numbers} did not make their environments within {limit_s:.3g} s of their start, "
        "and all workers were ended. The first environment was made in this process without fault, so look for what an "
        "environment waits for in a new process: a lock, a port, a display, a download. If it may take longer, pass a "
        "larger worker_timeout."
    )


def _num_cores() -> int:
    """The cores that this process may use, of which a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
