"""Functional JAX environments (brax, playground, the user's own) behind the library's contract."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from numpy.typing import DTypeLike

from multippo import random
from multippo.arguments import check_size
from multippo.backends.registry import computes_in_float64
from multippo.envs.actions import make_action_map
from multippo.envs.api import Env, EnvState
from multippo.envs.functional.declarations import (
    as_declared,
    find_truncation_key,
    functional_action_space,
    functional_observation_space,
    own_episode_limit,
)
from multippo.envs.functional.state_trees import (
    conform,
    select,
    shared_leaves,
    sound_starts,
    strip_weak_types,
    take,
    while_traced,
)
from multippo.envs.keys import raw_jax_key
from multippo.envs.nonfinite import broken_leaf
from multippo.envs.structure import Content, contents, structure
from multippo.programmes import identity, programmes_of

_MIN_POOL = 64

_Method = TypeVar("_Method", bound=Callable[..., Any])


def precision_of_engine() -> AbstractContextManager[Any]:
    """JAX's 64-bit mode while the active engine computes in float64; else the mode that the user has set."""
    return jax.enable_x64(True) if computes_in_float64() else contextlib.nullcontext()


def in_own_precision(method: _Method) -> _Method:
    """A method that computes in 64 bits if its object's ``float64`` is True, on every engine."""

    @functools.wraps(method)
    def call(self: Any, *args: Any) -> Any:
        with jax.enable_x64(True) if self.float64 else contextlib.nullcontext():
            return method(self, *args)

    return call  # type: ignore[return-value]


class FunctionalState(NamedTuple):
    """``EnvState.internal`` of a functional environment.

    Attributes:
        simulator: The environment's own states, ``[B, ...]``; in some simulators with leaves that all rows share.
        pool: Freshly reset states, ``[P, ...]``, in which the next episodes start.
        draws: Number of the pool's states that each environment has used since it was drawn, ``[B]``.
        steps: Number of the environment's own steps in the current episode, ``[B]``.
    """

    simulator: Any
    pool: Any
    draws: jax.Array
    steps: jax.Array


class FunctionalEnv(Env):
    """Copies of a pure JAX environment, which end and start episodes independently.

    The environment has ``reset(key) -> state`` (an old-style key: two ``uint32`` words) and ``step(state, action) ->
    state`` for a single instance, where ``state`` is a dataclass or named tuple with ``obs``, ``reward``, ``done`` and
    optionally ``info`` and ``metrics``: the interface of brax and playground.

    An ended episode is followed by one that starts from a pool of fresh resets. The pool is drawn by ``reset`` and by
    ``refresh``: resetting every environment in every step would double the cost of a step, and returning to one stored
    start would show each environment one start for ever. Successive episodes take different entries, and so do
    environments that end together. All of the state comes from the pool, ``info`` included.

    ``reset``, ``step`` and ``refresh`` are compiled, and may be called from compiled code or from Python. An
    environment made while the active engine's floating-point type is float64 computes in float64 on every engine: its
    random numbers differ from those in single precision.

    Args:
        env: The environment, without batching and automatic resets.
        num_envs: Number of copies, ``B``.
        id: Name of the environment; by default the class name.
        episode_length: Number of the environment's steps after which the adapter cuts an episode; None for no limit.
        action_repeat: Number of the environment's steps per action. Rewards add up until the episode ends or is cut,
            which may be amid an action; metrics are averaged over these steps. ``info`` stays with the environment.
        pool_size: Number of fresh starts, at least ``num_envs``; by default ``num_envs``, and at least 64.
        truncation_key: Key of ``info`` under which the environment reports a time limit of its own; ``"auto"`` finds
            the usual ones; None if all its ends are terminations.
        observation_space: Space of one observation; by default the environment's, else made from an observation.
        action_space: Space of one action; by default the environment's, else [-1, 1] in ``action_size`` dimensions.
        reward_dtype: Type of the rewards.
        content: Key of an environment made by name, under which all of that name are compiled once.

    Raises:
        ValueError: If a space is not supported, an argument is out of range, the environment is a batch of several, or
            it has a time limit that its state does not report.
        TypeError: If ``reset`` returns a state without ``obs``, ``reward`` or ``done``, or can't be compiled.
    """

    functional = True

    def __init__(
        self,
        env: Any,
        num_envs: int,
        *,
        id: str | None = None,
        episode_length: int | None = None,
        action_repeat: int = 1,
        pool_size: int | None = None,
        truncation_key: str | None = "auto",
        observation_space: gymnasium.Space[Any] | None = None,
        action_space: gymnasium.Space[Any] | None = None,
        reward_dtype: DTypeLike = np.float32,
        content: Content | None = None,
    ) -> None:
        self._options: dict[str, Any] = {
            "id": id,
            "episode_length": episode_length,
            "action_repeat": action_repeat,
            "observation_space": observation_space,
            "action_space": action_space,
            "reward_dtype": reward_dtype,
        }
        self.id = id or type(env).__name__
        self.env = env
        self.num_envs = num_envs = check_size(self.id, "num_envs", num_envs)
        least_pool = max(num_envs, _MIN_POOL)
        self._pool_size = least_pool if pool_size is None else check_size(self.id, "pool_size", pool_size, num_envs)
        action_repeat = check_size(self.id, "action_repeat", action_repeat)
        if episode_length is not None:
            episode_length = check_size(self.id, "episode_length", episode_length)
        self._stride = _stride(num_envs, self._pool_size)
        self._episode_length, self._action_repeat = episode_length, action_repeat
        # Without 64-bit mode JAX has no float64.
        self.float64 = computes_in_float64()
        self._reward_dtype = jax.dtypes.canonicalize_dtype(reward_dtype)
        self.action_space = functional_action_space(env, action_space)
        self._actions = make_action_map(self.action_space, num_envs, jnp)
        arguments = (self._options, num_envs, self._pool_size, truncation_key, self.float64)
        self._arguments = contents(arguments, identity)
        self._content = content or Content(env)
        self._compile()
        first = self._read_first_state()
        self.observation_space = functional_observation_space(env, observation_space, first.obs)
        info_keys = set(_mapping(first, "info"))
        self._truncation_key = find_truncation_key(env, info_keys, truncation_key, episode_length)
        limits = [length for length in (episode_length, own_episode_limit(env)) if length]
        self.max_episode_steps = math.ceil(min(limits) / action_repeat) if limits else None

    @property
    def structure(self) -> Hashable:
        """The key of the environment in its present state."""
        return type(self), self._arguments, self._content.key

    def _compile(self) -> None:
        """Binds the programmes that environments like this one share; each is compiled at its first use."""
        self._bound_to = self.structure
        programmes = programmes_of(self._bound_to)
        self._single_shapes: list[tuple[int, ...]] = programmes.notes.setdefault("single_shapes", [])
        # Inside a compiled function the programmes are inlined.
        self._draw_traced = programmes.compiled(self, FunctionalEnv._trace_draw, jax.jit)
        self._draw_compiled = programmes.compiled(self, FunctionalEnv._draw_apart, _quickly_compiled)
        self._begin = programmes.compiled(self, FunctionalEnv._trace_begin, jax.jit)
        self._step = programmes.compiled(self, FunctionalEnv._trace_step, jax.jit)

    @in_own_precision
    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``. Draws a pool of starts as well."""
        self._compile_if_changed()
        start_key, pool_key = random.split(raw_jax_key(key))
        return self._begin(self._draw(start_key), self._draw(pool_key))

    def _compile_if_changed(self) -> None:
        if self.structure != self._bound_to:
            self._compile()

    @in_own_precision
    def lowered(self) -> list[Any]:
        """See ``Env.lowered``."""
        self._compile_if_changed()
        key = jax.ShapeDtypeStruct((2,), jnp.uint32)
        drawn = jax.eval_shape(self._draw, key)
        return [self._draw_compiled(key, lower=True), self._begin(drawn, drawn, lower=True)]

    @in_own_precision
    def adopt(self, states: Any) -> EnvState:
        """The state that ``reset`` returns, from states ``[B, ...]`` that the user has reset."""
        return self._begin(strip_weak_types(self._with_floats(states)), self._draw(raw_jax_key(0)))

    def _draw(self, key: Any) -> Any:
        # JAX takes a compiler's options at the top alone; the trace is one for both.
        return self._draw_traced(key) if isinstance(key, Tracer) else self._draw_compiled(key)

    def _draw_apart(self, key: jax.Array) -> Any:
        return self._draw_traced(key)

    @in_own_precision
    def draw_starts(self, key: Any) -> Any:
        """See ``Env.draw_starts``. The pool has ``pool_size`` reset states, ``[P, ...]``."""
        return self._draw(raw_jax_key(key))

    @in_own_precision
    def with_starts(self, env_state: EnvState, starts: Any) -> EnvState:
        """See ``Env.with_starts``."""
        draws = jnp.zeros(self.num_envs, jnp.int32)
        return env_state._replace(internal=env_state.internal._replace(pool=starts, draws=draws))

    @in_own_precision
    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``. Of the state only ``internal`` is read.

        Raises:
            TypeError: If the environment's step returns a state of another structure, shape or kind than its reset, or
                can't be compiled, as where it branches on an array.
        """
        return self._step(env_state.internal, action)

    @property
    def _inner(self) -> Any:
        return self.env

    def similar(self, num_envs: int) -> FunctionalEnv:
        """See ``Env.similar``."""
        options: dict[str, Any] = {**self._options, "truncation_key": self._truncation_key, "content": self._content}
        return FunctionalEnv(self.env, num_envs, **options)

    def simulator_state(self, env_state: EnvState, row: int) -> Any:
        """The state of one environment, as the simulator has it."""
        return take(env_state.internal.simulator, row, self._shared)

    @in_own_precision
    def _read_first_state(self) -> Any:
        """Shapes and types of one environment's first state, by a trace that serves the first reset too."""
        state = jax.eval_shape(self._draw, jax.ShapeDtypeStruct((2,), jnp.uint32))
        self._shared = shared_leaves(state, self._single_shapes, self._pool_size)
        state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape[1:], leaf.dtype), state)
        for path, leaf in jax.tree_util.tree_leaves_with_path({"reward": state.reward, "done": state.done}):
            if leaf.shape:
                raise ValueError(
                    f"{type(self.env).__name__}.reset returned shape {leaf.shape} for {jax.tree_util.keystr(path)}, "
                    "expected one number: an environment handed over is a single one, without a batch axis."
                )
        return state

    def _trace_draw(self, key: jax.Array) -> Any:
        def reset(key: jax.Array) -> Any:
            with while_traced(self.env, "reset"):
                state = self.env.reset(key)
                self._content.keep_key()
            # The trace is of a single environment, and gives its shapes without a trace of their own.
            self._single_shapes[:] = [jnp.shape(leaf) for leaf in jax.tree.leaves(state)]
            return state

        state = jax.vmap(reset)(jax.random.split(key, self._pool_size))
        missing = [name for name in ("obs", "reward", "done") if not hasattr(state, name)]
        if missing:
            raise TypeError(
                f"{type(self.env).__name__}.reset returned a {type(state).__name__} without {missing}: expected a "
                "dataclass or named tuple with obs, reward, done, and optionally info and metrics."
            )
        return strip_weak_types(self._with_floats(state))

    def _trace_begin(self, drawn: Any, pool: Any) -> EnvState:
        everywhere = jnp.ones(self.num_envs, jnp.bool_)
        entry, unsound = sound_starts(drawn.obs, drawn.reward, jnp.arange(self.num_envs), everywhere)
        simulator = take(drawn, entry, self._shared)
        obs = as_declared(self.observation_space, simulator.obs)
        zeros = jnp.zeros(self.num_envs, jnp.int32)
        return EnvState(
            obs=obs,
            reward=jax.tree.map(jnp.zeros_like, simulator.reward),
            terminated=jnp.zeros(self.num_envs, jnp.bool_),
            truncated=jnp.zeros(self.num_envs, jnp.bool_),
            final_obs=obs,
            valid=everywhere,
            metrics=self._metrics(simulator),
            internal=FunctionalState(simulator, pool, draws=zeros, steps=zeros),
            broken=-unsound,
        )

    def _trace_step(self, internal: FunctionalState, action: Any) -> EnvState:
        action = self._actions(action)
        last, steps, (reward, metrics), done, cut = self._advance(internal.simulator, internal.steps, action)
        # Nothing depends on the last observation of a terminated episode.
        broken = broken_leaf(jnp, last.obs, reward, ~done | cut, jnp.ones(self.num_envs, jnp.bool_))
        blown = broken > 0
        ended = done | cut | blown
        entry = (jnp.arange(self.num_envs) + self._stride * internal.draws) % self._pool_size
        entry, unsound = sound_starts(internal.pool.obs, reward, entry, ended)
        simulator = select(ended, take(internal.pool, entry, self._shared), last, self._shared)
        none = jax.tree.map(jnp.zeros_like, (reward, metrics))
        reward, metrics = select(blown, none, (reward, metrics))
        draws = internal.draws + ended.astype(jnp.int32)
        return EnvState(
            obs=as_declared(self.observation_space, simulator.obs),
            reward=reward,
            # A time limit that the environment reports sets its `done`.
            terminated=done & ~cut & ~blown,
            truncated=cut | blown,
            # No value is taken of a broken step's observation; it must only be finite.
            final_obs=as_declared(self.observation_space, select(blown, simulator.obs, last.obs)),
            valid=jnp.ones(self.num_envs, jnp.bool_),
            metrics=metrics,
            internal=FunctionalState(simulator, internal.pool, draws, jnp.where(ended, 0, steps)),
            broken=jnp.where(blown, broken, -unsound),
        )

    def _advance(
        self, simulator: Any, steps: jax.Array, action: Any
    ) -> tuple[Any, jax.Array, tuple[Any, dict[str, jax.Array]], jax.Array, jax.Array]:
        """Takes one action, repeated for ``action_repeat`` steps of the environment.

        Returns:
            Last state, steps in the episode, reward (summed) and metrics (averaged), and flags of an end and of a cut.
        """
        if self._action_repeat == 1:
            return self._advance_once(simulator, steps, action)

        def repeat(carry: Any, _: None) -> tuple[Any, None]:
            state, steps, total, done, cut = carry
            new_state, new_steps, report, new_done, new_cut = self._advance_once(state, steps, action)
            runs = ~(done | cut)
            total = jax.tree.map(lambda sum_, term: sum_ + jnp.where(runs, term, 0), total, report)
            return (
                select(~runs, state, new_state, self._shared),
                jnp.where(runs, new_steps, steps),
                total,
                done | (new_done & runs),
                cut | (new_cut & runs),
            ), None

        none = jnp.zeros(self.num_envs, jnp.bool_)
        zeros = jax.tree.map(jnp.zeros_like, (simulator.reward, self._metrics(simulator)))
        start = (simulator, steps, zeros, none, none)
        last, new_steps, (reward, totals), done, cut = jax.lax.scan(repeat, start, length=self._action_repeat)[0]
        metrics = {key: total / (new_steps - steps) for key, total in totals.items()}
        return last, new_steps, (reward, metrics), done, cut

    def _advance_once(
        self, simulator: Any, steps: jax.Array, action: Any
    ) -> tuple[Any, jax.Array, tuple[Any, dict[str, jax.Array]], jax.Array, jax.Array]:
        with while_traced(self.env, "step"):
            stepped = jax.vmap(self.env.step)(simulator, action)
            self._content.keep_key()
        stepped = self._with_floats(stepped)
        done = jnp.asarray(stepped.done).astype(jnp.bool_)
        stepped = _replace(stepped, done=done.astype(simulator.done.dtype))
        stepped = conform(stepped, simulator, f"{type(self.env).__name__}.step")
        cut = jnp.zeros(self.num_envs, jnp.bool_)
        if self._truncation_key is not None:
            cut = stepped.info[self._truncation_key].astype(jnp.bool_)
        steps = steps + 1
        if self._episode_length is not None:
            cut = cut | ((steps >= self._episode_length) & ~done)
        return stepped, steps, (stepped.reward, self._metrics(stepped)), done, cut

    def _with_floats(self, state: Any) -> Any:
        """The state with rewards and metrics as floats, which reset often returns as integer zeros."""
        numbers = {"reward": state.reward, "metrics": getattr(state, "metrics", None)}
        numbers = jax.tree.map(lambda leaf: jnp.asarray(leaf).astype(self._reward_dtype), numbers)
        return _replace(state, **{name: value for name, value in numbers.items() if value is not None})

    def _metrics(self, state: Any) -> dict[str, jax.Array]:
        metrics = _mapping(state, "metrics")
        return {key: value for key, value in metrics.items() if getattr(value, "shape", None) == (self.num_envs,)}


def _quickly_compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """``function`` compiled in half the time, for one that a run calls once an iteration.

    On the CPU XLA emits fused loops in two ways; the older one compiles faster, and is slower where loops are long.
    """
    return jax.jit(function, compiler_options=_quick_options())


@functools.cache
def _quick_options() -> dict[str, Any] | None:
    options = {"xla_cpu_use_fusion_emitters": False, "xla_backend_optimization_level": 1}
    try:
        jax.jit(lambda x: x, compiler_options=options)(np.zeros(()))
    except Exception:  # another version of XLA may not have the older way
        return None
    return options


@structure.register
def _(env: FunctionalEnv) -> Hashable:
    return env.structure


def _stride(num_envs: int, pool_size: int) -> int:
    """Number of entries by which an environment moves on in the pool with each episode.

    The number shares no divisor with the pool's size, so that each environment passes through all entries before one
    comes again; in a large pool the number is at least ``num_envs``, so that no other environment has just used the
    next entry.
    """
    stride = num_envs if 2 * num_envs <= pool_size else max(1, round(0.618 * pool_size))
    while math.gcd(stride, pool_size) != 1:
        stride += 1
    return stride


def _mapping(state: Any, name: str) -> Mapping[str, Any]:
    value = getattr(state, name, None)
    return value if isinstance(value, Mapping) else {}


def _replace(state: Any, **changes: Any) -> Any:
    if isinstance(state, tuple):
        return state._replace(**changes)  # type: ignore[attr-defined]
    return dataclasses.replace(state, **changes)
