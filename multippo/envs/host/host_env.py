"""Gymnasium vector environments behind the library's contract."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import (
    AsyncVectorEnv,
    AutoresetMode,
    SyncVectorEnv,
    VectorEnv,
    VectorObservationWrapper,
    VectorWrapper,
)
from numpy.typing import DTypeLike

from multippo.arguments import check_number, check_size
from multippo.envs.actions import make_action_map
from multippo.envs.api import Env, EnvState
from multippo.envs.host.autoreset import autoreset_mode as read_autoreset_mode
from multippo.envs.host.autoreset import (
    final_observations,
    keep_final_observations,
    refuse_ignored_mask,
    report_overwritten,
)
from multippo.envs.host.members import Member
from multippo.envs.host.workers import WORKER_TIMEOUT_S, WatchedVectorEnv, Workers, watch
from multippo.envs.keys import host_seed
from multippo.envs.observations import make_observation_map, put_rows, take_rows
from multippo.envs.return_checks import check_numbers


class GymnasiumEnv(Env):
    """A gymnasium vector environment in any autoreset mode.

    ``obs`` and ``final_obs`` are arrays of this adapter's own, never the environment's buffers; they are one and the
    same array where no episode has ended; those that seem to be overwritten before they arrive are reported once.
    Rewards are cast, an end that is both a termination and a truncation counts
    as a termination, and an exception of the environment passes through unchanged.

    Args:
        vector_env: The environment.
        id: Its name; by default the registered id, else the class name.
        autoreset_mode: The mode in which it resets, where its metadata has none.
        max_episode_steps: Its time limit; by default that of its registration.
        reward_dtype: Type of the rewards.
        remake: Makes the same environment with another batch size, for ``similar``.
        worker_timeout: Seconds that the slowest worker process may take for a step or a reset.
        observation_keys: The only keys of a Dict observation that are shown; a dot leads into a nested Dict.

    Raises:
        ValueError: If a space or the autoreset mode is not supported, two environments are the same object, or
            ``max_episode_steps`` is not an integer of at least 1.
    """

    functional = False

    def __init__(
        self,
        vector_env: VectorEnv[Any, Any, Any],
        *,
        id: str | None = None,
        autoreset_mode: AutoresetMode | str | None = None,
        max_episode_steps: int | None = None,
        reward_dtype: DTypeLike = np.float32,
        remake: Callable[[int], VectorEnv[Any, Any, Any]] | None = None,
        worker_timeout: float = WORKER_TIMEOUT_S,
        observation_keys: Sequence[str] | None = None,
    ) -> None:
        spec = vector_env.spec
        self.id = id or (spec.id if spec else type(vector_env.unwrapped).__name__)
        self.num_envs = vector_env.num_envs
        self.vector_env = vector_env
        if max_episode_steps is not None:
            max_episode_steps = check_size(self.id, "max_episode_steps", max_episode_steps, otherwise=", or None")
        worker_timeout = check_number("", "worker_timeout", worker_timeout, above=0.0)
        self._reward_dtype = np.dtype(reward_dtype)
        if max_episode_steps is None and spec is not None:
            max_episode_steps = spec.kwargs.get("max_episode_steps", spec.max_episode_steps)
        # gymnasium writes "no limit" as -1.
        self.max_episode_steps = max_episode_steps if max_episode_steps and max_episode_steps > 0 else None
        self.action_space = vector_env.single_action_space
        self._actions = make_action_map(self.action_space, self.num_envs)
        self._observations = make_observation_map(vector_env.single_observation_space, keys=observation_keys)
        self.observation_space = self._observations.space
        mode = read_autoreset_mode(vector_env, autoreset_mode)
        self.may_skip, self._same_step = mode is AutoresetMode.NEXT_STEP, mode is AutoresetMode.SAME_STEP
        base = vector_env.unwrapped
        if isinstance(base, SyncVectorEnv):
            self._refuse_one_for_many(base)
            if self._same_step and not all(isinstance(env, Member) for env in base.envs):
                keep_final_observations(base)
        # Of a subclass are those whose workers the user has started.
        self._may_overwrite = not isinstance(base, SyncVectorEnv) and type(base) is not WatchedVectorEnv
        self._changes_observations = _changes_observations(vector_env)
        self.restarts = mode is AutoresetMode.DISABLED or isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        is_async = isinstance(base, AsyncVectorEnv)
        self._runner = Workers(vector_env, watch(base, worker_timeout)) if is_async else vector_env
        self._remake = remake
        self._options: dict[str, Any] = {
            "reward_dtype": reward_dtype,
            "autoreset_mode": autoreset_mode,
            "worker_timeout": worker_timeout,
            "observation_keys": observation_keys,
        }
        # The latest state's own array, by which it is recognised even after a wrapper has changed other fields.
        self._latest: np.ndarray | None = None
        self._shown: Any = None
        self._skips = np.zeros(self.num_envs, np.bool_)
        self._any_skips = False
        self._all_valid = np.ones(self.num_envs, np.bool_)
        self._closed = False

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``. Seeds every environment from the key; later episodes continue their random streams."""
        raw_obs, _ = self._runner.reset(seed=host_seed(key, self.num_envs))
        obs = self._shown = self._observations(raw_obs, self.num_envs)
        self._skips = np.zeros(self.num_envs, np.bool_)
        self._any_skips = False
        self._latest = np.zeros(self.num_envs, np.bool_)
        reward = np.zeros(self.num_envs, self._reward_dtype)
        return EnvState(obs, reward, self._latest, self._latest.copy(), obs, self._all_valid.copy(), {}, ())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``.

        Raises:
            ValueError: If ``env_state`` is not the latest one, an action does not fit, or the environment returns what
                its spaces or its autoreset mode do not allow.
            TypeError: If the reward is a dict, or it or a flag is not a number.
        """
        if env_state.terminated is not self._latest:
            raise ValueError(
                f"{self.id} can only be stepped from its latest state, received another one: a host environment keeps "
                "its state to itself. Pass on what the last reset or step returned, or call reset(key) first."
            )
        raw_obs, raw_reward, raw_terminated, raw_truncated, infos = self._runner.step(self._actions(action))
        check_numbers(self.id, rewards=raw_reward, terminations=raw_terminated, truncations=raw_truncated)
        obs = self._shown = self._observations(raw_obs, self.num_envs)
        reward = np.array(raw_reward, self._reward_dtype)
        terminated = np.array(raw_terminated, np.bool_)
        # Truncated and not terminated.
        truncated = np.greater(np.asarray(raw_truncated, np.bool_), terminated)
        if reward.shape != (self.num_envs,) or terminated.shape != (self.num_envs,):
            raise ValueError(
                f"{self.id} returned rewards of shape {reward.shape} and termination flags of shape "
                f"{terminated.shape}, expected ({self.num_envs},) for both: one number and one flag per environment."
            )
        self._latest = terminated
        ended = terminated | truncated
        return self._finish(
            EnvState(obs, reward, terminated, truncated, obs, self._all_valid.copy(), {}, ()), ended, infos
        )

    def restart(self, env_state: EnvState, which: np.ndarray) -> EnvState | None:
        """See ``Env.restart``. Possible where gymnasium can reset single environments."""
        if not self.restarts:
            return None
        rows, fresh = self._reset_some(which)
        self._skips = self._skips & ~which
        self._any_skips = bool(np.count_nonzero(self._skips))
        # In place, since the latest state is recognised by this array.
        env_state.terminated[which] = False
        return env_state._replace(obs=put_rows(env_state.obs, rows, fresh), truncated=env_state.truncated | which)

    def render(self) -> Any:
        """Returns the frames of the vector environment: one per environment in render mode ``"rgb_array"``."""
        return self.vector_env.render()

    def similar(self, num_envs: int) -> GymnasiumEnv:
        """See ``Env.similar``."""
        if self._remake is None:
            raise ValueError(
                f"{self.id} was made by the user, so it can't be made again with {num_envs} environments: pass "
                "eval_env=, or construct GymnasiumEnv with remake=."
            )
        return GymnasiumEnv(
            self._remake(num_envs),
            id=self.id,
            max_episode_steps=self.max_episode_steps,
            remake=self._remake,
            **self._options,
        )

    def close(self) -> None:
        """See ``Env.close``."""
        if not self._closed:
            self._closed = True
            self.vector_env.close()

    def _refuse_one_for_many(self, base: SyncVectorEnv) -> None:
        """Raises if one object is several of the environments, and would be stepped several times a step."""
        places: dict[int, int] = {}
        for place, env in enumerate(base.envs):
            first = places.setdefault(id(env.unwrapped), place)
            if first != place:
                raise ValueError(
                    f"Environments {first} and {place} of {self.id} are one and the same object, which can't be in two "
                    "episodes at once: each function must make an environment of its own, as lambda: "
                    f"{type(env.unwrapped).__name__}(...) does, and lambda: env does not."
                )

    def _finish(self, state: EnvState, ended: np.ndarray, infos: Any) -> EnvState:
        """The step as its autoreset mode leaves it: with last observations, and what begins after them."""
        if self.may_skip:
            if self._any_skips:
                state = self._without_resets(state, ended)
            self._skips, self._any_skips = ended, bool(np.count_nonzero(ended))
            return state
        if not np.count_nonzero(ended):
            return state
        if not self._same_step:
            rows, fresh = self._reset_some(ended)
            return state._replace(obs=put_rows(state.obs, rows, fresh))
        final = final_observations(self._observations, infos, ended, state.obs)
        if self._may_overwrite:
            self._may_overwrite = False
            report_overwritten(self.id, ended, final, state.obs)
        return state._replace(final_obs=final)

    def _without_resets(self, state: EnvState, ended: np.ndarray) -> EnvState:
        """A NEXT_STEP environment's step, not valid where it was one that only resets."""
        if np.any(ended & self._skips):
            raise ValueError(
                f"{self.id} ended an episode in the step that resets it, which AutoresetMode.NEXT_STEP does not allow: "
                "it seems to reset in the same step. Correct its metadata['autoreset_mode'], or pass autoreset_mode=."
            )
        # A reward wrapper may have turned the reset step's 0 into something else.
        state.reward[self._skips] = 0
        return state._replace(valid=~self._skips)

    def _reset_some(self, which: np.ndarray) -> tuple[np.ndarray, Any]:
        """Resets environments where ``which`` holds; returns their numbers and first observations."""
        # A copy: gymnasium takes the mask out of the options and hands it on.
        raw_obs, _ = self._runner.reset(options={"reset_mask": which.copy()})
        obs, rows = self._observations(raw_obs, self.num_envs), np.flatnonzero(which)
        if not self._changes_observations:
            refuse_ignored_mask(self.id, which, self._shown, obs)
        self._shown = obs
        return rows, take_rows(obs, rows)


def _changes_observations(vector_env: VectorEnv[Any, Any, Any]) -> bool:
    """True if a wrapper of gymnasium's changes observations, so that the same one may look different later."""
    while isinstance(vector_env, VectorWrapper):
        if isinstance(vector_env, VectorObservationWrapper):
            return True
        vector_env = vector_env.env
    return False
