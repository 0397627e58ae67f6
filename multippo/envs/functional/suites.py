"""Suites of JAX environments with interfaces of their own: gymnax, craftax, jumanji and navix.

Each is turned into what ``FunctionalEnv`` takes, without the suite's own resets, and with ends by time kept apart.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from multippo.envs.functional.functional_env import FunctionalEnv, precision_of_engine
from multippo.envs.structure import Content


class SuiteState(NamedTuple):
    """State of an environment of a suite.

    Attributes:
        obs: Observation, with dicts for other records.
        reward: Reward of the last step.
        done: True at an episode's end.
        info: The suite's own state, and under ``truncation`` True for an end by time.
    """

    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]


class GymnaxAdapter:
    """An environment of gymnax or craftax, whose methods take a key and parameters.

    Args:
        env: The environment.
        params: Its parameters; by default its own default.
    """

    def __init__(self, env: Any, params: Any = None) -> None:
        self.env, self.params = env, env.default_params if params is None else params
        names = [name for name in ("max_steps_in_episode", "max_timesteps") if hasattr(self.params, name)]
        self.max_episode_steps = int(getattr(self.params, names[0])) if names else None
        self.action_space = _space(self.env.action_space(self.params))
        seen = self.env.observation_space(self.params)
        self._classes = int(seen.n) if hasattr(seen, "n") and seen.shape == () else None
        self._tells = hasattr(env, "is_truncated")
        if names and not self._tells:
            # Where an end by time looks like any other, the environment plays on and the count ends the episode.
            self.params = self.params.replace(**{names[0]: np.iinfo(np.int32).max})

    def reset(self, key: Any) -> SuiteState:
        """The state at the start of an episode."""
        key, use = jax.random.split(key)
        obs, state = self.env.reset_env(use, self.params)
        return self._state(obs, 0.0, False, False, state, key, jnp.int32(0))

    def step(self, state: SuiteState, action: Any) -> SuiteState:
        """The state after an action."""
        key, use = jax.random.split(state.info["key"])
        obs, inner, reward, done, _ = self.env.step_env(use, state.info["state"], action, self.params)
        steps = state.info["steps"] + 1
        cut = self.env.is_truncated(inner, self.params) if self._tells else steps >= (self.max_episode_steps or jnp.inf)
        return self._state(obs, reward, done | cut, cut & ~done, inner, key, steps)

    def _state(self, obs: Any, reward: Any, done: Any, cut: Any, state: Any, key: Any, steps: Any) -> SuiteState:
        if self._classes is not None:
            obs = jax.nn.one_hot(obs, self._classes)
        info = {"state": state, "key": key, "steps": steps, "truncation": jnp.asarray(cut)}
        return SuiteState(_plain(obs), jnp.float32(reward), jnp.asarray(done), info)


class JumanjiAdapter:
    """An environment of jumanji, whose methods return a state and a time step."""

    def __init__(self, env: Any) -> None:
        self.env = env
        self.action_space = _space(env.action_spec)

    def reset(self, key: Any) -> SuiteState:
        """The state at the start of an episode."""
        return self._state(*self.env.reset(key))

    def step(self, state: SuiteState, action: Any) -> SuiteState:
        """The state after an action."""
        return self._state(*self.env.step(state.info["state"], action))

    def _state(self, state: Any, time_step: Any) -> SuiteState:
        last = time_step.last()
        info = {"state": state, "truncation": last & jnp.any(time_step.discount != 0)}
        return SuiteState(_plain(time_step.observation), jnp.float32(time_step.reward), last, info)


class NavixAdapter:
    """An environment of navix, whose state is a time step."""

    def __init__(self, env: Any) -> None:
        self.env, self.max_episode_steps = env, int(env.max_steps)
        self.action_space = _space(env.action_space)

    def reset(self, key: Any) -> SuiteState:
        """The state at the start of an episode."""
        return self._state(self.env.reset(key))

    def step(self, state: SuiteState, action: Any) -> SuiteState:
        """The state after an action."""
        # navix's public step resets an environment whose episode has ended.
        return self._state(self.env._step(state.info["state"], action))

    def _state(self, time_step: Any) -> SuiteState:
        info = {"state": time_step, "truncation": time_step.is_truncation()}
        return SuiteState(time_step.observation, jnp.float32(time_step.reward), time_step.is_done(), info)


ADAPTERS: dict[str, Callable[..., Any]] = {
    "craftax": GymnaxAdapter,  # before gymnax, from which it has its classes
    "gymnax": GymnaxAdapter,
    "jumanji": JumanjiAdapter,
    "navix": NavixAdapter,
}
"""Adapters by the package in which an environment's class is defined."""


def adapted(env: Any, **kwargs: Any) -> Any:
    """An environment of a suite in its adapter; any other environment as it is.

    Args:
        env: The environment.
        **kwargs: Arguments of the adapter.
    """
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    adapter = next((ADAPTERS[name] for name in ADAPTERS if name in packages), None)
    return adapter(env, **kwargs) if adapter is not None and not hasattr(env, "action_size") else env


def make_gymnax(name: str, num_envs: int, *, env_params: Mapping[str, Any] | None = None, **kwargs: Any) -> Any:
    """An environment from gymnax's registry.

    Args:
        name: Name in the registry, such as ``"MemoryChain-bsuite"``.
        num_envs: Number of copies.
        env_params: Fields of the environment's parameters.
        **kwargs: Arguments of the environment's constructor, and of ``FunctionalEnv``.

    Raises:
        KeyError: If the name is not known.
    """
    import gymnax  # pyright: ignore[reportMissingImports]

    if name not in gymnax.registered_envs:
        raise KeyError(name)

    def make(**kwargs: Any) -> Any:
        env, params = gymnax.make(name, **kwargs)
        return GymnaxAdapter(env, params.replace(**env_params or {}))

    return _made(make, "gymnax", name, num_envs, env_params, kwargs)


def make_craftax(name: str, num_envs: int, **kwargs: Any) -> Any:
    """An environment of craftax by name, such as ``"Craftax-Symbolic-v1"``; see ``make_gymnax``."""
    from craftax.craftax_env import make_craftax_env_from_name  # pyright: ignore[reportMissingImports]

    if name not in craftax_names():
        raise KeyError(name)
    return _made(lambda: adapted(make_craftax_env_from_name(name, False)), "craftax", name, num_envs, None, kwargs)


def make_jumanji(name: str, num_envs: int, **kwargs: Any) -> Any:
    """An environment from jumanji's registry, such as ``"Snake-v1"``; see ``make_gymnax``."""
    from jumanji import registration  # pyright: ignore[reportMissingImports]

    if name not in jumanji_names():
        raise KeyError(name)
    return _made(lambda **kwargs: adapted(registration.make(name, **kwargs)), "jumanji", name, num_envs, None, kwargs)


def make_navix(name: str, num_envs: int, **kwargs: Any) -> Any:
    """An environment from navix's registry, such as ``"Navix-Empty-5x5-v0"``; see ``make_gymnax``."""
    import navix  # pyright: ignore[reportMissingImports]

    if name not in navix_names():
        raise KeyError(name)
    return _made(lambda **kwargs: adapted(navix.make(name, **kwargs)), "navix", name, num_envs, None, kwargs)


def gymnax_names() -> tuple[str, ...]:
    """The names in gymnax's registry."""
    import gymnax  # pyright: ignore[reportMissingImports]

    return tuple(gymnax.registered_envs)


def craftax_names() -> tuple[str, ...]:
    """The names of craftax's environments."""
    return tuple(f"Craftax-{kind}-v1" for kind in ("Symbolic", "Pixels", "Classic-Symbolic", "Classic-Pixels"))


def jumanji_names() -> tuple[str, ...]:
    """The names in jumanji's registry."""
    from jumanji import registration  # pyright: ignore[reportMissingImports]

    return tuple(sorted(registration.registered_environments()))


def navix_names() -> tuple[str, ...]:
    """The names in navix's registry."""
    import navix  # pyright: ignore[reportMissingImports]

    return tuple(navix.registry())


_OF_THE_ADAPTER = ("episode_length", "action_repeat", "pool_size", "reward_dtype")


def _made(
    make: Callable[..., Any], family: str, name: str, num_envs: int, env_params: Any, kwargs: dict[str, Any]
) -> FunctionalEnv:
    options = {key: kwargs.pop(key) for key in _OF_THE_ADAPTER if key in kwargs}
    with precision_of_engine():
        env = make(**kwargs)
    content = Content(env, family, name, dict(env_params or {}), kwargs)
    return FunctionalEnv(env, num_envs, id=f"{family}/{name}", content=content, **options)


def _space(space: Any) -> spaces.Space[Any]:
    """A suite's description of actions as gymnasium's space."""
    if (nvec := getattr(space, "num_values", None)) is not None:  # jumanji
        return spaces.Discrete(int(nvec)) if np.ndim(nvec) == 0 else spaces.MultiDiscrete(np.asarray(nvec))
    if getattr(space, "n", None) is not None and space.shape == ():
        return spaces.Discrete(int(space.n))
    low, high = (
        getattr(space, short, getattr(space, long, None)) for short, long in (("low", "minimum"), ("high", "maximum"))
    )
    low, high = (np.broadcast_to(np.asarray(x, np.float32), space.shape) for x in (low, high))
    return spaces.Box(low, high, dtype=np.float32)


def _plain(obs: Any) -> Any:
    """An observation with dicts in place of named tuples and dataclasses."""
    if hasattr(obs, "_asdict"):
        obs = obs._asdict()
    elif dataclasses.is_dataclass(obs):
        obs = {field.name: getattr(obs, field.name) for field in dataclasses.fields(obs)}
    if isinstance(obs, Mapping):
        return {key: _plain(value) for key, value in obs.items()}
    return obs
