"""Clock of one contestant in one process: told of every iteration, it says when enough is measured."""

from __future__ import annotations

import collections
import contextlib
import itertools
import resource
import statistics
import sys
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple, NoReturn

from multippo.bench.works import Work


class Enough(Exception):  # noqa: N818 - nothing went wrong
    """Ends the training of a contestant that has been measured."""


class Phase:
    """Context whose seconds are added up."""

    def __init__(self) -> None:
        self.seconds = self._began = 0.0

    def __enter__(self) -> None:
        self._began = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self._began


class Tick(NamedTuple):
    """End of an iteration: time, steps so far, and seconds so far in each phase."""

    seconds: float
    steps: int
    phases: dict[str, float]


_WARM_UP = 3
"""Dispatches left out of the rate: several libraries compile in the first and again in the second."""


class Recorder:
    """Times of one contestant.

    Attributes:
        phases: Contexts by name; those of one iteration do not overlap, but for "rollout", which holds some of them.
        alone: Parts of an iteration by name, which are run and timed between two dispatches, off the clock.

    Args:
        work: The work.
        began: ``time.time()`` when the process was started.
        seconds: Length of the measurement after the warm-up.
    """

    def __init__(self, work: Work, began: float, seconds: float) -> None:
        self.work, self.began, self.seconds = work, began, seconds
        self.phases: dict[str, Phase] = collections.defaultdict(Phase)
        self.alone: dict[str, Callable[[], Any]] = {}
        self._times: dict[str, list[float]] = {}
        self._found: dict[str, float] = {}
        self._ticks: list[Tick] = []
        self._away = 0.0

    def iteration(self, steps: int) -> None:
        """Takes note of the end of an iteration.

        Args:
            steps: Environment steps since the start of training.

        Raises:
            Enough: When enough is measured.
        """
        if not self._ticks:
            self._found["first_iteration_s"] = time.time() - self.began
        spent = {name: phase.seconds for name, phase in self.phases.items()}
        self._ticks.append(Tick(time.perf_counter() - self._away, int(steps), spent))
        if self.work.measure == "start":
            raise Enough
        warm = dispatches(self._ticks)[_WARM_UP:]
        if len(warm) > 1 and warm[-1].seconds - warm[0].seconds >= self.seconds:
            raise Enough
        if self.alone and warm and warm[-1] is self._ticks[-1]:
            self._found.setdefault("memory_mib", _memory())
            with self.off_the_clock():
                self._run_alone()

    def _run_alone(self) -> None:
        for name, function in self.alone.items():
            if name not in self._times:
                function()  # compiles
            start = time.perf_counter()
            function()
            self._times.setdefault(name, []).append(time.perf_counter() - start)

    def timed(self, function: Callable[..., Any], ends: bool = False) -> Callable[..., Any]:
        """``function``, which steps all environments once, with its time counted as the environments'.

        Args:
            function: The step.
            ends: True for a contestant that reports no iterations: a rollout's first step then ends the one before.
        """
        calls, phase = 0, self.phases["environment"]

        def step(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            if ends and calls and calls % self.work.rollout_length == 0:
                self.iteration(calls * self.work.num_envs)
            calls += 1
            with phase:
                return function(*args, **kwargs)

        return step

    @contextlib.contextmanager
    def off_the_clock(self) -> Generator[None]:
        """Surrounds what does not count, such as an evaluation."""
        start = time.perf_counter()
        yield
        self._away += time.perf_counter() - start

    def reached(self, steps: int) -> NoReturn:
        """Ends a work of measure "return"."""
        self._found |= {"seconds_to_return": time.time() - self.began - self._away, "steps_to_return": steps}
        raise Enough

    def result(self) -> dict[str, Any]:
        """Everything measured: rates in steps a second, times in seconds, memory in MiB.

        Phases, parts run alone and ``iteration_s`` are seconds of one iteration.
        """
        found = {"memory_mib": _memory(), **self._found}
        warm = dispatches(self._ticks)[_WARM_UP:]
        if len(warm) > 1:
            first, last = warm[0], warm[-1]
            seconds = last.seconds - first.seconds
            found |= {"steps_per_s": (last.steps - first.steps) / seconds, "measured_s": seconds}
            iterations = (last.steps - first.steps) / self.work.steps
            if last.phases:  # stepped from Python: a tick each, and steps that only reset an environment may not count
                iterations = self._ticks.index(last) - self._ticks.index(first)
            for name, spent in last.phases.items():
                found[f"{name}_s"] = (spent - first.phases.get(name, 0.0)) / iterations
            found |= {f"{name}_s": statistics.median(times) for name, times in self._times.items()}
            found["iteration_s"] = seconds / iterations
        return found


def _memory() -> float:
    """Largest resident memory of the process so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def dispatches(ticks: list[Tick]) -> list[Tick]:
    """The first tick of each dispatch; those of its other iterations follow at once.

    Between two of them lie as many steps as between the ends of their dispatches, if all dispatches are equally long.
    """
    if len(ticks) < 2:
        return ticks
    apart = 0.1 * (ticks[-1].seconds - ticks[0].seconds) / (len(ticks) - 1)
    return [ticks[0], *(tick for before, tick in itertools.pairwise(ticks) if tick.seconds - before.seconds > apart)]
