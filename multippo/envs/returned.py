"""What a single environment returns from ``reset`` and ``step``: told from what it should, at little cost in each step.

gymnasium's vector environments write rewards and flags into buffers, where None becomes NaN, ``"1"`` 1.0 and
``"False"`` True; of anything else NumPy complains in its own words, without the environment's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.envs.observations import make_observation_map

__all__ = [
    "ONE_REWARD",
    "RESET_AND_STEP",
    "Observations",
    "as_flag",
    "as_reward",
    "described",
    "refuse_no_numbers",
    "refuse_reward_tree",
    "split_reset",
    "split_step",
]

ONE_REWARD = (
    "gymnasium's vector environments have one reward for each environment. For one for each key write a functional "
    "environment, or a subclass of multippo.envs.Env."
)
"""What an environment with rewards for several keys has to be."""

RESET_AND_STEP = (
    "gymnasium expects (observation, info) of reset, and (observation, reward, terminated, truncated, info) of step."
)

_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
_FLAGS = frozenset({bool, np.bool_})


def split_reset(returned: Any) -> tuple[Any, Any]:
    """What ``reset`` returned, as an observation and an info.

    Raises:
        TypeError: If it is something else, such as the observation alone.
    """
    # An observation alone may have two entries as well.
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"reset returned {described(returned)}; expected (observation, info).")
    obs, info = returned
    _check_info("reset", info)
    return obs, info


def split_step(returned: Any) -> tuple[Any, Any, Any, Any, Any]:
    """What ``step`` returned, its reward and flags checked and made plain where they are odd.

    Raises:
        TypeError: If there are not five values, the reward is no number, a flag is none, or the info no dict.
        ValueError: If the reward or a flag is an array with axes.
    """
    try:
        obs, reward, terminated, truncated, info = returned
    except (TypeError, ValueError):
        hint = " Since gym 0.26 `done` is in two parts." if isinstance(returned, tuple) and len(returned) == 4 else ""
        raise TypeError(
            f"step returned {described(returned)}; expected (observation, reward, terminated, truncated, info).{hint}"
        ) from None
    if type(reward) not in _NUMBERS:
        reward = as_reward(reward)
    if type(terminated) not in _FLAGS:
        terminated = as_flag("terminated", terminated)
    if type(truncated) not in _FLAGS:
        truncated = as_flag("truncated", truncated)
    if type(info) is not dict:
        _check_info("step", info)
    return obs, reward, terminated, truncated, info


def refuse_reward_tree(reward: Any) -> None:
    """Refuses rewards for several keys, which gymnasium would try to make one number of.

    Raises:
        TypeError: If it is a dict.
    """
    if isinstance(reward, Mapping):
        raise TypeError(
            f"step returned a dict as reward, with the keys {sorted(map(str, reward))}; expected a number: {ONE_REWARD}"
        )


def refuse_no_numbers(name: str, what: str, batch: Any) -> None:
    """Refuses rewards or flags of a vector environment that NumPy would cast: None to NaN, ``"False"`` to True.

    Raises:
        TypeError: If their type is neither bool nor that of real numbers.
    """
    dtype = (batch if isinstance(batch, np.ndarray) else np.asarray(batch)).dtype
    if dtype.kind not in "biuf":
        raise TypeError(f"{name} returned {what} of type {dtype.name}; expected an array of numbers or bools.")


def as_reward(reward: Any) -> Any:
    """A reward as it is, or as a float where it is an array of any framework.

    Raises:
        TypeError: If it is no real number.
        ValueError: If it has axes.
    """
    refuse_reward_tree(reward)
    if shape := _shape(reward):
        raise ValueError(f"step returned a reward of shape {shape}, expected one number: return float(reward).")
    if isinstance(reward, np.generic | np.ndarray):
        right = reward.dtype.kind in "biuf"
    else:
        right = hasattr(reward, "__float__") and not isinstance(reward, str | bytes)
    if right:
        try:
            return float(reward)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise TypeError(f"step returned {described(reward)} as reward; expected a number.")


def as_flag(name: str, flag: Any) -> bool:
    """Whether an episode has ended: of a bool, or of a number that is 0 or 1; None counts as False.

    Raises:
        TypeError: If it is something else.
        ValueError: If it has axes.
    """
    if type(flag) is bool or flag is None:
        return bool(flag)
    if shape := _shape(flag):
        raise ValueError(f"step returned {name} of shape {shape}, expected one bool: return bool({name}).")
    if hasattr(flag, "__bool__") and not isinstance(flag, str | bytes) and (flag == 0 or flag == 1):
        return bool(flag)
    raise TypeError(f"step returned {described(flag)} as {name}; expected a bool.")


class Observations:
    """Checks observations of single environments, and says of one that does not fit what is wrong with it.

    Args:
        space: Their space.

    Raises:
        ValueError: If the space is not supported.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._map = make_observation_map(space)
        self._seen = _seen(space)

    def check(self, obs: Any) -> None:
        """Raises ValueError if it does not fit; cheap for what looks like the one before, as nearly all do."""
        if not self._seen.again(obs):
            self._map(self._map.stack([obs]), 1)
            self._seen.remember(obs)


class _Seen:
    """What an entry of the latest observation that was found right looked like."""

    def __init__(self) -> None:
        self._kind: Any = None
        self._dtype: Any = None
        self._shape: Any = None

    def again(self, obs: Any) -> bool:
        if type(obs) is not self._kind:
            return False
        if self._dtype is None:
            # Lists, say, whose entries may differ from the last one's.
            return self._kind is int
        return obs.dtype == self._dtype and obs.shape == self._shape

    def remember(self, obs: Any) -> None:
        self._kind, self._dtype, self._shape = type(obs), getattr(obs, "dtype", None), getattr(obs, "shape", None)


class _SeenDict(_Seen):
    def __init__(self, entries: dict[Any, _Seen]) -> None:
        self._entries = tuple(entries.items())

    def again(self, obs: Any) -> bool:
        if not isinstance(obs, dict) or len(obs) != len(self._entries):
            return False
        return all(key in obs and entry.again(obs[key]) for key, entry in self._entries)

    def remember(self, obs: Any) -> None:
        for key, entry in self._entries:
            entry.remember(obs[key])


class _SeenTuple(_Seen):
    def __init__(self, entries: list[_Seen]) -> None:
        self._entries = tuple(entries)

    def again(self, obs: Any) -> bool:
        if not isinstance(obs, tuple) or len(obs) != len(self._entries):
            return False
        return all(seen.again(entry) for seen, entry in zip(self._entries, obs, strict=True))

    def remember(self, obs: Any) -> None:
        for seen, entry in zip(self._entries, obs, strict=True):
            seen.remember(entry)


def _seen(space: spaces.Space[Any]) -> _Seen:
    if isinstance(space, spaces.Dict):
        return _SeenDict({key: _seen(sub) for key, sub in space.spaces.items()})
    if isinstance(space, spaces.Tuple):
        return _SeenTuple([_seen(sub) for sub in space.spaces])
    return _Seen()


def described(value: Any) -> str:
    """What a value is, in an error."""
    if isinstance(value, tuple):
        return f"{len(value)} values"
    if isinstance(value, str):
        return f"the text {value!r}"
    return "None" if value is None else f"a {type(value).__name__}"


def _check_info(where: str, info: Any) -> None:
    if not isinstance(info, Mapping):
        raise TypeError(
            f"{where} returned {described(info)} as info; expected a dict: return {{}} if there is nothing."
        )


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))
