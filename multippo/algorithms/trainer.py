"""Training iterations, compiled as far as the engine and the environment allow."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from multippo.algorithms.advantages import mean_over
from multippo.algorithms.checks import check_network
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.distillation.teacher import Teacher, TeacherState
from multippo.algorithms.reward_scaling import clip_rewards, divisors, initial_scale, scale_rewards
from multippo.algorithms.rollout import Actor, Rollout, collect, is_traced, programmes_for
from multippo.algorithms.schedules import Coefficients, compiled_in
from multippo.algorithms.types import EpisodeState, TrainingState, Transition
from multippo.algorithms.update import Learner, LearnerState, fold_episodes
from multippo.envs.api import Env, EnvState
from multippo.envs.functional.saving import SavedEnvState
from multippo.envs.nonfinite import restart_unsound
from multippo.networks.core.random_state import reseed
from multippo.networks.types import needs_only_valid
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

    Where the environment is traced, several iterations run inside one compiled call; otherwise the environment is
    stepped from Python, and the update is one compiled call.

    Args:
        network: The network in training, on the engine to compute with.
        env: The environments.
        config: Settings, with ``num_envs`` set.
        sequence_length: L.
        iterations_per_call: Largest number of iterations in one call of ``run``.
        mode: ``TrainConfig.compile``.
        teacher: The teacher of a distillation; None for PPO.
    """

    def __init__(
        self,
        network: Any,
        env: Env,
        config: PPOConfig,
        sequence_length: int,
        iterations_per_call: int,
        mode: str,
        teacher: Teacher | None = None,
    ) -> None:
        self.engine, self.network, self.env, self.config = network.engine, network, env, config
        self.sequence_length, self.teacher = sequence_length, teacher
        # A teacher on another engine can't be part of one compiled iteration.
        self.traced = is_traced(self.engine, env) and not (teacher is not None and teacher.abroad)
        self.iterations_per_call = iterations_per_call if self.traced else 1
        self.definition = self.engine.split(network).definition
        taught = None if teacher is None else teacher.structure
        more = compiled_in(config), sequence_length, self.iterations_per_call, taught
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
        jit, consuming = self.engine.jit, functools.partial(self.engine.jit, donate=(0,))
        self._call = programmes.compiled(self, Trainer._several, consuming)
        self._stack = programmes.compiled(self, Trainer._stacked, jit)
        # Traced once for its shapes and for its content.
        self._inlined = programmes.compiled(self, Trainer._iteration, jit)
        self._finish_call = programmes.compiled(self, Trainer._finish, consuming)
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
        rate = self.engine.zeros(()) + rate if adaptive else None
        return LearnerState(split.params, split.variables, optimizer_state, rate)

    def initial_episodes(self, rewards: Any) -> EpisodeState:
        """Sums of the episodes before the first step, in the structure of ``rewards``."""
        zeros = self.engine.zeros((self.env.num_envs,))
        scale = initial_scale(self.engine.xp, zeros, rewards) if self.config.scale_rewards else None
        return EpisodeState(zeros, zeros + 0, scale)

    def start(self, fresh: Any, initial: TrainingState | None, roots: Any) -> RunState:
        """State before the first iteration; the network and a teacher are checked on its observation.

        Args:
            fresh: A carry of the network for every environment.
            initial: The state to continue from.
            roots: Two keys, for the environment's resets and for noise.

        Raises:
            ValueError: If the network, a teacher or ``initial`` does not fit the environment.
            TypeError: If the network or its output is of the wrong type.
        """
        engine, random, env = self.engine, self.engine.random, self.env
        iteration = 0 if initial is None else initial.iteration
        if initial is not None and env.functional:
            saved = initial.env_state
            env_state = saved.restore(env) if isinstance(saved, SavedEnvState) else saved
        else:
            # A host environment starts other episodes after a resume than at first.
            env_state = restart_unsound(env, env.reset(engine.to_numpy(random.fold_in(roots[0], iteration))))
        if initial is not None:
            engine.update_module(self.network, initial.params, initial.variables)
            fresh = self.network.initialize_state(env.num_envs)  # a carry may be made of parameters
        network_state = reseed(random, fresh, random.fold_in(roots[1], iteration))
        obs = self._observed(env_state)
        check_network(self.network, network_state, env, env_state, obs, self.config)
        teacher = None
        if self.teacher is not None:
            kept = initial.teacher_carry if initial is not None and env.functional else None
            key = engine.to_numpy(random.fold_in(roots[1], 2**30 + iteration))
            teacher = self.teacher.start(env.num_envs, key, kept)
            self.teacher.check(teacher, network_state, obs)
        episodes = self.initial_episodes(env_state.reward)
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
        # Copies, since a call consumes the buffers; of environments' states only those of traced ones.
        env_state = engine.snapshot(env_state) if self.traced else env_state
        learner = self.initial_learner(initial)
        return RunState(learner, engine.snapshot(network_state), env_state, episodes, teacher)

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
    ) -> tuple[RunState, list[dict[str, Any]]]:
        """Runs one iteration for each entry of the schedules (at most ``iterations_per_call``).

        Args:
            state: State to start from, which the call consumes.
            keys: ``[N, 2]``, one key for each iteration.
            coefficients: Schedules' values of each of the N iterations.
            stepping: Makes the context of a rollout stepped from Python, which an exception may end without harm to
                the state.

        Returns:
            The new state, and each iteration's metrics as host numbers.
        """
        engine, count = self.engine, len(coefficients)
        if self.traced:
            missing = self.iterations_per_call - count
            scheduled = self._stack_coefficients(coefficients + coefficients[-1:] * missing)
            keys = engine.xp.concat([keys, engine.xp.repeat(keys[-1:], missing, axis=0)], axis=0) if missing else keys
            active = engine.asarray([True] * count + [False] * missing)
            # Drawn outside the compiled call, since the reset has been compiled already.
            drawn = [self.env.draw_starts(self.engine.random.split(key, 2)[0]) for key in keys[:count]]
            state, stacked = self._call(state, self._stack(drawn + drawn[-1:] * missing), keys, scheduled, active)
            host = tree_map(engine.to_numpy, stacked)
            return state, [{name: value[i] for name, value in host.items()} for i in range(count)]
        reports: list[dict[str, Any]] = []
        for i, entry in enumerate(coefficients):
            scheduled = tree_map(lambda x: x[0], self._stack_coefficients([entry]))
            state, metrics = self._stepped(state, keys[i], scheduled, stepping)
            reports.append({name: engine.to_numpy(value) for name, value in metrics.items()})
        return state, reports

    def _stack_coefficients(self, entries: list[Coefficients]) -> Coefficients:
        columns = [[float(value) for value in column] for column in zip(*entries, strict=True)]
        return Coefficients(*(self.engine.zeros((len(entries),)) + self.engine.asarray(column) for column in columns))

    # -- a traced environment: everything in one call

    def _stacked(self, pools: list[Any]) -> Any:
        return self.engine.tree_map(lambda *leaves: self.engine.xp.stack(leaves), *pools)

    def _several(
        self, state: RunState, pools: Any, keys: Any, scheduled: Coefficients, active: Any
    ) -> tuple[RunState, Any]:
        engine = self.engine
        first = engine.tree_map(lambda leaf: leaf[0], pools), keys[0], tree_map(lambda leaf: leaf[0], scheduled)
        if self.iterations_per_call == 1:
            state, metrics = self._iteration(state, *first)
            return state, tree_map(lambda x: x[None], metrics)
        shapes = engine.shapes(self._inlined, state, *first)[1]

        def body(carry: tuple[RunState, Any], inputs: tuple[Any, Any, Any, Any]) -> tuple[tuple[RunState, Any], Any]:
            before, failed = carry
            pool, key, coefficients, is_active = inputs

            def idle() -> tuple[RunState, dict[str, Any]]:
                return before, tree_map(lambda s: engine.xp.zeros(s.shape, s.dtype), shapes)

            # The last call of a run may have fewer iterations left; a shorter scan would be compiled again.
            after, metrics = engine.cond(
                is_active & ~failed, lambda: self._inlined(before, pool, key, coefficients), idle
            )
            return (after, failed | metrics["nonfinite/any"]), metrics

        (state, _), metrics = engine.scan(
            body, (state, ~active[0]), (pools, keys, scheduled, active), self.iterations_per_call
        )
        return state, metrics

    def _iteration(
        self, state: RunState, pool: Any, key: Any, coefficients: Coefficients
    ) -> tuple[RunState, dict[str, Any]]:
        _, update_key = self.engine.random.split(key, 2)
        learner = state.learner
        network_state, env_state, transition, starts = self._collect(state, pool)
        teacher, transition = self._teach(state, transition)
        learner, episodes, metrics = self._finish(
            learner, state.episodes, transition, starts, network_state, env_state.obs, update_key, coefficients
        )
        new = RunState(learner, network_state, env_state, episodes, teacher)
        # The learner itself keeps its state at a bad value; the rest goes back here.
        keep = metrics["nonfinite/any"]
        back = self.engine.tree_map(
            lambda a, b: self.engine.xp.where(keep, b, a), new._replace(learner=None), state._replace(learner=None)
        )
        return back._replace(learner=learner), metrics

    # -- a stepped environment: Python between the calls

    def _stepped(
        self, state: RunState, key: Any, coefficients: Coefficients, stepping: Callable[[], Any]
    ) -> tuple[RunState, dict[str, Any]]:
        env_key, update_key = self.engine.random.split(key, 2)
        learner = state.learner
        with stepping():
            network_state, env_state, transition, starts = self._collect(state, self.env.draw_starts(env_key))
            teacher, transition = self._teach(state, transition)
        obs = self._observed(env_state)
        learner, episodes, metrics = self._finish_call(
            learner, state.episodes, transition, starts, network_state, obs, update_key, coefficients
        )
        if self._statistics_apart:
            learner = self.learner.with_statistics(learner, transition, metrics["nonfinite/any"])
        if bool(metrics["nonfinite/any"]):
            return state._replace(learner=learner), metrics
        return RunState(learner, network_state, env_state, episodes, teacher), metrics

    # -- shared

    def _collect(self, state: RunState, pool: Any) -> Rollout:
        learner, env_state = state.learner, self.env.with_starts(state.env_state, pool)
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
    ) -> tuple[LearnerState, EpisodeState, dict[str, Any]]:
        """Updates on a rollout, and sums up its episodes and metrics."""
        xp, dtype = self.engine.xp, coefficients.learning_rate.dtype
        v_last = self.engine.stop_gradient(
            self.actor.value_untraced(learner.params, learner.variables, network_state, obs)
        )
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
        learner, metrics = self.learner.update(learner, scaled, starts, v_last, key, coefficients, last)
        before, (episodes, sums) = episodes, fold_episodes(xp, episodes, transition)
        episodes = tree_map(
            lambda new, old: xp.where(metrics["nonfinite/any"], old, new), episodes._replace(scale=scale), before
        )
        metrics.update({f"episodes/{name}": value for name, value in sums.items()})
        metrics["steps"] = xp.sum(xp.astype(transition.valid, xp.int32))
        metrics.update(changed)
        if transition.broken is not None:
            metrics["rollout/nonfinite_steps"] = xp.sum(xp.astype(transition.broken != 0, xp.int32))
        mean = mean_over(xp, transition.counted, dtype)
        per_step = {f"env/{name}": value for name, value in transition.metrics.items()}
        # Returns of episodes with several rewards are logged as their sum.
        per_step |= {f"rollout/reward/{name}": reward for name, reward in named_leaves(transition.rewards) if name}
        for name, value in per_step.items():
            metrics[name] = mean(xp.astype(value, dtype))
        return learner, episodes, metrics
