"""One run of training: the loop around the iterations."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import math
import time
from collections.abc import Callable, Generator
from typing import Any

from multippo.algorithms.checks import (
    as_env,
    check_initial_state,
    check_network,
    check_trains,
    finished,
    without_effect,
)
from multippo.algorithms.config import TrainConfig
from multippo.algorithms.evaluation import Evaluator
from multippo.algorithms.interrupts import DeferredInterrupt, rescues
from multippo.algorithms.metrics import EVAL_RETURN
from multippo.algorithms.minibatches import choose_sequence_length, has_memory
from multippo.algorithms.reports import (
    LogFn,
    check_callback,
    first_not_finite,
    readable,
    remedy,
    replay_warning,
    with_step,
)
from multippo.algorithms.schedules import coefficients_at, iterations_left, planned_steps
from multippo.algorithms.teacher import Teacher
from multippo.algorithms.trainer import RunState, Trainer
from multippo.algorithms.types import TrainingState, TrainResult
from multippo.algorithms.update import LearnerState
from multippo.envs.api import Env, EnvState
from multippo.envs.guard import restart_unsound, unsound_starts
from multippo.envs.saving import SavedEnvState
from multippo.errors import NonFiniteError
from multippo.networks.random_state import reseed
from multippo.networks.types import StatefulModule
from multippo.networks.utils import tree_map

__all__ = ["CheckpointFn", "Run"]

_LOG = logging.getLogger("multippo")
# Far above what rounding does in float32, far below what drawing afresh does.
_REPLAY_TOLERANCE = 1e-2
# Calls that take longer are worth a copy of the state before them, from which to save if the process must end in one.
_LONG_CALL_S = 1.0

CheckpointFn = Callable[[TrainingState, int], None]
"""``checkpoint_fn(training_state, step)``."""


class Run:
    """One call of ``train_ppo`` or ``train_distillation``.

    Args:
        env: See ``train_ppo``, as all up to ``initial_state``.
        network: The network in training.
        config: Everything else.
        log_fn: Called with metrics.
        checkpoint_fn: Called with the state.
        eval_env: Where to evaluate.
        initial_state: Where to go on from.
        made: Closes what the call has made itself.
        make_teacher: Makes the teacher of a distillation, for the environment.
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
    ) -> None:
        if not isinstance(network, StatefulModule):
            raise TypeError(f"train_ppo needs a StatefulModule as its network; got a {type(network).__name__}.")
        if not isinstance(config, TrainConfig):
            raise TypeError(f"train_ppo needs a TrainConfig; got a {type(config).__name__}.")
        check_callback("log_fn", log_fn, "the metrics, or of the metrics and the step", (1, 2))
        check_callback("checkpoint_fn", checkpoint_fn, "the training state and the step", (2,))
        self.engine, self.network = network.engine, network
        made.enter_context(self.engine.activated())
        check_trains(self.engine)
        self.env = as_env(env, config.ppo.num_envs)
        if isinstance(env, str):
            made.callback(self.env.close)
        ppo = config.ppo
        if ppo.num_envs not in (None, self.env.num_envs):
            raise ValueError(
                f"PPOConfig.num_envs={ppo.num_envs}, but the environment has {self.env.num_envs}; make them the same, "
                "or leave num_envs unset."
            )
        self.config = dataclasses.replace(config, ppo=dataclasses.replace(ppo, num_envs=self.env.num_envs))
        self.ppo = self.config.ppo
        self.log_fn = with_step(log_fn)
        self.checkpoint_fn = checkpoint_fn
        fresh = network.initialize_state(self.env.num_envs)
        length = choose_sequence_length(self.ppo, self.env.num_envs, has_memory(fresh))
        per_call = max(1, self.config.log_every_steps // self.ppo.steps_per_iteration)
        self.teacher = None if make_teacher is None else make_teacher(self.env)
        self.trainer = Trainer(network, self.env, self.ppo, length, per_call, self.config.compile, self.teacher)
        for text in without_effect(self.config, checkpoint_fn, eval_env, self.trainer.traced):
            _LOG.warning(text)
        self.evaluator = Evaluator(network, self.env, eval_env, self.config) if self.config.eval.enabled else None
        if self.evaluator is not None and (eval_env is None or isinstance(eval_env, str)):
            made.callback(self.evaluator.close)
        self._start(fresh, initial_state)
        self._warned = False
        # Iterations before this call; after which one the network was given the weights, and the state to be saved.
        self._began_at, self._shown_at, self._saved_at = self.iteration, self.iteration, -1
        # Whether the state is being consumed, by donated buffers or in place; and a copy of it, if that may take long.
        self._consumed, self._kept, self._call_seconds = False, None, 0.0
        self.eval_history: list[dict[str, float]] = []
        self.final_metrics: dict[str, float] = {}

    def _start(self, fresh: Any, initial: TrainingState | None) -> None:
        """Sets the state before the first iteration, and checks the network on the first observation."""
        engine, random = self.engine, self.engine.random
        if initial is not None:
            check_initial_state(self.network, initial, self.env, self.ppo)
        self.key = random.key(self.config.seed) if initial is None else initial.key
        if (engine.to_numpy(self.key) != engine.to_numpy(random.key(self.config.seed))).any() and self.config.seed:
            _LOG.warning(
                "seed=%d has no effect on a run that goes on with the random numbers it began with; leave it out.",
                self.config.seed,
            )
        self.iteration = 0 if initial is None else initial.iteration
        self.step = 0 if initial is None else initial.step
        self.planned_steps = planned_steps(self.ppo, initial)
        # After which iteration the last evaluation was, and its return.
        self._evaluated = (-1, None) if initial is None else (initial.iteration, initial.eval_return)
        self._eval_due = initial is not None and initial.eval_due and self.evaluator is not None
        roots = random.split(self.key, 3)
        self.iteration_root = roots[2]
        # Episodes a host environment starts after a resume are not those it started with.
        reset_key = random.fold_in(roots[0], self.iteration)
        begun = None
        if initial is not None and self.env.functional:
            saved = initial.env_state
            env_state = saved.restore(self.env) if isinstance(saved, SavedEnvState) else saved
        else:
            env_state = restart_unsound(self.env, self.env.reset(engine.to_numpy(reset_key)))
            begun = env_state
        if initial is not None:
            engine.update_module(self.network, initial.params, initial.variables)
            fresh = self.network.initialize_state(self.env.num_envs)  # a carry may be made of parameters
        network_state = reseed(random, fresh, random.fold_in(roots[1], self.iteration))
        obs = engine.from_jax(env_state.obs) if self.env.functional else tree_map(engine.asarray, env_state.obs)
        check_network(self.network, network_state, self.env, env_state, obs, self.ppo)
        teacher_state = None
        if self.teacher is not None:
            kept = initial.teacher_carry if initial is not None and self.env.functional else None
            teacher_key = engine.to_numpy(random.fold_in(roots[1], 2**30 + self.iteration))
            teacher_state = self.teacher.start(self.env.num_envs, teacher_key, kept)
            self.teacher.check(teacher_state, network_state, obs)
        learner, episodes = self.trainer.initial_learner(), self.trainer.initial_episodes(env_state.reward)
        if initial is not None:
            split = engine.split(self.network)
            optimizer_state = self.trainer.learner.optimizer.import_state(split.params, *initial.optimizer_state)
            rate = learner.learning_rate
            if rate is not None and initial.learning_rate is not None:
                rate = engine.zeros(()) + initial.learning_rate
            learner = LearnerState(split.params, split.variables, optimizer_state, rate)
            if self.env.functional:
                network_state, episodes = initial.network_state, engine.snapshot(initial.episodes)
            elif episodes.scale is not None:
                # The episodes are new, what is known about the size of returns is not.
                known = initial.episodes.scale
                zeroed = tree_map(lambda new, old: old if old.ndim == 0 else new, episodes.scale, known)
                episodes = episodes._replace(scale=engine.snapshot(zeroed))
        # Copies, since what is consumed must not be anybody else's, nor one array twice. Only a traced environment's
        # state is consumed.
        env_state = engine.snapshot(env_state) if self.trainer.traced else env_state
        self.state = RunState(learner, engine.snapshot(network_state), env_state, episodes, teacher_state)
        self._unsound_starts = self._count_unsound(begun)

    def _count_unsound(self, env_state: EnvState | None) -> int:
        """How many of the first episodes began with a value that is not finite and were begun anew."""
        count, leaf, env = (0, "", 0) if env_state is None else unsound_starts(env_state)
        if count and self.ppo.nonfinite == "stop":
            raise NonFiniteError(
                f"The {leaf} is not finite at the start of environment {env}; {remedy(leaf, self.ppo.nonfinite)}",
                leaf=leaf,
                training_state=self.snapshot(),
            )
        return count

    def go(self) -> TrainResult:
        """Runs to the end."""
        total = self.iteration + iterations_left(self.ppo, self.planned_steps)
        if self.iteration >= total and not self._eval_due:
            _LOG.warning(finished(self.step, self.iteration, self.ppo))
        every = self.config.checkpoint_every_steps
        next_checkpoint = self._next(every) if every else math.inf
        with contextlib.ExitStack() as stack:
            interrupt = stack.enter_context(DeferredInterrupt())
            stack.enter_context(self.engine.training(*self._work()))
            stack.enter_context(self._saved_if_it_fails())
            rescues.append(self._rescue)
            stack.callback(rescues.remove, self._rescue)
            self.trainer.rollout_context = lambda: self._rollout(interrupt)
            while self.iteration < total or self._eval_due:
                made_up = self._eval_due
                if not made_up:
                    self._advance(total - self.iteration)
                evaluating = self._eval_due and not interrupt.requested
                if evaluating:
                    with interrupt.abandonable():
                        self._evaluate()
                wanted = self.step >= next_checkpoint or (evaluating and (self.config.checkpoint_at_evals or made_up))
                if wanted or interrupt.requested:
                    self._checkpoint()
                    next_checkpoint = self._next(every) if every else math.inf
                interrupt.raise_if_requested()
            state = self.snapshot()
            if self._saved_at != self.iteration:
                self._checkpoint(state)
            self._show()
            interrupt.raise_if_requested()
        return TrainResult(
            training_state=state,
            final_metrics=self.final_metrics,
            eval_history=self.eval_history,
            total_steps=self.step,
            total_iterations=self.iteration,
        )

    @contextlib.contextmanager
    def _saved_if_it_fails(self) -> Generator[None]:
        """Whatever ends a run (an environment's error, Ctrl-C in a long rollout) leaves the last finished iteration."""
        try:
            yield
        except BaseException as error:
            if not self._consumed and self.iteration > self._began_at:
                try:
                    self._show()
                    if self._saved_at != self.iteration:
                        self._checkpoint()
                except Exception as second:
                    error.add_note(f"The state after {self.step} steps could not be saved: {second!r}.")
            raise

    @contextlib.contextmanager
    def _rollout(self, interrupt: DeferredInterrupt) -> Generator[None]:
        """Around a rollout stepped from Python, which leaves the state as it is."""
        with interrupt.abandonable():
            self._consumed = False
            yield
        self._consumed = True

    def _rescue(self) -> None:
        """Saves the last finished iteration while another thread is at work."""
        state = self._kept if self._consumed else self._training_state(lambda tree: tree)
        if state is not None and state.iteration > 0 and self.checkpoint_fn is not None:
            self.checkpoint_fn(state, state.step)

    def _work(self) -> tuple[int, int]:
        """Samples in one gradient step, and features of the widest layer."""
        shapes = [tuple(leaf.shape) for _, leaf in self.engine.named_params(self.state.learner.params)]
        rows = self.ppo.steps_per_iteration // self.ppo.num_minibatches
        return rows, max((size for shape in shapes for size in shape), default=1)

    def _next(self, every: int) -> int:
        return (self.step // every + 1) * every

    def _advance(self, left: int) -> None:
        """Runs some of the iterations that are left and logs each."""
        count, next_eval = min(self.trainer.iterations_per_call, left), self._next(self.config.eval.every_steps)
        compile_before, start = self.engine.compile_seconds(), time.perf_counter()
        numbers = range(self.iteration, self.iteration + count)
        keys = self.engine.random.fold_in(
            self.engine.xp.stack([self.iteration_root] * count), self.engine.asarray(list(numbers))
        )
        size = self.ppo.steps_per_iteration
        coefficients = [coefficients_at(self.ppo, self.planned_steps / size + place) for place in range(count)]
        self._kept = self.snapshot() if self._call_seconds > _LONG_CALL_S else None
        self._consumed = True
        self.state, reports = self.trainer.run(self.state, keys, coefficients)
        self._call_seconds = time.perf_counter() - start
        compiled = self.engine.compile_seconds() - compile_before
        seconds = max(time.perf_counter() - start - compiled, 1e-9)
        steps = sum(int(report["steps"]) for report in reports)
        failed = next((report for report in reports if bool(report["nonfinite/any"])), None)
        logged: list[dict[str, float]] = []
        for report in reports if failed is None else reports[: reports.index(failed)]:
            self.iteration += 1
            self.step += int(report["steps"])
            self.planned_steps += self.ppo.steps_per_iteration
            metrics = readable(report)
            if self._unsound_starts:
                metrics["rollout/nonfinite_steps"] = metrics.get("rollout/nonfinite_steps", 0.0) + self._unsound_starts
                self._unsound_starts = 0
            metrics["step"] = self.step
            metrics["iteration"] = self.iteration
            metrics["throughput/train_sps"] = steps / seconds
            metrics["time/compile_s"] = self.engine.compile_seconds()
            logged.append(metrics)
        # The state is the one after the last of them, so nothing is told of the first before all are counted.
        self._consumed = False
        self._eval_due = self.evaluator is not None and (self.step >= next_eval or len(logged) == left)
        for metrics in logged:
            self.final_metrics = metrics
            self._warn_of_replay(metrics.get("ratio/first_max_dev", 0.0), int(metrics["iteration"]))
            self._log(metrics)
        if failed is not None:
            self._refuse_non_finite(failed)

    def _warn_of_replay(self, deviation: float, iteration: int) -> None:
        """Says once that the network is not what it was in the rollout: nothing else would show it."""
        if deviation > _REPLAY_TOLERANCE and not self._warned:
            self._warned = True
            _LOG.warning(replay_warning(deviation, iteration))

    def _log(self, metrics: dict[str, float]) -> None:
        if self.log_fn is not None:
            self._show()
            self.log_fn(metrics)

    def _evaluate(self) -> None:
        assert self.evaluator is not None
        learner = self.state.learner
        key = self.engine.random.fold_in(self.engine.random.split(self.key, 3)[1], 2**31 + self.iteration)
        found = self.evaluator.run(learner.params, learner.variables, key)
        metrics = {"step": float(self.step), **found}
        self.eval_history.append(metrics)
        self.final_metrics = {**self.final_metrics, **found}
        self._evaluated, self._eval_due = (self.iteration, found[EVAL_RETURN]), False
        self._log(metrics)

    def _checkpoint(self, state: TrainingState | None = None) -> None:
        """Hands out the state after the last finished iteration."""
        self._saved_at = self.iteration
        if self.checkpoint_fn is not None:
            self._show()
            self.checkpoint_fn(state or self.snapshot(), self.step)

    def _show(self) -> None:
        """Gives the user's network the weights after the last finished iteration, on every engine alike."""
        if self._shown_at != self.iteration:
            learner = self.state.learner
            self.engine.update_module(self.network, learner.params, learner.variables)
            self._shown_at = self.iteration

    def snapshot(self) -> TrainingState:
        """The state after the last finished iteration, as copies."""
        return self._training_state(self.engine.snapshot)

    def _training_state(self, copied: Callable[[Any], Any]) -> TrainingState:
        engine, state = self.engine, self.state
        learner = state.learner
        first, second, count = self.trainer.learner.optimizer.export_state(learner.optimizer_state)
        return TrainingState(
            definition=self.trainer.definition,
            params=copied(learner.params),
            variables=copied(learner.variables),
            optimizer_state=(first, second, count),
            network_state=copied(state.network_state),
            # Only a traced environment's buffers are donated to a later iteration.
            env_state=copied(state.env_state) if self.trainer.traced else state.env_state,
            episodes=copied(state.episodes),
            teacher_carry=self._teacher_carry(),
            learning_rate=None if learner.learning_rate is None else float(engine.to_numpy(learner.learning_rate)),
            key=copied(self.key),
            iteration=self.iteration,
            step=self.step,
            planned_steps=self.planned_steps,
            eval_return=self._evaluated[1] if self._evaluated[0] == self.iteration else None,
            eval_due=self._eval_due,
        )

    def _teacher_carry(self) -> list[Any] | None:
        if self.teacher is None or self.state.teacher is None:
            return None
        return self.teacher.carry_leaves(self.state.teacher)

    def _refuse_non_finite(self, report: dict[str, Any]) -> None:
        """Stops at a NaN or an infinity; the state is the one before the iteration."""
        params = self.engine.named_params(self.state.learner.params)
        leaf, where = first_not_finite(report, self.env.num_envs, params, self.engine.xp)
        state = self.snapshot()
        self._show()
        self._checkpoint(state)
        raise NonFiniteError(
            f"The {leaf} is not finite{where}, in iteration {self.iteration + 1}, after {self.step} steps. "
            f"The weights are those from before; {remedy(leaf, self.ppo.nonfinite)}",
            leaf=leaf,
            training_state=state,
        )
