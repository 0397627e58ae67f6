"""Training iterations, compiled as far as the engine and the environment allow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np

from multippo.algorithms.advantages import mean_over
from multippo.algorithms.checks import check_network
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.distillation.teacher import Teacher, TeacherState
from multippo.algorithms.reward_scaling import clip_rewards, divisors, initial_scale, scale_rewards
from multippo.algorithms.rollout import Actor, Rollout, collect, is_traced, programmes_for
from multippo.algorithms.schedules import Coefficients, coefficients_at, compiled_in
from multippo.algorithms.side_by_side import current_group
from multippo.algorithms.types import EpisodeState, TrainingState, Transition
from multippo.algorithms.update import Learner, LearnerState, fold_episodes
from multippo.envs.api import Env, EnvState
from multippo.envs.functional.saving import SavedEnvState
from multippo.envs.nonfinite import restart_unsound
from multippo.networks.types import needs_only_valid
from multippo.random import host
from multippo.trees import named_leaves, tree_map, tree_structure


class RunState(NamedTuple):
    """State of a run between two iterations; not to be read after a call on an engine that donates buffers.

    A teacher is part of it in distillation only, and its parameters go through an iteration unchanged.
    """

    learner: LearnerState
    network_state: Any
    env_state: EnvState
    episodes: EpisodeState
    teacher: TeacherState | None = None


class Trainer:
    """Runs iterations of one network in one environment.

    Where the environment is traced, an iteration is one compiled call, and the next is sent off before it has ended;
    otherwise the environment is stepped from Python, and the update is one compiled call.

    Args:
        network: The network in training, on the engine to compute with.
        env: The environments.
        config: Settings, with ``num_envs`` set.
        sequence_length: L.
        mode: ``TrainConfig.compile``.
        teacher: The teacher of a distillation; None for PPO.
    """

    def __init__(
        self,
        network: Any,
        env: Env,
        config: PPOConfig,
        sequence_length: int,
        mode: str,
        teacher: Teacher | None = None,
    ) -> None:
        self.engine, self.network, self.env, self.config = network.engine, network, env, config
        self.sequence_length, self.teacher = sequence_length, teacher
        # A teacher on another engine can't be part of one compiled iteration.
        self.traced = is_traced(self.engine, env) and not (teacher is not None and teacher.abroad)
        self.definition = self.engine.split(network).definition
        taught = None if teacher is None else teacher.structure
        self._group = group = current_group() if self.traced else None
        more = compiled_in(config), sequence_length, taught, group is None
        programmes = programmes_for(Trainer, self.engine, self.definition, env, mode, *more)
        self.actor = Actor(self.engine, env, self.definition, mode, programmes)
        # A module that takes no mask needs the valid entries alone, whose number no compiled call can know.
        self._statistics_apart = env.may_skip and needs_only_valid(network)
        self.learner = Learner(
            self.engine,
            self.definition,
            config,
            sequence_length,
            may_skip=env.may_skip,
            mode=mode,
            statistics_apart=self._statistics_apart,
            teacher=teacher,
            programmes=programmes,
        )
        parts = self.actor.value_untraced, self._sum_up
        self._valued, self._summed_up = (self.engine.recorded(part, mode) for part in parts)
        jit = self.engine.jit
        self._begin = programmes.compiled(self, Trainer._fresh, jit)
        consuming = self.engine.jit_together if group else functools.partial(jit, donate=(0,))
        self._iterate = programmes.compiled(self, Trainer._iteration, consuming)
        if group is not None:
            self._iterate = group.joined(self._iterate, self.engine.snapshot)
        # The update keeps what it starts from in any case, for a failure.
        self._finish_call = programmes.compiled(self, Trainer._finish, jit)
        # With a teacher abroad the rollout alone is compiled.
        apart = is_traced(self.engine, env) and not self.traced
        self._act = programmes.compiled(self, Trainer._rollout, jit) if apart else self._rollout

    def initial_learner(self, initial: TrainingState | None = None) -> LearnerState:
        """The network's weights and statistics, and the optimiser and learning rate of a state, or fresh ones."""
        split, optimizer, rate = self.engine.split(self.network), self.learner.optimizer, self.config.learning_rate
        if initial is None:
            optimizer_state = optimizer.init(split.params)
        else:
            optimizer_state = optimizer.import_state(split.params, *initial.optimizer_state)
            rate = rate if initial.learning_rate is None else initial.learning_rate
        adaptive = self.config.lr_schedule == "adaptive_kl"
        rate = self.engine.asarray(float(rate)) if adaptive else None
        return LearnerState(split.params, split.variables, optimizer_state, rate)

    def initial_episodes(self, rewards: Any) -> EpisodeState:
        """Sums of the episodes before the first step, in the structure of ``rewards``."""
        zeros = self.engine.zeros((self.env.num_envs,))
        scale = initial_scale(self.engine.xp, zeros, rewards) if self.config.scale_rewards else None
        return EpisodeState(zeros, zeros + 0, scale)

    def _fresh(self, params: Any, variables: Any, key: Any, rewards: Any) -> tuple[Any, EpisodeState]:
        """Carry of every environment, and sums of episodes, before the first step."""
        return self.actor.fresh_untraced(params, variables, key), self.initial_episodes(rewards)

    def start(self, initial: TrainingState | None, roots: Any) -> RunState:
        """State before the first iteration; the network and a teacher are checked on its observation.

        Args:
            initial: The state to continue from.
            roots: Words of two keys, for the environment's resets and for noise.

        Raises:
            ValueError: If the network, a teacher or ``initial`` does not fit the environment.
            TypeError: If the network or its output is of the wrong type.
        """
        engine, env = self.engine, self.env
        iteration = 0 if initial is None else initial.iteration
        if initial is not None:
            engine.update_module(self.network, initial.params, initial.variables)
        learner = self.initial_learner(initial)
        if initial is None and self.traced and self.teacher is None and self._group is None:
            self._trace_ahead(learner, roots[0])
        if initial is not None and env.functional:
            saved = initial.env_state
            env_state = saved.restore(env) if isinstance(saved, SavedEnvState) else saved
        else:
            # A host environment starts other episodes after a resume than at first.
            env_state = restart_unsound(env, env.reset(host.fold_in(roots[0], iteration)))
        key = engine.random.wrap_key(host.fold_in(roots[1], iteration))
        network_state, episodes = self._begin(learner.params, learner.variables, key, env_state.reward)
        obs = self._observed(env_state)
        check_network(self.network, network_state, env, env_state, obs, self.config)
        teacher = None
        if self.teacher is not None:
            kept = initial.teacher_carry if initial is not None and env.functional else None
            teacher = self.teacher.start(env.num_envs, host.fold_in(roots[1], 2**30 + iteration), kept)
            self.teacher.check(teacher, network_state, obs)
        if initial is not None:
            if tree_structure(initial.episodes) != tree_structure(episodes):
                raise ValueError(
                    f"initial_state has sums of rewards {tree_structure(initial.episodes.scale)}; expected "
                    f"{tree_structure(episodes.scale)}. Go on in an environment with the same rewards."
                )
            if env.functional:
                network_state, episodes = initial.network_state, engine.snapshot(initial.episodes)
            elif episodes.scale is not None:
                # The episodes are new, but the moments of returns are those learnt before.
                known = initial.episodes.scale
                zeroed = tree_map(lambda new, old: old if old.ndim == 0 else new, episodes.scale, known)
                episodes = episodes._replace(scale=engine.snapshot(zeroed))
        state = RunState(learner, network_state, env_state, episodes, teacher)
        return self.copied(state) if self.traced else state._replace(network_state=engine.snapshot(network_state))

    def _trace_ahead(self, learner: LearnerState, words: Any) -> None:
        """Traces the first iteration while another thread compiles what is called before it; the key may be any."""
        engine, env = self.engine, self.env
        weights, key = (learner.params, learner.variables), engine.random.wrap_key(words)
        # What is wrong with an environment or a network is found again, and explained, where they are used.
        with ThreadPoolExecutor(1) as other, contextlib.suppress(Exception):
            env_state, pool = (engine.shapes(function, words) for function in (env.reset, env.draw_starts))
            begun = *weights, key, env_state.reward
            for one in (*env.lowered(), self._begin(*begun, lower=True)):
                other.submit(one.compile)
            network_state, episodes = engine.shapes(self._begin, *begun)
            state = RunState(learner, network_state, env_state, episodes)
            numbers, halted = self._numbers(coefficients_at(self.config, 0)), engine.asarray(False)
            self._call(state, pool, words, numbers, halted, lower=True)

    def copied(self, state: RunState) -> RunState:
        """Copy of a state that a call will consume, but for what no call changes: host environments' states."""
        if self.traced:
            return self.engine.snapshot(state)
        return self.engine.snapshot(state._replace(env_state=None))._replace(env_state=state.env_state)

    def export(self, state: RunState, copied: Callable[[Any], Any]) -> dict[str, Any]:
        """Fields of a ``TrainingState`` with arrays; ``copied`` copies those that a later iteration changes."""
        learner, teacher = state.learner, state.teacher
        return {
            "definition": self.definition,
            "params": copied(learner.params),
            "variables": copied(learner.variables),
            "optimizer_state": self.learner.optimizer.export_state(learner.optimizer_state),
            "network_state": copied(state.network_state),
            # Only a traced environment's buffers are donated to a later iteration.
            "env_state": copied(state.env_state) if self.traced else state.env_state,
            "episodes": copied(state.episodes),
            "teacher_carry": None if self.teacher is None or teacher is None else self.teacher.carry_leaves(teacher),
            "learning_rate": None if (rate := learner.learning_rate) is None else float(self.engine.to_numpy(rate)),
        }

    def run(
        self,
        state: RunState,
        keys: Any,
        coefficients: list[Coefficients],
        stepping: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext,
    ) -> tuple[RunState, list[dict[str, Any]], list[tuple[Any, Any]]]:
        """Runs one iteration for each entry of the schedules, and none after one that fails.

        Args:
            state: State to start from, which the call consumes.
            keys: ``[N, 2]``, words of one key for each iteration.
            coefficients: Schedules' values of each of the N iterations.
            stepping: Makes the context of a rollout stepped from Python, which an exception may end without harm to
                the state.

        Returns:
            The new state, each iteration's metrics as host numbers, and the parameters and variables after each (on an
            engine that trains in place, those after the last).
        """
        engine, to_numpy = self.engine, self.engine.to_numpy
        halted = engine.asarray(False)
        found: list[dict[str, Any]] = []
        weights: list[tuple[Any, Any]] = []
        for key, entry in zip(host.split(keys), coefficients, strict=True):
            if self.traced:
                pool = self.env.draw_starts(key[0])
                # Nothing waits for the metrics here, so that the device always has work.
                with engine.annotate("iteration"):
                    state, metrics = self._call(state, pool, key[1], self._numbers(entry), halted)
                halted = metrics["nonfinite/any"]
            else:
                update_key = engine.random.wrap_key(key[1])
                scheduled = Coefficients(*(engine.asarray(float(value)) for value in entry))
                state, metrics = self._stepped(state, key[0], update_key, scheduled, stepping)
            found.append(metrics)
            weights.append((state.learner.params, state.learner.variables))
        return state, [{name: to_numpy(value) for name, value in metrics.items()} for metrics in found], weights

    def _numbers(self, entry: Coefficients) -> Coefficients:
        # A compiled call takes NumPy's arrays, in a tenth of the time that it takes to make others of them.
        return Coefficients(*np.asarray(entry, self.engine.float_dtype))

    # -- a traced environment: everything in one call

    def _call(self, state: RunState, *inputs: Any, lower: bool = False) -> Any:
        """Calls ``_iteration``, or traces it."""
        learner = state.learner
        rest = state._replace(learner=learner._replace(params=None, variables=None))
        return self._iterate(rest, learner.params, learner.variables, *inputs, lower=lower)

    def _iteration(
        self,
        state: RunState,
        params: Any,
        variables: Any,
        pool: Any,
        update_key: Any,
        coefficients: Coefficients,
        halted: Any,
    ) -> tuple[RunState, dict[str, Any]]:
        """One iteration, which changes nothing if ``halted`` is True.

        Parameters and variables come apart, since their buffers stay: they are shown to the user later.
        """
        learner = state.learner._replace(params=params, variables=variables)
        state = state._replace(learner=learner)
        network_state, env_state, transition, starts = self._collect(state, pool)
        teacher, transition = self._teach(state, transition)
        with self.engine.annotate("update"):
            learner, episodes, metrics = self._finish(
                learner,
                state.episodes,
                transition,
                starts,
                network_state,
                env_state.obs,
                update_key,
                coefficients,
                halted,
            )
        new = RunState(learner, network_state, env_state, episodes, teacher)
        # The learner itself keeps its state at a bad value. The rest goes back here, by a condition, since a choice
        # between each two arrays would be a kernel to compile and to run.
        before, after = (part._replace(learner=None) for part in (state, new))
        kept = self.engine.cond(metrics["nonfinite/any"], lambda: before, lambda: after)
        return kept._replace(learner=learner), metrics

    # -- a stepped environment: Python between the calls

    def _stepped(
        self, state: RunState, env_key: Any, update_key: Any, coefficients: Coefficients, stepping: Callable[[], Any]
    ) -> tuple[RunState, dict[str, Any]]:
        learner = state.learner
        with stepping():
            network_state, env_state, transition, starts = self._collect(state, self.env.draw_starts(env_key))
            teacher, transition = self._teach(state, transition)
        obs = self._observed(env_state)
        with self.engine.annotate("update"):
            learner, episodes, metrics = self._finish_call(
                learner, state.episodes, transition, starts, network_state, obs, update_key, coefficients
            )
            if self._statistics_apart:
                learner = self.learner.with_statistics(learner, transition, metrics["nonfinite/any"])
            failed = bool(metrics["nonfinite/any"])
        if failed:
            return state._replace(learner=learner), metrics
        return RunState(learner, network_state, env_state, episodes, teacher), metrics

    # -- shared

    def _collect(self, state: RunState, pool: Any) -> Rollout:
        learner, env_state = state.learner, self.env.with_starts(state.env_state, pool)
        with self.engine.annotate("rollout"):
            return self._act(learner.params, learner.variables, state.network_state, env_state)

    def _rollout(self, params: Any, variables: Any, network_state: Any, env_state: EnvState) -> Rollout:
        length = self.config.rollout_length
        return collect(self.actor, params, variables, network_state, env_state, length, self.sequence_length)

    def _observed(self, env_state: EnvState) -> Any:
        """The observation in the network's arrays."""
        obs = env_state.obs
        return self.engine.from_jax(obs) if self.env.functional else tree_map(self.engine.asarray, obs)

    def _teach(self, state: RunState, transition: Transition) -> tuple[TeacherState | None, Transition]:
        if self.teacher is None or state.teacher is None:
            return None, transition
        return self.teacher.teach(state.teacher, transition)

    def _finish(
        self,
        learner: LearnerState,
        episodes: EpisodeState,
        transition: Transition,
        starts: Any,
        network_state: Any,
        obs: Any,
        key: Any,
        coefficients: Coefficients,
        halted: Any = None,
    ) -> tuple[LearnerState, EpisodeState, dict[str, Any]]:
        """Updates on a rollout, and sums up its episodes and metrics; leaves all as it is if ``halted`` is True."""
        xp, dtype = self.engine.xp, coefficients.learning_rate.dtype
        v_last = self.engine.stop_gradient(self._valued(learner.params, learner.variables, network_state, obs))
        rewards = tree_map(lambda r: xp.astype(r, dtype), transition.rewards)
        scaled, scale = transition._replace(rewards=rewards), None
        if episodes.scale is not None:
            scale, rewards = scale_rewards(xp, episodes.scale, scaled, self.config.discounting_factor)
            scaled = scaled._replace(rewards=rewards)
        changed = {} if scale is None else divisors(xp, scale, transition.rewards)
        if self.config.reward_clip is not None:
            rewards, changed["reward/clip_fraction"] = clip_rewards(xp, scaled, self.config.reward_clip)
            scaled = scaled._replace(rewards=rewards)
        last = (network_state, obs) if self.config.recompute_advantages else None
        learner, metrics = self.learner.update(learner, scaled, starts, v_last, key, coefficients, last, halted)
        episodes, summed = self._summed_up(episodes, scale, transition, metrics["nonfinite/any"])
        return learner, episodes, {**metrics, **summed, **changed}

    def _sum_up(
        self, before: EpisodeState, scale: Any, transition: Transition, failed: Any
    ) -> tuple[EpisodeState, dict[str, Any]]:
        """Sums of the episodes under way, and metrics of a rollout."""
        xp, dtype = self.engine.xp, before.reward.dtype
        episodes, sums = fold_episodes(xp, before, transition)
        episodes = tree_map(lambda new, old: xp.where(failed, old, new), episodes._replace(scale=scale), before)
        metrics = {f"episodes/{name}": value for name, value in sums.items()}
        metrics["steps"] = xp.sum(xp.astype(transition.valid, xp.int32))
        if transition.broken is not None:
            metrics["rollout/nonfinite_steps"] = xp.sum(xp.astype(transition.broken != 0, xp.int32))
        mean = mean_over(xp, transition.counted, dtype)
        per_step = {f"env/{name}": value for name, value in transition.metrics.items()}
        # Returns of episodes with several rewards are logged as their sum.
        per_step |= {f"rollout/reward/{name}": reward for name, reward in named_leaves(transition.rewards) if name}
        for name, value in per_step.items():
            metrics[name] = mean(xp.astype(value, dtype))
        return episodes, metrics
