"""Gymnasium vector environments behind the library's contract, in any autoreset mode.

| mode | the step on which an episode ends returns | the next step |
|---|---|---|
| NEXT_STEP | the final observation | ignores its action, resets, reward 0: no step of the task |
| SAME_STEP | the next episode's first observation; the final one is in ``infos["final_obs"]`` | an ordinary step |
| DISABLED | the final observation | is an error, unless the caller has reset the environment |
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv, VectorObservationWrapper
from numpy.typing import DTypeLike

from multippo.arguments import check_number, check_size, describe
from multippo.envs.actions import make_action_map
from multippo.envs.api import Env, EnvState
from multippo.envs.host.members import Member
from multippo.envs.host.vector_forms import chosen
from multippo.envs.host.workers import WORKER_TIMEOUT_S, WatchedVectorEnv, watch
from multippo.envs.keys import host_seed
from multippo.envs.observations import (
    ObservationMap,
    at_paths,
    check_numbers,
    key_paths,
    make_observation_map,
    put_rows,
)
from multippo.envs.wrappers import layers_of
from multippo.trees import select, tree_leaves, tree_map


class GymnasiumEnv(Env):
    """A gymnasium vector environment in any autoreset mode.

    ``obs`` and ``final_obs`` are arrays of this adapter's own, never the environment's buffers, and one array where no
    episode has ended; final observations that seem to be overwritten before they arrive are reported once. Rewards are
    cast, an end that is both a termination and a truncation counts as a termination, and an exception of the
    environment passes through unchanged.

    Args:
        vector_env: The environment.
        id: Name of the environment; by default the registered id, else the class name.
        autoreset_mode: Autoreset mode; by default that of the environment's metadata.
        max_episode_steps: Time limit in steps; by default that of the registration.
        reward_dtype: Type of the rewards.
        remake: Function of a batch size that makes the same environment again, for ``similar``.
        worker_timeout: Seconds that the slowest worker process may take for a step or a reset.
        observation_keys: Keys of a Dict observation that are shown, all by default; a dot leads into a nested Dict.

    Raises:
        ValueError: If a space or the autoreset mode is not supported, two environments are the same object,
            ``max_episode_steps`` is not an integer of at least 1, ``worker_timeout`` is not above 0, or one of
            ``observation_keys`` is missing.
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
        raw, keys = vector_env.single_observation_space, observation_keys
        self.raw_observation_space = raw if keys is None else at_paths(raw, key_paths(keys))
        self._observations = make_observation_map(raw, keys=keys)
        self.observation_space = self._observations.space
        mode = find_autoreset_mode(vector_env, autoreset_mode)
        self.may_skip, self._same_step = mode is AutoresetMode.NEXT_STEP, mode is AutoresetMode.SAME_STEP
        base = vector_env.unwrapped
        self.vectorization = chosen(base)
        if isinstance(base, SyncVectorEnv):
            _refuse_one_for_many(self.id, base)
            if self._same_step and not all(isinstance(env, Member) for env in base.envs):
                keep_final_observations(base)
        # A subclass of WatchedVectorEnv has workers that the user has started.
        self._may_overwrite = not isinstance(base, SyncVectorEnv) and type(base) is not WatchedVectorEnv
        # With such a wrapper the same observation may look different later.
        self._changes_observations = any(isinstance(layer, VectorObservationWrapper) for layer in layers_of(vector_env))
        self.restarts = mode is AutoresetMode.DISABLED or isinstance(base, SyncVectorEnv | AsyncVectorEnv)
        if isinstance(base, AsyncVectorEnv):
            watch(base, worker_timeout)
        self._remake = remake
        self._with = functools.partial(
            GymnasiumEnv,
            id=self.id,
            autoreset_mode=autoreset_mode,
            max_episode_steps=self.max_episode_steps,
            reward_dtype=reward_dtype,
            remake=remake,
            worker_timeout=worker_timeout,
            observation_keys=observation_keys,
        )
        # The latest state's own array, by which the state is recognised even after a wrapper has changed other fields.
        self._latest: np.ndarray | None = None
        self._shown: Any = None
        self._skips = np.zeros(self.num_envs, np.bool_)
        # One array for all steps without a reset.
        self._all_valid = np.ones(self.num_envs, np.bool_)
        self._is_checked = False

    def reset(self, key: Any) -> EnvState:
        """See ``Env.reset``. Seeds every environment from the key; later episodes continue their random streams."""
        raw_obs, _ = self.vector_env.reset(seed=host_seed(key, self.num_envs))
        obs = self._shown = self._observations(raw_obs, self.num_envs)
        self._skips = np.zeros(self.num_envs, np.bool_)
        self._latest = np.zeros(self.num_envs, np.bool_)
        reward = np.zeros(self.num_envs, self._reward_dtype)
        return EnvState(obs, reward, self._latest, self._latest.copy(), obs, self._all_valid, {}, ())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        """See ``Env.step``. Shapes and types of rewards and flags are checked in the first step.

        Raises:
            ValueError: If ``env_state`` is not the latest one, an action does not fit, or the environment returns
                observations or ends that its spaces or its autoreset mode do not allow.
            TypeError: If the reward is a dict, or the reward or a flag is not a number.
        """
        if env_state.terminated is not self._latest:
            raise ValueError(
                f"{self.id} can only be stepped from its latest state, received another one: a host environment keeps "
                "its state to itself. Pass on what the last reset or step returned, or call reset(key) first."
            )
        raw_obs, raw_reward, raw_terminated, raw_truncated, infos = self.vector_env.step(self._actions(action))
        if not self._is_checked:
            check_numbers(
                self.id, self.num_envs, rewards=raw_reward, terminations=raw_terminated, truncations=raw_truncated
            )
            self._is_checked = True
        obs = self._shown = self._observations(raw_obs, self.num_envs)
        reward = np.array(raw_reward, self._reward_dtype)
        terminated = np.array(raw_terminated, np.bool_)
        truncated = np.array(raw_truncated, np.bool_)
        if np.count_nonzero(truncated):
            # An end that is both counts as a termination.
            truncated &= ~terminated
        self._latest, ended, valid = terminated, terminated | truncated, self._all_valid
        if self.may_skip:
            if np.count_nonzero(self._skips):
                valid = self._without_resets(reward, ended)
            self._skips = ended
        state = EnvState(obs, reward, terminated, truncated, obs, valid, {}, ())
        return state if self.may_skip or not np.count_nonzero(ended) else self._finish(state, ended, infos)

    def restart(self, env_state: EnvState, which: np.ndarray) -> EnvState | None:
        """See ``Env.restart``. Needs a gymnasium environment that can reset single members."""
        if not self.restarts:
            return None
        obs = self._reset_some(env_state.obs, which)
        self._skips = self._skips & ~which
        # In place, since the latest state is recognised by this array.
        env_state.terminated[which] = False
        return env_state._replace(obs=obs, truncated=env_state.truncated | which)

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
        return self._with(self._remake(num_envs))

    @property
    def _inner(self) -> Any:
        return self.vector_env.unwrapped

    def close(self) -> None:
        """See ``Env.close``."""
        self.vector_env.close()

    def _finish(self, state: EnvState, ended: np.ndarray, infos: Any) -> EnvState:
        """The state of a step in which episodes ended, with their last observations and new episodes."""
        if not self._same_step:
            return state._replace(obs=self._reset_some(state.obs, ended))
        final = final_observations(self._observations, infos, ended, state.obs)
        if self._may_overwrite:
            self._may_overwrite = False
            report_overwritten(self.id, ended, final, state.obs)
        return state._replace(final_obs=final)

    def _without_resets(self, reward: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """Mask of a NEXT_STEP environment's valid steps; the others, which were only resets, get a reward of 0."""
        if np.count_nonzero(ended & self._skips):
            raise ValueError(
                f"{self.id} ended an episode in the step that resets it, which AutoresetMode.NEXT_STEP does not allow: "
                "it seems to reset in the same step. Correct its metadata['autoreset_mode'], or pass autoreset_mode=."
            )
        # A reward wrapper may have turned the reset step's 0 into something else.
        reward[self._skips] = 0
        return ~self._skips

    def _reset_some(self, latest: Any, which: np.ndarray) -> Any:
        """Resets environments where ``which`` holds; returns their first observations, and ``latest`` elsewhere."""
        # A copy: gymnasium takes the mask out of the options and hands it on.
        raw_obs, _ = self.vector_env.reset(options={"reset_mask": which.copy()})
        obs = self._observations(raw_obs, self.num_envs)
        if not self._changes_observations:
            refuse_ignored_mask(self.id, which, self._shown, obs)
        self._shown = obs
        return select(np, which, obs, latest)


def _refuse_one_for_many(name: str, base: SyncVectorEnv) -> None:
    """Raises a ValueError if one object is several of the environments, and would be stepped several times a step."""
    if len({id(env.unwrapped) for env in base.envs}) < len(base.envs):
        raise ValueError(
            f"Environments of {name} are one and the same object, which can't be in two episodes at once: each "
            f"function must make an environment of its own, as lambda: {type(base.envs[0].unwrapped).__name__}(...) "
            "does, and lambda: env does not."
        )


_LOG = logging.getLogger("multippo")


def find_autoreset_mode(
    vector_env: VectorEnv[Any, Any, Any], declared: AutoresetMode | str | None = None
) -> AutoresetMode:
    """The autoreset mode of a vector environment.

    Args:
        vector_env: The environment, whose ``metadata["autoreset_mode"]`` is read.
        declared: Mode that the user declares; by default that of the metadata.

    Raises:
        ValueError: If the mode is not known: a guess would teach the policy wrong transitions without a sign.
    """
    base = vector_env.unwrapped
    if isinstance(base, SyncVectorEnv | AsyncVectorEnv):
        # gymnasium's own two write their mode into a dict that belongs to the member environments' class, so the
        # metadata has the mode of the vector environment made last. The attribute decides in a step.
        mode: Any = base.autoreset_mode
    else:
        mode = vector_env.metadata.get("autoreset_mode") if vector_env.metadata else None
    mode = mode if declared is None else declared
    for known in AutoresetMode:
        if mode in (known, known.value, known.name):
            return known
    names = ", ".join(f"AutoresetMode.{known.name}" for known in AutoresetMode)
    raise ValueError(
        f"{vector_env} does not say how it resets: its metadata['autoreset_mode'] is {mode!r}, expected one of "
        f"{names}. Set it on the environment, or pass autoreset_mode=, as the environment really behaves."
    )


def final_observations(observations: ObservationMap, infos: Any, done: np.ndarray, obs: Any) -> Any:
    """Final observations under SAME_STEP: where an episode has ended its last observation, elsewhere ``obs``.

    ``infos["final_obs"]`` (``final_observation`` in older environments) comes in two forms: one observation per
    environment, None where no episode ended; or one batched tree like the observations themselves. ``infos`` may also
    be a list with a dict for each environment.

    Args:
        observations: Map of raw observations.
        infos: Infos that the step returned.
        done: ``[B]`` bool, True for at least one ended episode.
        obs: Converted observations of this step.

    Raises:
        ValueError: If an ended episode's final observation is missing.
    """
    rows, size = np.flatnonzero(done), len(done)
    raw: Any = _reported(infos, size)
    is_single = _is_per_environment(raw, observations.space)
    missing = [int(row) for row in rows if raw is None or (is_single and raw[row] is None)]
    if missing:
        raise ValueError(
            f"The episodes of environments {missing} ended, but the step's infos hold no 'final_obs' of theirs "
            f"(received {describe(infos)}): report the last observation of every episode, or use NEXT_STEP."
        )
    if is_single:
        singles = [observations(raw[row], None) for row in rows]  # pyright: ignore[reportOptionalSubscript]
        return put_rows(obs, rows, tree_map(lambda *leaves: np.concatenate(leaves), *singles))
    return select(np, done, observations(_without_masks(raw), size), obs)


def refuse_ignored_mask(name: str, which: np.ndarray, before: Any, after: Any) -> None:
    """Raises if a vector environment's reset of some environments has touched others.

    Args:
        name: Name of the environment.
        which: ``[B]`` bool, the ``reset_mask`` of the reset.
        before: Converted observations before the reset.
        after: Converted observations from the reset.

    Raises:
        ValueError: If an environment outside the mask shows another observation than before.
    """
    touched = np.zeros_like(which)
    for old, new in zip(tree_leaves(before), tree_leaves(after), strict=True):
        other = (old != new) & ~((old != old) & (new != new))
        touched |= np.reshape(other, (len(which), -1)).any(axis=1)
    touched &= ~which
    if touched.any():
        raise ValueError(
            f"{name} was to reset the environments {np.flatnonzero(which).tolist()} by options['reset_mask'], and then "
            f"showed other observations of {np.flatnonzero(touched).tolist()}: heed the mask, or use NEXT_STEP."
        )


def report_overwritten(name: str, done: np.ndarray, final: Any, obs: Any) -> None:
    """Warns if every episode that has ended shows the next episode's first observation as its last.

    Workers that the user has started send an episode's last observation after the reset. If the environment writes into
    one array again and again, the reset has overwritten it.

    Args:
        name: Name of the environment.
        done: ``[B]`` bool, True for at least one ended episode.
        final: Converted final observations.
        obs: Converted observations, the next episode's first where one has ended.
    """
    pairs = zip(tree_leaves(final), tree_leaves(obs), strict=True)
    if all(last[done].tobytes() == first[done].tobytes() for last, first in pairs):
        _LOG.warning(
            "%s reports as the last observation of its environments %s exactly the first one of the next episode. If "
            "episodes do not end as they begin, the environment returns one array again and again and its reset has "
            "overwritten the observation: return copies from reset and step, or pass make_env the functions that make "
            "the environments, with vectorization='async' for worker processes.",
            name,
            np.flatnonzero(done).tolist(),
        )


def keep_final_observations(base: SyncVectorEnv) -> None:
    """Makes a ``SyncVectorEnv`` in mode SAME_STEP report copies of its episodes' last observations.

    An environment that writes into one array again and again would overwrite the last observation in the reset that
    follows in the same step, and the truncated episode would be valued by the next one's first observation. gymnasium
    hands infos to ``_add_info`` before the reset; nothing else of the user's object is touched.
    """
    vars(base)["_add_info"] = functools.partial(_add_copied, base)


def _add_copied(base: SyncVectorEnv, infos: dict[str, Any], info: dict[str, Any], place: int) -> dict[str, Any]:
    if "final_obs" in info:
        info = {**info, "final_obs": copy.deepcopy(info["final_obs"])}
    return type(base)._add_info(base, infos, info, place)  # pyright: ignore[reportPrivateUsage]


def _reported(infos: Any, size: int) -> Any:
    """The final observations in a step's infos, or None."""
    if isinstance(infos, list | tuple) and len(infos) == size and all(isinstance(info, dict) for info in infos):
        return [_final(info) for info in infos]
    return _final(infos) if isinstance(infos, dict) else None


def _final(info: dict[str, Any]) -> Any:
    return info.get("final_obs", info.get("final_observation"))


def _is_per_environment(raw: Any, space: spaces.Space[Any]) -> bool:
    # A tuple is the batch itself if the space is a Tuple.
    as_tuple = isinstance(raw, tuple) and not isinstance(space, spaces.Tuple)
    return as_tuple or isinstance(raw, list) or (isinstance(raw, np.ndarray) and raw.dtype == object)


def _without_masks(raw: Any) -> Any:
    """A dict without the ``_key`` entries in which gymnasium marks the environments that reported ``key``."""
    if not isinstance(raw, dict):
        return raw
    return {key: _without_masks(value) for key, value in raw.items() if not (key.startswith("_") and key[1:] in raw)}
