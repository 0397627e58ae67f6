"""Wrappers of environments, which change rewards, observations, time limits and the repetition of actions.

The first three wrap the library's ``Env``, and so any environment that ``make_env`` makes. Repeating an action must
stop where each environment's own episode ends; for host environments it therefore wraps the single ``gymnasium.Env``,
and functional ones have ``FunctionalEnv(action_repeat=)``. ``make_env`` takes all of them as arguments.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.wrappers import TransformObservation

from multippo.arguments import check_number, check_size
from multippo.envs.api import Env, EnvState
from multippo.envs.observations import at_paths, key_paths, split_step
from multippo.trees import select, tree_map

_LOG = logging.getLogger("multippo")


class EnvWrapper(Env):
    """Base of wrappers of an ``Env``: passes everything on but what a subclass overrides.

    Args:
        env: The environment, which must not be used beside the wrapper.
        options: Keyword arguments of the subclass, with which ``similar`` wraps a similar environment.
    """

    def __init__(self, env: Env, **options: Any) -> None:
        self.env, self._options = env, options
        self.id, self.num_envs, self.functional, self.arrays = env.id, env.num_envs, env.functional, env.arrays
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.may_skip, self.max_episode_steps, self.restarts = env.may_skip, env.max_episode_steps, env.restarts
        self.vectorization, self.raw_observation_space = env.vectorization, env.raw_observation_space
        # A host environment's latest state before the change, for ``restart``.
        self._latest: EnvState | None = None

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``."""
        return self._show(self.env.reset(key))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``."""
        return self._show(self.env.step(env_state, action))

    def restart(self, env_state: EnvState, which: Any) -> EnvState | None:
        """See ``Env.restart``."""
        restarted = self.env.restart(self._latest or env_state, which)
        return None if restarted is None else self._show(restarted)

    def lowered(self) -> list[Any]:
        """See ``Env.lowered``."""
        return self.env.lowered()

    def draw_starts(self, key: Any) -> Any:
        """See ``Env.draw_starts``."""
        return self.env.draw_starts(key)

    def with_starts(self, env_state: EnvState, starts: Any) -> EnvState:
        """See ``Env.with_starts``."""
        return self.env.with_starts(env_state, starts)

    def similar(self, num_envs: int) -> Env:
        """See ``Env.similar``."""
        return type(self)(self.env.similar(num_envs), **self._options)

    @property
    def _inner(self) -> Any:
        return self.env

    def close(self) -> None:
        """See ``Env.close``."""
        self.env.close()

    def _show(self, env_state: EnvState) -> EnvState:
        if not self.functional:
            self._latest = env_state
        return self._changed(env_state)

    def _changed(self, env_state: EnvState) -> EnvState:
        """A state of the environment as a subclass changes it."""
        return env_state


class ScaleReward(EnvWrapper):
    """Multiplies rewards by a constant, in the reports of training and evaluation too.

    ``PPOConfig.scale_rewards`` is the better way to rewards of a scale that suits learning: it finds the scale by
    itself and leaves the reports in the task's units.

    Args:
        env: The environment.
        scale: The constant; or one for each key of a reward that is a dict.

    Raises:
        ValueError: If a scale is not a finite number; in a step, if the reward has other keys than ``scale``.
    """

    def __init__(self, env: Env, scale: float | Mapping[str, float]) -> None:
        super().__init__(env, scale=scale)
        for value in scale.values() if isinstance(scale, Mapping) else [scale]:
            check_number("ScaleReward", "scale", value)
        self._scale = scale

    def _changed(self, env_state: EnvState) -> EnvState:
        scale, reward = self._scale, env_state.reward
        if self.arrays == "torch":
            return env_state._replace(reward=reward * scale)
        if not isinstance(scale, Mapping):
            return env_state._replace(reward=tree_map(lambda r: r * np.asarray(scale, r.dtype), reward))
        if not isinstance(reward, dict) or set(reward) != set(scale):
            keys = sorted(reward) if isinstance(reward, dict) else "one number"
            raise ValueError(f"ScaleReward has scales for {sorted(scale)}, but {self.id} gives {keys} as a reward.")
        return env_state._replace(reward={key: r * np.asarray(scale[key], r.dtype) for key, r in reward.items()})


class FilterObservation(EnvWrapper):
    """Shows some keys of a Dict observation and hides the others.

    The wrapper is for functional environments and those of the user's own classes. Hidden entries of a gymnasium
    environment may be of spaces that are not supported, so ``make_env`` takes them away before anything reads them.

    Args:
        env: The environment.
        keys: The keys that are shown; a dot leads into a nested Dict (``"camera.left"``).

    Raises:
        ValueError: If the observation is not a Dict or lacks a key, or ``keys`` is not a list of at least one.
    """

    def __init__(self, env: Env, keys: Sequence[str]) -> None:
        super().__init__(env, keys=list(keys))
        self._paths = key_paths(keys)
        self.observation_space = at_paths(env.observation_space, self._paths)

    def _changed(self, env_state: EnvState) -> EnvState:
        obs = at_paths(env_state.obs, self._paths)
        # One object where no episode has ended, as in the environment's own state.
        final = env_state.final_obs
        same = final is env_state.obs
        return env_state._replace(obs=obs, final_obs=obs if same else final and at_paths(final, self._paths))


def filter_single(env: gymnasium.Env[Any, Any], keys: Sequence[str]) -> gymnasium.Env[Any, Any]:
    """``FilterObservation`` for a single ``gymnasium.Env``."""
    paths = key_paths(keys)
    return TransformObservation(env, functools.partial(at_paths, paths=paths), at_paths(env.observation_space, paths))


class EpisodeLimit(EnvWrapper):
    """Truncates episodes of a vector environment that the user has made after a number of steps.

    gymnasium names have ``make_env(..., max_episode_steps=)``, and functional environments ``episode_length=``, which
    are cheaper.

    Args:
        env: A host environment that can restart single episodes.
        max_episode_steps: The limit, at least 1.

    Raises:
        ValueError: If the limit is not an integer of at least 1, or the environment is functional or known not to
            restart single episodes.
    """

    def __init__(self, env: Env, max_episode_steps: int) -> None:
        super().__init__(env, max_episode_steps=max_episode_steps)
        max_episode_steps = check_size(env.id, "max_episode_steps", max_episode_steps)
        if env.functional:
            raise ValueError(
                f"{env.id} is a functional environment: make it with episode_length={max_episode_steps} instead of "
                "wrapping it in EpisodeLimit."
            )
        if env.restarts is False:
            raise _no_restart(self.id)
        self._limit = max_episode_steps
        self.max_episode_steps = min(max_episode_steps, env.max_episode_steps or max_episode_steps)
        self._steps = np.zeros(self.num_envs, np.int64)

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``."""
        self._steps = np.zeros(self.num_envs, np.int64)
        return super().reset(key)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``.

        Raises:
            ValueError: If an episode reaches the limit and its environment can't be restarted.
        """
        state = self.env.step(env_state, action)
        self._steps = self._steps + state.valid
        ended = state.terminated | state.truncated
        over = (self._steps >= self._limit) & ~ended & state.valid
        self._steps = np.where(ended | over, 0, self._steps)
        if not over.any():
            return self._show(state)
        # Copies, since the restart may write into the same arrays.
        last = tree_map(np.array, state.obs)
        restarted = self.env.restart(state, over)
        if restarted is None:
            raise _no_restart(self.id)
        return self._show(restarted._replace(final_obs=select(np, over, last, restarted.final_obs)))

    def restart(self, env_state: EnvState, which: Any) -> EnvState | None:
        """See ``Env.restart``."""
        self._steps = np.where(which, 0, self._steps)
        return super().restart(env_state, which)


class ActionRepeat(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Takes each action several times, until the episode ends, and adds up the rewards.

    ``info`` holds the entries of all these steps, each with its latest value.

    Args:
        env: A single environment.
        repeats: Number of steps for each action.

    Raises:
        ValueError: If ``repeats`` is not an integer of at least 1.
    """

    def __init__(self, env: gymnasium.Env[Any, Any], repeats: int) -> None:
        RecordConstructorArgs.__init__(self, repeats=repeats)
        super().__init__(env)
        self._repeats = check_size("", "action_repeat", repeats)

    def step(self, action: Any) -> Any:
        """See ``gymnasium.Env.step``."""
        total: Any = 0.0
        obs, terminated, truncated = None, False, False
        infos: dict[str, Any] = {}
        for _ in range(self._repeats):
            obs, reward, terminated, truncated, info = split_step(self.env.step(action))
            total = total + reward
            infos.update(info)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, infos


def _no_restart(name: str) -> ValueError:
    return ValueError(
        f"{name} can't restart single environments, so EpisodeLimit can't cut their episodes: give the environment "
        "itself a time limit, such as gymnasium.wrappers.TimeLimit around each; or write it for "
        "AutoresetMode.DISABLED, where reset heeds options['reset_mask']."
    )


_STATISTICS = {
    "obs_rms": "observations are normalised by the network's own Normalizer (normalize_obs=True, the default)",
    "return_rms": "rewards are scaled by PPOConfig(scale_rewards=True)",
}
"""Attributes of NormalizeObservation and NormalizeReward, scalar and vector form, and their replacements."""


def report_wrapper_statistics(name: str, vector_env: VectorEnv[Any, Any, Any]) -> None:
    """Warns of wrappers, anywhere in the chain, that normalise by statistics of their own.

    Args:
        name: Name of the environment.
        vector_env: The environment.
    """
    found = sorted(attribute for attribute in _STATISTICS if _has(vector_env, attribute))
    if found:
        _LOG.warning(
            "%s is wrapped in something that normalises by running statistics of its own (%s). They are not saved with "
            "checkpoints, each environment has others, and those for evaluation begin without any, so that a policy "
            "sees other numbers than it was trained on. Leave the wrapper out: %s. Those statistics are part of the "
            "training state.",
            name,
            ", ".join(found),
            ", and ".join(_STATISTICS[attribute] for attribute in found),
        )


def _has(vector_env: VectorEnv[Any, Any, Any], attribute: str) -> bool:
    *wrappers, base = layers_of(vector_env)
    inside = base.call("has_wrapper_attr", attribute) if isinstance(base, SyncVectorEnv | AsyncVectorEnv) else ()
    return any(attribute in vars(wrapper) for wrapper in wrappers) or any(inside)


def layers_of(vector_env: VectorEnv[Any, Any, Any]) -> Iterator[VectorEnv[Any, Any, Any]]:
    """Yields the wrappers around a vector environment, from the outermost on, and then the environment."""
    while isinstance(vector_env, VectorWrapper):
        yield vector_env
        vector_env = vector_env.env
    yield vector_env
