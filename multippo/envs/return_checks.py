"""Checks of the values that environments return from ``reset`` and ``step``, at little cost in each step.

gymnasium's vector environments write rewards and flags into buffers, where None becomes NaN, ``"1"`` 1.0 and
``"False"`` True; of anything else NumPy complains in its own words, without the environment's name.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.arguments import describe
from multippo.envs.observations import make_observation_map

RESET_AND_STEP = (
    "gymnasium expects (observation, info) of reset, and (observation, reward, terminated, truncated, info) of step."
)

_NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
_FLAGS = frozenset({bool, np.bool_})


def split_reset(returned: Any) -> tuple[Any, Any]:
    """Splits the result of ``reset`` into observation and info.

    Raises:
        TypeError: If it is something else, such as the observation alone.
    """
    # An observation alone may have two entries as well.
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"reset returned {describe(returned)}; expected (observation, info).")
    obs, info = returned
    _check_info("reset", info)
    return obs, info


def split_step(returned: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Splits the result of ``step`` into five values; odd rewards and flags become plain ones.

    Raises:
        TypeError: If there are not five values, or the reward is not a number, a flag not a bool, the info not a dict.
        ValueError: If the reward or a flag is an array with axes.
    """
    try:
        obs, reward, terminated, truncated, info = returned
    except (TypeError, ValueError):
        hint = " Since gym 0.26 `done` is in two parts." if isinstance(returned, tuple) and len(returned) == 4 else ""
        raise TypeError(
            f"step returned {describe(returned)}; expected (observation, reward, terminated, truncated, info).{hint}"
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


def check_numbers(name: str, **batches: Any) -> None:
    """Raises for rewards or flags of a vector environment that NumPy would cast: None to NaN, ``"False"`` to True.

    Raises:
        TypeError: If their type is neither bool nor that of real numbers.
    """
    for what, batch in batches.items():
        dtype = (batch if isinstance(batch, np.ndarray) else np.asarray(batch)).dtype
        if dtype.kind not in "biuf":
            _refuse_reward_tree(batch)
            raise TypeError(f"{name} returned {what} of type {dtype.name}; expected an array of numbers or bools.")


def _refuse_reward_tree(reward: Any) -> None:
    if isinstance(reward, Mapping):
        raise TypeError(
            f"step returned a dict as reward, with the keys {sorted(map(str, reward))}; expected a number: "
            "gymnasium's vector environments have one reward for each environment. For one for each key write a "
            "functional environment, or a subclass of multippo.envs.Env."
        )


def as_reward(reward: Any) -> Any:
    """A reward as it is, or as a float where it is an array of any framework.

    Raises:
        TypeError: If it is not a real number.
        ValueError: If it has axes.
    """
    _refuse_reward_tree(reward)
    if shape := _shape(reward):
        raise ValueError(f"step returned a reward of shape {shape}, expected one number: return float(reward).")
    if not isinstance(reward, str | bytes):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return float(reward)
    raise TypeError(f"step returned {describe(reward)} as reward; expected a number.")


def as_flag(name: str, flag: Any) -> bool:
    """An end of an episode as a bool, from a bool or a number that is 0 or 1; None counts as False.

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
    raise TypeError(f"step returned {describe(flag)} as {name}; expected a bool.")


class Observations:
    """Checks observations of single environments, and names the entry that does not fit.

    Args:
        space: Their space.

    Raises:
        ValueError: If the space is not supported.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._map = make_observation_map(space)
        self._look: Any = None

    def check(self, obs: Any) -> None:
        """Raises a ValueError unless an observation fits; cheap for one with the types and shapes of the last."""
        look = _look(obs)
        if look != self._look:
            self._map(self._map.stack([obs]), 1)
            self._look = look


def _look(obs: Any) -> Any:
    """Types and shapes of an observation; lists, whose entries may change, equal nothing else."""
    if isinstance(obs, dict):
        return {key: _look(entry) for key, entry in obs.items()}
    if isinstance(obs, tuple):
        return tuple(_look(entry) for entry in obs)
    if hasattr(obs, "dtype"):
        return type(obs), obs.dtype, obs.shape
    return int if type(obs) is int else object()


def _check_info(where: str, info: Any) -> None:
    if not isinstance(info, Mapping):
        raise TypeError(f"{where} returned {describe(info)} as info; expected a dict: return {{}} if there is nothing.")


def _shape(value: Any) -> tuple[int, ...]:
    return tuple(getattr(value, "shape", ()))
