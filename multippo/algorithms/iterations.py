"""Iterations of a run: several in one call of the trainer, and the way back to one of them."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import numpy as np

from multippo.algorithms.reports import last_episodes
from multippo.algorithms.schedules import Coefficients, coefficients_at, iterations_left, planned_steps
from multippo.algorithms.trainer import RunState, Trainer
from multippo.algorithms.types import Episodes, TrainingState
from multippo.random import host
from multippo.signals import DeferredInterrupt

# Calls that take longer are worth a copy of the state before them, from which to save if the process must end in one.
_LONG_CALL_S = 1.0
# Seconds of work that a device is given at a time, where nobody needs to see the state in between.
_DISPATCH_S = 0.5
# Bytes of weights that may wait for ``log_fn``.
_WAITING_BYTES = 2**28


class Place(NamedTuple):
    """Place of a state in its run: the fields of ``TrainingState`` of these names."""

    iteration: int
    step: int
    planned_steps: int
    recent_episodes: Episodes


class Finished(NamedTuple):
    """An iteration that went well: its report, the parameters and variables after it, and the place of its end."""

    report: dict[str, Any]
    weights: tuple[Any, Any]
    place: Place


class Iterations:
    """Newest state of a run, moved on by calls of the trainer.

    Args:
        trainer: The trainer.
        state: State before the first iteration.
        root: Words of the key from which each iteration's is derived.
        initial: State that the run is continued from.
        compile_seconds: Function that returns the seconds spent compiling so far.

    Attributes:
        state: The newest state.
        place: Place of the last finished iteration.
        consumed: True while a call consumes ``state``, by donated buffers or in place.
        steps_per_second: Pace of the last call, compilation left out.
    """

    def __init__(
        self,
        trainer: Trainer,
        state: RunState,
        root: Any,
        initial: TrainingState | None,
        compile_seconds: Callable[[], float],
    ) -> None:
        self._trainer, self._root, self._compile_seconds = trainer, root, compile_seconds
        self.state, self.consumed, self.steps_per_second = state, False, 0.0
        place, recent = (0, 0), ()
        if initial is not None:
            place, recent = (initial.iteration, initial.step), initial.recent_episodes
        self.place = Place(*place, planned_steps(trainer.config, initial), recent)
        # Place before the last call, and a copy of the state there if the call was of several iterations or a long one.
        self._before, self._kept = self.place, None
        self._seconds_each = 0.0

    @property
    def left(self) -> int:
        """Number of iterations until ``total_steps``."""
        return iterations_left(self._trainer.config, self.place.planned_steps)

    @property
    def intact(self) -> RunState | None:
        """The state at ``place``, from any thread; None if there is no copy of what a call consumes."""
        return self._kept if self.consumed else self.state

    def number(self, log_every_steps: int, seen_at: float, *, are_logged: bool) -> int:
        """Number of iterations of the next call: until somebody needs to see the state, or for some time.

        A clock may choose it, since every number gives the same run.

        Args:
            log_every_steps: ``TrainConfig.log_every_steps``.
            seen_at: Step at which the state is next evaluated or saved; infinity for never.
            are_logged: True if each iteration's weights wait to be shown.
        """
        if not self._trainer.traced:
            return 1
        size = self._trainer.config.steps_per_iteration
        most = log_every_steps // size
        if not log_every_steps:
            most = int(_DISPATCH_S / self._seconds_each) if self._seconds_each else 1
        if are_logged:
            params = self._trainer.engine.named_params(self.state.learner.params)
            most = min(most, _WAITING_BYTES // (1 + sum(leaf.nbytes for _, leaf in params)))
        until = self.left if seen_at == math.inf else math.ceil((seen_at - self.place.step) / size)
        return min(max(most, 1), until, self.left)

    def run(self, count: int, interrupt: DeferredInterrupt) -> tuple[list[Finished], dict[str, Any] | None]:
        """Runs as many iterations in one call.

        Returns:
            The iterations that went well; and the report of the one after them that met a value that is not finite and
            left the state as it was, or None.
        """

        @contextlib.contextmanager
        def rollout() -> Generator[None]:
            """Surrounds a rollout stepped from Python, which leaves the state as it is and may be given up."""
            with interrupt.abandonable():
                self.consumed = False
                yield
            self.consumed = True

        compiled, start = self._compile_seconds(), time.perf_counter()
        is_long = count > 1 or self._seconds_each > _LONG_CALL_S
        self._before, self._kept = self.place, self._trainer.copied(self.state) if is_long else None
        self.consumed = True
        self.state, reports, weights = self._trainer.run(self.state, *self._inputs(count), rollout)
        seconds = max(time.perf_counter() - start - (self._compile_seconds() - compiled), 1e-9)
        self._seconds_each = seconds / count
        self.steps_per_second = sum(int(report["steps"]) for report in reports) / seconds
        finished: list[Finished] = []
        place = self.place
        for report, after in itertools.takewhile(
            lambda one: not one[0]["nonfinite/any"], zip(reports, weights, strict=True)
        ):
            planned = place.planned_steps + self._trainer.config.steps_per_iteration
            recent = last_episodes(report, place.recent_episodes)
            place = Place(place.iteration + 1, place.step + int(report["steps"]), planned, recent)
            finished.append(Finished(report, after, place))
        # The state is the one after the last of them, so all are counted at once.
        self.place, self.consumed = place, False
        return finished, reports[len(finished)] if len(finished) < count else None

    def go_back(self, place: Place) -> None:
        """Computes the first iterations of the last call again, up to a place, and gives up those beyond it."""
        assert self._kept is not None
        self.place, self.consumed = self._before, True
        self.state, *_ = self._trainer.run(self._kept, *self._inputs(place.iteration - self._before.iteration))
        self.place, self.consumed = place, False

    def _inputs(self, count: int) -> tuple[Any, list[Coefficients]]:
        """Keys and values of the schedules of the next iterations."""
        config, at = self._trainer.config, self.place
        keys = host.fold_in(self._root, np.arange(at.iteration, at.iteration + count))
        first = at.planned_steps / config.steps_per_iteration
        return keys, [coefficients_at(config, first + i) for i in range(count)]
