"""Rollouts in environments that Python steps: one loop, for a network that acts by straight code or on its engine."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np

from multippo.algorithms.types import Transition
from multippo.envs.api import Env, EnvState
from multippo.envs.nonfinite import restart_broken
from multippo.networks.core.random_state import forget_drawn
from multippo.trees import tree_leaves, tree_map, tree_structure, tree_unflatten


class Acting(Protocol):
    """A network's part in a rollout, whose observations, masks and values are NumPy's.

    ``straight.acting.Straight`` and ``EngineActing`` implement it.
    """

    def begin(self, state: Any, sequence: int) -> None:
        """Starts a rollout from a carry; the carry before every ``sequence``-th step is kept."""

    def act(self, t: int, obs: Sequence[np.ndarray]) -> Any:
        """Takes step ``t`` by the leaves of its observation; returns the actions."""

    def value(self, obs: Sequence[np.ndarray]) -> Any:
        """Leaves of the value estimates of another observation under the carry after the step just taken.

        It comes before ``settle``; the result is to be read at once.
        """

    def settle(self, done: np.ndarray | None, valid: np.ndarray | None) -> None:
        """Resets the carry where an episode ended, and takes it back where the step was not valid; None for nowhere."""

    def finish(self, obs: list[np.ndarray]) -> tuple[Any, Any, Any, Any]:
        """Output and snapshots ``[T, B, ...]``, the carry after the last step, and the carries kept.

        Args:
            obs: Leaves of all observations, ``[T, B, ...]``, which the results may contain.
        """
        ...


def step_through(
    acting: Acting, engine: Any, env: Env, state: Any, env_state: EnvState, length: int, sequence: int
) -> tuple[Any, EnvState, Transition, Any]:
    """Acts for ``length`` steps; arguments and result as of ``rollout.collect``."""
    annotate = engine.annotate if engine.profiling else contextlib.nullcontext
    with annotate("acting"):
        acting.begin(state, sequence)
    obs_t = _empty(length, tree_leaves(env_state.obs), functools.partial(_own_type, engine, engine.float_dtype))
    kept_t: list[np.ndarray] = []
    # Most steps end no episode and break none, and write nothing here.
    terminated_t, truncated_t = np.zeros((2, length, env.num_envs), np.bool_)
    valid_t, broken_t = np.ones((length, env.num_envs), np.bool_), np.zeros((length, env.num_envs), np.int32)
    finals: list[tuple[int, list[np.ndarray]]] = []
    for t, rows in enumerate(zip(*obs_t, strict=True)):
        for row, leaf in zip(rows, tree_leaves(env_state.obs), strict=True):
            row[...] = leaf
        with annotate("acting"):
            actions = acting.act(t, rows)
        try:
            with annotate("environment"):
                env_state = restart_broken(env, env.step(env_state, actions))
        except Exception as error:
            note_actions(error, actions, t)
            raise
        # Copies, since an environment may write its next answer into the same arrays.
        _, reward, terminated, truncated, _, valid, metrics, _, broken = env_state
        leaves = [*tree_leaves(reward), *tree_leaves(metrics)] if metrics else tree_leaves(reward)
        kept_t = kept_t or _empty(length, leaves)
        for held, leaf in zip(kept_t, leaves, strict=True):
            held[t] = leaf
        if broken is not None:
            broken_t[t] = broken
        done = terminated | truncated
        if ended := np.count_nonzero(done) > 0:
            terminated_t[t], truncated_t[t] = terminated, truncated
            if np.count_nonzero(truncated):
                final = zip(obs_t, tree_leaves(env_state.final_obs), strict=True)
                values = acting.value([np.asarray(leaf, held.dtype) for held, leaf in final])
                finals.append((t, [value[truncated_t[t]] for value in values]))
        if skipped := env.may_skip and np.count_nonzero(valid) < env.num_envs:
            valid_t[t] = valid
        acting.settle(done if ended else None, valid if skipped else None)
    reward, metrics = tree_unflatten(tree_structure((env_state.reward, env_state.metrics)), kept_t)
    kept = EnvState(None, reward, terminated_t, truncated_t, None, valid_t, metrics, None, broken_t)
    with annotate("acting"):
        output, extras, state, starts = acting.finish(obs_t)
    own = lambda leaf: leaf if isinstance(leaf, np.ndarray) else engine.to_numpy(leaf)  # noqa: E731
    bootstraps = tree_map(lambda value: np.zeros_like(own(value)), output.value_estimates)
    for t, values in finals:
        for held, value in zip(tree_leaves(bootstraps), values, strict=True):
            held[t][truncated_t[t]] = value
    transition = make_transition(tree_unflatten(tree_structure(env_state.obs), obs_t), output, extras, kept, bootstraps)
    state, transition, starts = _adopted(engine, (state, transition, starts))
    return state, env_state, transition, starts


def _adopted(engine: Any, tree: Any) -> Any:
    """A tree with the engine's arrays for NumPy's; an array that stands in two places stays one."""
    found = {id(leaf): leaf for leaf in tree_leaves(tree) if isinstance(leaf, np.ndarray)}
    arrays = dict(zip(found, engine.adopt(list(found.values())), strict=True))
    return tree_map(lambda leaf: arrays.get(id(leaf), leaf), tree)


class EngineActing:
    """A network's acting on its engine, for networks without straight code.

    Args:
        actor: The ``rollout.Actor`` of the network.
        weights: The network's parameters and variables.
        obs: The first observation, a tree.
        length: T.
    """

    def __init__(self, actor: Any, weights: tuple[Any, Any], obs: Any, length: int) -> None:
        self._actor, self._engine, self._weights = actor, actor.engine, weights
        self._first, self._structure, self._length = obs, tree_structure(obs), length

    def begin(self, state: Any, sequence: int) -> None:
        """See ``Acting.begin``."""
        if self._engine.draws_ahead:
            with self._engine.no_grad():
                # A copy, so that the first step's carry is of the same kind as the others', made inside ``no_grad``.
                # One step more, for the value of a final observation after the last.
                first = tree_map(self._engine.asarray, self._first)
                state = self._actor.draw_ahead(*self._weights, self._engine.snapshot(state), first, self._length + 1)
        self._before, self._after, self._ends, self._sequence = state, state, None, sequence
        self._starts: list[Any] = []
        self._outputs: list[tuple[list[Any], Any]] = []

    def act(self, t: int, obs: Sequence[np.ndarray]) -> Any:
        """See ``Acting.act``."""
        engine, seen = self._engine, self._actor.received(tree_unflatten(self._structure, obs))
        with engine.no_grad():
            self._before, self._after, output, extras = self._actor.step(
                *self._weights, self._before, self._after, self._ends, seen
            )
        if t % self._sequence == 0:
            self._starts.append(forget_drawn(self._before))
        self._outputs.append((tree_leaves(seen), (output, extras)))
        return (
            engine.to_jax(output.actions) if self._actor.env.functional else tree_map(engine.to_numpy, output.actions)
        )

    def value(self, obs: Sequence[np.ndarray]) -> Any:
        """See ``Acting.value``."""
        seen = self._actor.received(tree_unflatten(self._structure, obs))
        with self._engine.no_grad():
            values = self._actor.value(*self._weights, self._after, seen)
        return map(self._engine.to_numpy, tree_leaves(values))

    def settle(self, done: np.ndarray | None, valid: np.ndarray | None) -> None:
        """See ``Acting.settle``; the next step does it."""
        self._ends = None
        if done is not None or valid is not None:
            nowhere = np.zeros(self._actor.env.num_envs, np.bool_)
            self._ends = nowhere if done is None else done, ~nowhere if valid is None else valid

    def finish(self, obs: list[np.ndarray]) -> tuple[Any, Any, Any, Any]:
        """See ``Acting.finish``."""
        engine = self._engine
        with engine.no_grad():
            state = self._actor.settled(*self._weights, self._before, self._after, self._ends)
        seen, outputs = zip(*self._outputs, strict=True)
        # An array that stands in two places, as what a normaliser has seen does, is stacked once.
        stacked = {tuple(map(id, column)): leaf for column, leaf in zip(zip(*seen, strict=True), obs, strict=True)}
        columns = list(zip(*map(tree_leaves, outputs), strict=True))
        for column in columns:
            if (key := tuple(map(id, column))) not in stacked:
                stacked[key] = engine.stack_time(list(column))
        output, extras = tree_unflatten(tree_structure(outputs[0]), [stacked[tuple(map(id, c))] for c in columns])
        return output, extras, engine.snapshot(forget_drawn(state)), engine.stack_time(self._starts)


def may_go_straight(engine: Any, env: Env) -> bool:
    """True if a network may act by straight code, on the processor and between steps of Python."""
    return not env.functional and engine.device_name().startswith("cpu") and engine.name != "numpy"


def _empty(length: int, leaves: list[Any], own: Callable[[Any], Any] = lambda dtype: dtype) -> list[np.ndarray]:
    """Arrays for all steps of a rollout, of leaves ``[B, ...]``, in types that ``own`` returns for theirs."""
    return [np.empty((length, *np.shape(leaf)), own(np.asarray(leaf).dtype)) for leaf in leaves]


@functools.cache
def _own_type(engine: Any, float_dtype: Any, dtype: Any) -> Any:
    """Type, as NumPy's, in which an engine holds numbers of another type."""
    del float_dtype  # without JAX's 64-bit mode the types of other numbers are others, too
    return engine.to_numpy(engine.asarray(np.zeros(0, dtype))).dtype


def note_actions(error: Exception, actions: Any, t: int) -> None:
    """Adds a note to an environment's error if the actions it was given are not finite."""
    wrong = [not np.isfinite(leaf).all() for leaf in tree_leaves(actions) if np.asarray(leaf).dtype.kind == "f"]
    if any(wrong):
        error.add_note(
            f"Actions of step {t} of the rollout are not finite. An observation before it was not, and the environment "
            "could not be reset again, or the network makes them of finite ones."
        )


def make_transition(obs: Any, output: Any, extras: Any, env_state: EnvState, bootstrap: Any) -> Transition:
    """A transition of observations, the network's outputs and snapshots, environments' answers and final values."""
    return Transition(
        obs=obs,
        network_output=output,
        rewards=env_state.reward,
        terminated=env_state.terminated,
        truncated=env_state.truncated,
        done=env_state.terminated | env_state.truncated,
        valid=env_state.valid,
        metrics=env_state.metrics,
        rollout_extras=extras,
        bootstrap_values=bootstrap,
        broken=env_state.broken,
    )
