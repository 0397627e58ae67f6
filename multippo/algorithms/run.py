"""Run of a training: the loop around the iterations."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Generator
from typing import Any

from multippo.algorithms.checks import check_call, check_initial_state, finished, without_effect
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.distillation.teacher import Teacher
from multippo.algorithms.evaluation import evaluator, made_env, widest_layer
from multippo.algorithms.iterations import Finished, Iterations, Place
from multippo.algorithms.metric_names import EVAL_RETURN
from multippo.algorithms.metrics import History
from multippo.algorithms.minibatches import choose_sequence_length, has_memory
from multippo.algorithms.profiling import Profile
from multippo.algorithms.progress import Progress
from multippo.algorithms.reports import (
    LogFn,
    callback,
    first_not_finite,
    readable,
    remedy,
    replay_warning,
    zero_gradient_warning,
)
from multippo.algorithms.rollout import is_traced
from multippo.algorithms.trainer import RunState, Trainer
from multippo.algorithms.twin_rollout import tracing_engine
from multippo.algorithms.types import TrainingState, TrainResult
from multippo.envs.api import Env, spaces_of
from multippo.envs.keys import key_words
from multippo.envs.nonfinite import unsound_starts
from multippo.errors import NonFiniteError, StopTraining
from multippo.networks.core.modes import training_mode
from multippo.random import host
from multippo.signals import DeferredInterrupt

_LOG = logging.getLogger("multippo")
# Far above what rounding does in float32, far below what drawing afresh does.
REPLAY_TOLERANCE = 1e-2

CheckpointFn = Callable[[TrainingState, int], None]
"""``checkpoint_fn(training_state, step)``."""


class Run:
    """Run of ``train_ppo`` or ``train_distillation``.

    Args:
        env: Training environment, as ``train_ppo`` takes it; so are all arguments up to ``initial_state``.
        network: The network in training.
        config: All settings.
        log_fn: Receiver of metrics.
        checkpoint_fn: Receiver of states to save.
        eval_env: Environment to evaluate in.
        initial_state: State to continue from.
        made: Stack that closes environments made here.
        make_teacher: Function of the environment that makes the teacher of a distillation; None for PPO.
        profile: Trace to write of some iterations.

    Attributes:
        newest: State that ``ppo_step`` goes on from without making a run; None in ``go``.
    """

    def __init__(
        self,
        env: Any,
        network: Any,
        config: TrainConfig,
        log_fn: LogFn | None,
        checkpoint_fn: CheckpointFn | None,
        eval_env: Any,
        initial_state: TrainingState | None,
        made: contextlib.ExitStack,
        make_teacher: Callable[[Env], Teacher] | None = None,
        profile: Profile | None = None,
    ) -> None:
        check_call(network, config)
        self.log_fn = callback("log_fn", log_fn, ("metrics", "step", "env"), 1)
        self.checkpoint_fn = callback("checkpoint_fn", checkpoint_fn, ("training_state", "step"), 2)
        self.engine, self.network, self._profile = network.engine, network, profile
        self._started, self._compiled_before = time.perf_counter(), self.engine.compile_seconds()
        made.enter_context(self.engine.activated())
        self.env = made.enter_context(made_env(env, config.ppo.num_envs))
        self._compilers = [self.engine]
        if self.env.functional and not is_traced(self.engine, self.env) and (tracing := tracing_engine()) is not None:
            self._compilers.append(tracing)
            self._compiled_before += tracing.compile_seconds()
        self.ppo = dataclasses.replace(config.ppo, num_envs=self.env.num_envs)
        self.config = dataclasses.replace(config, ppo=self.ppo)
        self.progress = Progress(self.ppo.total_steps, self.ppo.num_iterations)
        # After the environment is made, whose constructor may set modes of the framework.
        made.enter_context(self._at_work())
        carry = self.engine.shapes(lambda: network.initialize_state(self.env.num_envs))
        length = choose_sequence_length(self.ppo, self.env.num_envs, has_memory(carry))
        teacher = None if make_teacher is None else make_teacher(self.env)
        self.trainer = Trainer(network, self.env, self.ppo, length, config.compile, teacher)
        for text in without_effect(config, checkpoint_fn, eval_env, self.trainer.traced):
            _LOG.warning(text)
        evaluates = config.eval.enabled
        self.evaluator = evaluator(network, self.env, eval_env, self.config, made) if evaluates else None
        self._begin(initial_state)
        # Keys are derived on the host, where nothing is compiled for it.
        *roots, root = host.split(key_words(self.key), 3)
        self._eval_root = roots[1]
        state = self.trainer.start(initial_state, roots)
        self.iterations = Iterations(self.trainer, state, root, initial_state, self._compile_seconds)
        # Iterations before this call, at the last update of the network's weights, and at the last save.
        self._began_at, self._shown_at, self._saved_at = self.place.iteration, self.place.iteration, -1
        self._set_next_checkpoint()
        self.newest: TrainingState | None = None
        self._replaced_starts = self._count_unsound_starts(initial_state)

    def _begin(self, initial: TrainingState | None) -> None:
        """Sets all but the arrays to the state before the first iteration."""
        self.key = self.engine.random.key(self.config.seed)
        # Return of the evaluation after the last finished iteration, and whether that evaluation is still to be made.
        self._eval_return: float | None = None
        self._eval_due = False
        if initial is not None:
            check_initial_state(self.network, initial, self.env, self.ppo)
            if self.config.seed and (self.engine.to_numpy(self.key) != self.engine.to_numpy(initial.key)).any():
                _LOG.warning(
                    "seed=%d has no effect on a run that goes on with the random numbers it began with; leave it out.",
                    self.config.seed,
                )
            self.key, self._eval_return = initial.key, initial.eval_return
            self._eval_due = initial.eval_due and self.evaluator is not None
        self._replay_warned = False
        self.eval_history: list[dict[str, float]] = []
        self._history = History()
        self.final_metrics: dict[str, float] = {}

    @property
    def place(self) -> Place:
        """Place of the last finished iteration."""
        return self.iterations.place

    @contextlib.contextmanager
    def _at_work(self) -> Generator[None]:
        """Sets the modes of the framework and of the network for a ``with`` block that trains."""
        rows = self.ppo.steps_per_iteration // self.ppo.num_minibatches
        widest = widest_layer(self.engine, self.engine.split(self.network).params)
        with self.engine.training(rows, widest), training_mode(self.network):
            yield

    def advance(self) -> dict[str, float]:
        """Runs one iteration outside ``go``, and returns its metrics; the network then has the weights after it."""
        with self._at_work(), DeferredInterrupt() as interrupt:
            ended, failed = self.iterations.run(1, interrupt)
            self._log_iterations(ended)
            if failed is not None:
                raise self._not_finite(failed)
            self._show_weights()
            interrupt.raise_if_requested()
        return self.final_metrics

    def go(self) -> TrainResult:
        """Runs all iterations: rollout and update, log, evaluate, save."""
        if not self.iterations.left and not self._eval_due:
            _LOG.warning(finished(self.place.step, self.place.iteration, self.ppo))
        if "functional" in self.engine.capabilities or self.config.compile not in ("auto", "off"):
            self.progress.stage("Compiling")
        with self._saving_whatever_comes() as interrupt:
            with contextlib.suppress(StopTraining):
                while self.iterations.left or self._eval_due:
                    owed = self._eval_due  # left over by the run that this one continues
                    if not owed:
                        ended, failed = self._roll_out_and_update(interrupt)
                        self._log_iterations(ended)
                        if failed is not None:
                            raise self._not_finite(failed)
                    evaluating = self._eval_due and not interrupt.requested
                    if evaluating:
                        with interrupt.abandonable():
                            self._log(self._evaluate())
                    asked_for = evaluating and (self.config.checkpoint_at_evals or owed)
                    if asked_for or self.place.step >= self._next_checkpoint or interrupt.requested:
                        self._save(self.snapshot())
                    interrupt.raise_if_requested()
            state = self.snapshot()
            if self._saved_at != self.place.iteration:
                self._save(state)
            self._show_weights()
            interrupt.raise_if_requested()
        return TrainResult(
            training_state=state,
            final_metrics=self.final_metrics,
            eval_history=self.eval_history,
            total_steps=self.place.step,
            total_iterations=self.place.iteration,
            history=self._history.records(),
            spaces=spaces_of(self.env),
        )

    # -- rollout and update

    def _roll_out_and_update(self, interrupt: DeferredInterrupt) -> tuple[list[Finished], dict[str, Any] | None]:
        """Runs as many iterations as one call takes; see ``Iterations.run``."""
        next_eval = _next_multiple(self.place.step, self.config.eval.every_steps)
        traced = self._profile is not None and self._profile.before(self.engine)
        seen_at = min(self._next_checkpoint, next_eval if self.evaluator is not None else math.inf)
        is_logged = self.log_fn is not None
        count = self.iterations.number(self.config.log_every_steps, seen_at, are_logged=is_logged)
        ended, failed = self.iterations.run(1 if traced else count, interrupt)
        self._eval_return = None if ended else self._eval_return
        is_last = failed is None and not self.iterations.left
        self._eval_due = self.evaluator is not None and (self.place.step >= next_eval or is_last)
        return ended, failed

    def _compile_seconds(self) -> float:
        """Seconds that the network's engine, and the one that traces the environment, have spent compiling so far."""
        return sum(compiler.compile_seconds() for compiler in self._compilers)

    # -- log and evaluate

    def _log_iterations(self, ended: list[Finished]) -> None:
        """Logs each iteration with the weights after it; where that ends the run, the state is the one after it."""
        pace, compiled = self.iterations.steps_per_second, self._compile_seconds() - self._compiled_before
        elapsed = time.perf_counter() - self._started
        for report, weights, place in ended:
            metrics = readable(report, place.recent_episodes)
            if self._replaced_starts:
                metrics["rollout/nonfinite_steps"] = metrics.get("rollout/nonfinite_steps", 0.0) + self._replaced_starts
                self._replaced_starts = 0
            metrics |= {"step": place.step, "iteration": place.iteration}
            metrics |= {"throughput/train_sps": pace, "time/compile_s": compiled, "time/elapsed_s": elapsed}
            try:
                self._log(metrics, weights)
            except BaseException:
                if place != self.place:
                    self._eval_due = False
                    self.iterations.go_back(place)
                raise

    def _log(self, metrics: dict[str, float], weights: tuple[Any, Any] | None = None) -> None:
        if weights is not None:  # of an iteration
            self.final_metrics = metrics
            deviation = metrics.get("ratio/first_max_dev", 0.0)
            if deviation > REPLAY_TOLERANCE and not self._replay_warned:
                self._replay_warned = True
                _LOG.warning(replay_warning(deviation, int(metrics["iteration"])))
            if metrics["iteration"] == self._began_at + 1 and (text := zero_gradient_warning(metrics)) is not None:
                _LOG.warning(text)
        self._history.append(metrics)
        self.progress.update(metrics)
        if self.log_fn is not None:
            self._show_weights(weights, metrics.get("iteration"))
            if self.log_fn(metrics, int(metrics["step"]), self.env) is False:
                raise StopTraining

    def _evaluate(self) -> dict[str, float]:
        assert self.evaluator is not None
        learner = self.iterations.state.learner
        key = host.fold_in(self._eval_root, 2**31 + self.place.iteration)
        with self.engine.annotate("evaluation"):
            found = self.evaluator.play(learner.params, learner.variables, key)
        metrics = {"step": float(self.place.step), **found}
        self.eval_history.append(metrics)
        self.final_metrics = {**self.final_metrics, **found}
        self._eval_return, self._eval_due = found[EVAL_RETURN], False
        return metrics

    def _show_weights(self, weights: tuple[Any, Any] | None = None, iteration: float | None = None) -> None:
        """Gives the user's network weights, by default those after the last finished iteration."""
        learner, iteration = self.iterations.state.learner, iteration or self.place.iteration
        if self._shown_at != iteration:
            self.engine.update_module(self.network, *(weights or (learner.params, learner.variables)))
            self._shown_at = iteration

    # -- save

    def snapshot(self) -> TrainingState:
        """The state after the last finished iteration, as copies."""
        return self._training_state(self.iterations.state, self.engine.snapshot)

    def _training_state(self, state: RunState, copied: Callable[[Any], Any]) -> TrainingState:
        return TrainingState(
            **self.trainer.export(state, copied),
            key=copied(self.key),
            **self.place._asdict(),
            eval_return=self._eval_return,
            eval_due=self._eval_due,
        )

    def _save(self, state: TrainingState) -> None:
        """Calls ``checkpoint_fn`` with a state."""
        self._saved_at = self.place.iteration
        self._set_next_checkpoint()
        if self.checkpoint_fn is not None:
            self._show_weights()
            with self.engine.annotate("checkpoint"):
                self.checkpoint_fn(state, self.place.step)

    def _set_next_checkpoint(self) -> None:
        every = self.config.checkpoint_every_steps
        self._next_checkpoint = _next_multiple(self.place.step, every) if every else math.inf

    @contextlib.contextmanager
    def _saving_whatever_comes(self) -> Generator[DeferredInterrupt]:
        """Saves the last finished iteration when an error or a signal ends the run."""
        with DeferredInterrupt(self._rescue) as interrupt:
            try:
                yield interrupt
            except BaseException as error:
                if not self.iterations.consumed and self.place.iteration > self._began_at:
                    try:
                        self._show_weights()
                        if self._saved_at != self.place.iteration:
                            self._save(self.snapshot())
                    except Exception as second:
                        error.add_note(f"The state after {self.place.step} steps could not be saved: {second!r}.")
                raise

    def _rescue(self) -> None:
        """Saves the last finished iteration while another thread is at work."""
        arrays = self.iterations.intact
        if arrays is not None and self.place.iteration > 0 and self.checkpoint_fn is not None:
            state = self._training_state(arrays, lambda tree: tree)
            self.checkpoint_fn(state, state.step)

    # -- values that are not finite

    def _count_unsound_starts(self, initial: TrainingState | None) -> int:
        """Counts the first episodes that were reset again for a value that is not finite.

        Raises:
            NonFiniteError: If there are such episodes and ``PPOConfig.nonfinite`` is "stop".
        """
        if initial is not None and self.env.functional:
            return 0
        count, leaf, env = unsound_starts(self.iterations.state.env_state)
        if count and self.ppo.nonfinite == "stop":
            raise NonFiniteError(
                f"The {leaf} is not finite at the start of environment {env}; {remedy(leaf, self.ppo.nonfinite)}",
                leaf=leaf,
                training_state=self.snapshot(),
            )
        return count

    def _not_finite(self, report: dict[str, Any]) -> NonFiniteError:
        """Saves the state from before the iteration, and returns an error that names the value that is not finite."""
        params = self.engine.named_params(self.iterations.state.learner.params)
        leaf, where = first_not_finite(report, self.env.num_envs, params, self.engine.xp)
        state = self.snapshot()
        self._show_weights()
        self._save(state)
        return NonFiniteError(
            f"The {leaf} is not finite{where}, in iteration {self.place.iteration + 1}, after {self.place.step} steps. "
            f"The weights are those from before; {remedy(leaf, self.ppo.nonfinite)}",
            leaf=leaf,
            training_state=state,
        )


def _next_multiple(step: int, every: int) -> int:
    return (step // every + 1) * every
