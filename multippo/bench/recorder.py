"""Clock of one contestant in one process: told of every iteration, it says when enough is measured."""

from __future__ import annotations

import contextlib
import itertools
import resource
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, NoReturn

from multippo.bench.works import Work


class Enough(Exception):  # noqa: N818 - nothing went wrong
    """Ends the training of a contestant that has been measured."""


class Tick(NamedTuple):
    """End of an iteration: time, steps so far, and seconds so far in the environment and in rollouts."""

    seconds: float
    steps: int
    environment: float
    rollout: float


_WARM_UP = 3
"""Dispatches left out of the rate: several libraries compile in the first and again in the second."""


class Recorder:
    """Times of one contestant.

    Args:
        began: ``time.time()`` when the process was started.
        seconds: Length of the measurement after the warm-up.
        only_start: True to stop after the first iteration.
    """

    def __init__(self, began: float, seconds: float, only_start: bool = False) -> None:
        self.began, self.seconds, self.only_start = began, seconds, only_start
        self.pieces: dict[str, float] = {}
        self._reached: dict[str, float] = {}
        self._ticks: list[Tick] = []
        self._first_iteration = 0.0
        self._environment = self._rollout = self._evaluating = 0.0
        self._rollout_began: float | None = None
        self._rollout_ended = 0.0

    def iteration(self, steps: int) -> None:
        """Takes note of the end of an iteration.

        Args:
            steps: Environment steps since the start of training.

        Raises:
            Enough: When enough is measured.
        """
        now = time.perf_counter()
        if self._rollout_began is not None:
            self._rollout += self._rollout_ended - self._rollout_began
            self._rollout_began = None
        if not self._ticks:
            self._first_iteration = time.time() - self.began
        self._ticks.append(Tick(now, int(steps), self._environment, self._rollout))
        if self.only_start:
            raise Enough
        warm = dispatches(self._ticks)[_WARM_UP:]
        if len(warm) > 1 and warm[-1].seconds - warm[0].seconds >= self.seconds:
            raise Enough

    def timed(self, function: Callable[..., Any], work: Work | None = None) -> Callable[..., Any]:
        """``function``, which steps all environments once, with its time counted as the environments'.

        Args:
            function: The step.
            work: The work, for a contestant that reports no iterations: the first step of a rollout then ends the
                iteration before.
        """
        calls = 0

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if work is not None and calls and calls % work.rollout_length == 0:
                self.iteration(calls * work.num_envs)
            calls += 1
            start = time.perf_counter()
            if self._rollout_began is None:
                self._rollout_began = start
            result = function(*args, **kwargs)
            self._rollout_ended = time.perf_counter()
            self._environment += self._rollout_ended - start
            return result

        return step

    @contextlib.contextmanager
    def evaluation(self) -> Generator[None]:
        """Surrounds an evaluation, whose time does not count."""
        start = time.perf_counter()
        yield
        self._evaluating += time.perf_counter() - start

    def reached(self, steps: int) -> NoReturn:
        """Ends a work of measure "return"."""
        self._reached = {"seconds_to_return": time.time() - self.began - self._evaluating, "steps_to_return": steps}
        raise Enough

    def result(self) -> dict[str, Any]:
        """Everything measured: rates in steps a second, times in seconds, memory in MiB, shares of the whole time."""
        unit = 2**20 if sys.platform == "darwin" else 2**10
        found: dict[str, Any] = {"memory_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit}
        if self._first_iteration:
            found["first_iteration_s"] = self._first_iteration
        warm = dispatches(self._ticks)[_WARM_UP:]
        if len(warm) > 1:
            first, last = warm[0], warm[-1]
            seconds = last.seconds - first.seconds
            found |= {"steps_per_s": (last.steps - first.steps) / seconds, "measured_s": seconds}
            if last.environment:
                environment, rollout = last.environment - first.environment, last.rollout - first.rollout
                found["environment_share"] = environment / seconds
                found["acting_share"] = (rollout - environment) / seconds
        return found | self._reached | ({"pieces_s": self.pieces} if self.pieces else {})


def dispatches(ticks: list[Tick]) -> list[Tick]:
    """The first tick of each dispatch; those of its other iterations follow at once.

    Between two of them lie as many steps as between the ends of their dispatches, if all dispatches are equally long.
    """
    if len(ticks) < 2:
        return ticks
    apart = 0.1 * (ticks[-1].seconds - ticks[0].seconds) / (len(ticks) - 1)
    return [ticks[0], *(tick for before, tick in itertools.pairwise(ticks) if tick.seconds - before.seconds > apart)]
