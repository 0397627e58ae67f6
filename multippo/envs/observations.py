"""Checks of all that a gymnasium environment returns, and conversion of its observations for the policy.

A policy sees a tree (dict and tuple) of ``[B, ...]`` arrays in the declared types. Box observations keep their type,
so images stay ``uint8``; a categorical leaf becomes one-hot ``float32``, and its space says so:

| the environment's space | the policy's space |
|---|---|
| Box | the same |
| Discrete(n, start) | Box(0, 1, (n,)), one-hot |
| MultiDiscrete(nvec) | Box(0, 1, (sum(nvec),)), one one-hot block per entry |
| MultiBinary(shape) | Box(0, 1, shape) |
| Dict, Tuple | the same tree of the above |

Values outside a Box's bounds are not an error: bounds are often wrong and nothing depends on them. Rewards and flags
are checked because gymnasium's vector environments write them into buffers, where None becomes NaN, ``"1"`` 1.0 and
``"False"`` True, and of anything else NumPy complains without the environment's name.
"""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.arguments import describe
from multippo.networks.factories.observations import check_keys
from multippo.trees import tree_map


class ObservationMap(abc.ABC):
    """Checks and converts a batch of observations of one space.

    Attributes:
        space: Space of the observations that the policy sees.
    """

    space: spaces.Space[Any]

    @abc.abstractmethod
    def __call__(self, raw: Any, num_envs: int | None) -> Any:
        """A checked copy of a batch ``raw`` (leaves ``[num_envs, ...]``) in the declared types.

        With ``num_envs`` None, ``raw`` is a single environment's observation, of which a batch of one is made.

        Raises:
            ValueError: If a leaf's structure, shape or type does not fit the space; the message names the leaf.
        """


def make_observation_map(
    space: spaces.Space[Any], path: str = "observation", keys: Sequence[str] | None = None
) -> ObservationMap:
    """The map for one environment's observation space.

    Args:
        space: Space of one observation.
        path: Name of the space in errors.
        keys: Keys of a Dict that are converted, all by default; a dot leads into a nested Dict.

    Raises:
        ValueError: If the space is not supported (the message names the supported ones), or lacks one of the keys.
    """
    if keys is not None:
        paths = key_paths(keys)
        return _FilterMap(make_observation_map(at_paths(space, paths), path), paths)
    if isinstance(space, spaces.Box):
        return _BoxMap(space, path)
    if isinstance(space, spaces.MultiBinary):
        return _BoxMap(spaces.Box(0.0, 1.0, space.shape, np.float32), path)
    if isinstance(space, spaces.Discrete):
        return _OneHotMap(np.asarray([space.n]), np.asarray([space.start]), (), path)
    if isinstance(space, spaces.MultiDiscrete):
        return _OneHotMap(space.nvec.ravel(), space.start.ravel(), space.nvec.shape, path)
    if isinstance(space, spaces.Dict):
        check_keys(space, path)
    if isinstance(space, spaces.Dict | spaces.Tuple):
        return _TreeMap(space, path)
    raise ValueError(
        f"The observation space {path} = {space} of type {type(space).__name__} is not supported; supported are Box, "
        "Discrete, MultiDiscrete, MultiBinary, and Dict and Tuple of those. Leave it out by make_env(observation_keys="
        "[...]), or make numbers of it in gymnasium.wrappers.TransformObservation."
    )


def key_paths(keys: Sequence[str]) -> list[list[str]]:
    """Keys of a nested Dict, with dots, as paths.

    Raises:
        ValueError: If ``keys`` is not a list of at least one key.
    """
    if isinstance(keys, str) or not keys:
        raise ValueError(f"observation_keys={keys!r} is not possible: expected a list of at least one key.")
    return [key.split(".") for key in keys]


def at_paths(tree: Any, paths: list[list[str]]) -> Any:
    """The parts of a nested dict, or of a Dict space, that the paths lead to.

    Raises:
        ValueError: If a path leads nowhere.
    """
    branches: Any = tree.spaces if isinstance(tree, spaces.Dict) else tree
    parts: dict[str, Any] = {}
    for head in dict.fromkeys(path[0] for path in paths):
        if not isinstance(branches, dict) or head not in branches:
            known = f"the keys {sorted(branches)}" if isinstance(branches, dict) else f"no keys: {tree}"
            raise ValueError(f"The observation has no key {head!r} that could be shown; it has {known}.")
        rests = [path[1:] for path in paths if path[0] == head]
        parts[head] = branches[head] if [] in rests else at_paths(branches[head], rests)
    return spaces.Dict(parts) if isinstance(tree, spaces.Dict) else parts


def put_rows(target: Any, rows: np.ndarray, source: Any) -> Any:
    """A copy of a converted batch ``target``, its ``rows`` (indices) replaced by those of the smaller ``source``."""

    def put(leaf: np.ndarray, new: np.ndarray) -> np.ndarray:
        leaf = leaf.copy()
        leaf[rows] = new
        return leaf

    return tree_map(put, target, source)


class _LeafMap(ObservationMap):
    """Base of the Box and one-hot maps, which checks the shape of one array before the conversion."""

    def __init__(self, raw_shape: tuple[int, ...], path: str) -> None:
        self._raw_shape, self._path = raw_shape, path

    @abc.abstractmethod
    def convert(self, raw: np.ndarray) -> np.ndarray:
        """A converted copy of a batch of the right shape."""

    def __call__(self, raw: Any, num_envs: int | None) -> np.ndarray:
        if num_envs is None:
            raw, num_envs = _as_array(raw, self._path)[np.newaxis], 1
        elif type(raw) is not np.ndarray:
            raw = _as_array(raw, self._path)
        if raw.shape != (num_envs, *self._raw_shape):
            if raw.ndim and raw.shape[1:] == self._raw_shape:
                raise mismatch(self._path, f"{len(raw)} rows", f"{num_envs}, one for each environment")
            raise mismatch(self._path, f"shape {raw.shape[1:]}", f"shape {self._raw_shape}")
        return self.convert(raw)


class _BoxMap(_LeafMap):
    def __init__(self, space: spaces.Box, path: str) -> None:
        super().__init__(space.shape, path)
        self.space, self._dtype = space, space.dtype

    def convert(self, raw: np.ndarray) -> np.ndarray:
        if raw.dtype != self._dtype and not np.can_cast(raw.dtype, self._dtype, "same_kind"):
            raise mismatch(self._path, f"{raw.dtype.name} values", f"{self._dtype.name} values")
        # A copy, since many vector environments hand out one buffer again and again.
        return raw.astype(self._dtype, "C")


class _OneHotMap(_LeafMap):
    def __init__(self, sizes: np.ndarray, starts: np.ndarray, raw_shape: tuple[int, ...], path: str) -> None:
        super().__init__(raw_shape, path)
        self._sizes, self._starts = sizes, starts
        self._blocks = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        self.space = spaces.Box(0.0, 1.0, (int(sizes.sum()),), np.float32)

    def convert(self, raw: np.ndarray) -> np.ndarray:
        if raw.dtype.kind not in "iub":
            raise mismatch(self._path, f"{raw.dtype.name} values", "integers")
        index = raw.reshape(raw.shape[0], -1).astype(np.int64) - self._starts
        if np.any((index < 0) | (index >= self._sizes)):
            # Refused, unlike a value beyond a Box's bounds, for want of a place in a one-hot vector.
            first, last = self._starts.tolist(), (self._starts + self._sizes - 1).tolist()
            raise mismatch(self._path, f"the values {raw.tolist()}", f"values from {first} to {last}")
        one_hot = np.zeros((raw.shape[0], int(self._sizes.sum())), np.float32)
        np.put_along_axis(one_hot, index + self._blocks, 1.0, axis=1)
        return one_hot


class _TreeMap(ObservationMap):
    """The map of a Dict or Tuple: a map for each part, by key or position."""

    def __init__(self, space: spaces.Dict | spaces.Tuple, path: str) -> None:
        self._is_dict, self._path = isinstance(space, spaces.Dict), path
        parts = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        self._maps: dict[Any, ObservationMap] = {
            key: make_observation_map(sub, f"{path}[{key!r}]") for key, sub in parts
        }
        self.space = type(space)(self._gathered([sub.space for sub in self._maps.values()]))

    def __call__(self, raw: Any, num_envs: int | None) -> Any:
        if self._is_dict and not (isinstance(raw, dict) and raw.keys() == self._maps.keys()):
            raise mismatch(self._path, describe(raw), f"a dict with the entries {list(self._maps)}")
        if not self._is_dict and not (isinstance(raw, tuple | list) and len(raw) == len(self._maps)):
            raise mismatch(self._path, describe(raw), f"a tuple of {len(self._maps)} entries")
        return self._gathered([sub(raw[key], num_envs) for key, sub in self._maps.items()])

    def _gathered(self, parts: list[Any]) -> Any:
        return dict(zip(self._maps, parts, strict=True)) if self._is_dict else tuple(parts)


class _FilterMap(ObservationMap):
    """The map of some parts of a nested Dict."""

    def __init__(self, part: ObservationMap, paths: list[list[str]]) -> None:
        self.space, self._part, self._paths = part.space, part, paths

    def __call__(self, raw: Any, num_envs: int | None) -> Any:
        return self._part(at_paths(raw, self._paths), num_envs)


def _as_array(raw: Any, path: str) -> np.ndarray:
    try:
        array = np.asarray(raw)
    except (TypeError, ValueError) as error:
        raise mismatch(path, f"a {type(raw).__name__} that is not an array ({error})", "an array") from error
    if array.dtype.kind not in "biuf":
        raise mismatch(path, f"{array.dtype.name} values", "numbers")
    return array


def mismatch(path: str, received: str, expected: str, giver: str = "the environment") -> ValueError:
    """The error for an observation that does not fit its space."""
    return ValueError(
        f"The {path} that {giver} returned does not fit its observation space: received {received}, expected "
        f"{expected}. Correct the environment's observation_space or what its reset and step return."
    )


RESET_AND_STEP = (
    "gymnasium expects (observation, info) of reset, and (observation, reward, terminated, truncated, info) of step."
)

NUMBERS = frozenset({float, int, np.float64, np.float32, np.int64, np.int32})
"""Types of rewards that need no conversion."""

FLAGS = frozenset({bool, np.bool_})
"""Types of flags that need no conversion."""


def split_reset(returned: Any) -> tuple[Any, Any]:
    """Splits the result of ``reset`` into observation and info.

    Raises:
        TypeError: If ``returned`` is something else, such as the observation alone, or the info is not a dict.
    """
    # An observation alone may have two entries as well.
    if not isinstance(returned, tuple | list) or len(returned) != 2:
        raise TypeError(f"reset returned {describe(returned)}; expected (observation, info).")
    obs, info = returned
    _check_info("reset", info)
    return obs, info


def split_step(returned: Any) -> tuple[Any, Any, Any, Any, Any]:
    """Splits the result of ``step`` into five values, with rewards and flags of any library as plain ones.

    Raises:
        TypeError: If there are not five values, or the reward is not a number, a flag not a bool, the info not a dict.
        ValueError: If the reward or a flag is an array with axes.
    """
    try:
        obs, reward, terminated, truncated, info = returned
    except (TypeError, ValueError):
        raise TypeError(
            f"step returned {describe(returned)}; expected (observation, reward, terminated, truncated, info)."
        ) from None
    if type(reward) not in NUMBERS:
        reward = as_reward(reward)
    if type(terminated) is not bool:
        terminated = as_flag("terminated", terminated)
    if type(truncated) is not bool:
        truncated = as_flag("truncated", truncated)
    if type(info) is not dict:
        _check_info("step", info)
    return obs, reward, terminated, truncated, info


def check_numbers(name: str, num_envs: int, **batches: Any) -> None:
    """Raises for rewards or flags of a vector environment that NumPy would cast: None to NaN, ``"False"`` to True.

    Raises:
        TypeError: If the type of a batch is neither bool nor that of real numbers.
        ValueError: If a batch is not one number for each environment.
    """
    for what, batch in batches.items():
        array = np.asarray(batch)
        if array.dtype.kind not in "biuf":
            _refuse_reward_tree(batch)
            raise TypeError(
                f"{name} returned {what} of type {array.dtype.name}; expected an array of numbers or bools."
            )
        if array.shape != (num_envs,):
            raise ValueError(
                f"{name} returned {what} of shape {array.shape}; expected ({num_envs},), one for each environment."
            )


def _refuse_reward_tree(reward: Any) -> None:
    if isinstance(reward, Mapping):
        raise TypeError(
            f"step returned a dict as reward, with the keys {sorted(map(str, reward))}; expected a number: "
            "gymnasium's vector environments have one reward for each environment. For one for each key write a "
            "functional environment, or a subclass of multippo.envs.Env."
        )


def as_reward(reward: Any) -> Any:
    """The reward of one environment, a number or an array without axes of any framework, as a float.

    Raises:
        TypeError: If ``reward`` is not a real number.
        ValueError: If ``reward`` has axes.
    """
    _refuse_reward_tree(reward)
    if shape := _shape(reward):
        raise ValueError(f"step returned a reward of shape {shape}, expected one number: return float(reward).")
    if not isinstance(reward, str | bytes):
        with contextlib.suppress(TypeError, ValueError, RuntimeError):
            return float(reward)
    raise TypeError(f"step returned {describe(reward)} as reward; expected a number.")


def as_flag(name: str, flag: Any) -> bool:
    """The flag of an episode's end as a bool, from a bool or a number that is 0 or 1; None counts as False.

    Raises:
        TypeError: If ``flag`` is something else.
        ValueError: If ``flag`` has axes.
    """
    if flag is None:
        return False
    if shape := _shape(flag):
        raise ValueError(f"step returned {name} of shape {shape}, expected one bool: return bool({name}).")
    if hasattr(flag, "__bool__") and not isinstance(flag, str | bytes) and (flag == 0 or flag == 1):
        return bool(flag)
    raise TypeError(f"step returned {describe(flag)} as {name}; expected a bool.")


class Observations:
    """Checks observations of single environments, and names the entry that does not fit.

    Args:
        space: Space of the observations.

    Raises:
        ValueError: If the space is not supported.
    """

    def __init__(self, space: spaces.Space[Any]) -> None:
        self._map = make_observation_map(space)
        self._look: Any = None

    def check(self, obs: Any) -> None:
        """Raises a ValueError unless an observation fits; cheap for the types and shapes of the last observation."""
        look = _look(obs)
        if look != self._look:
            self._map(obs, None)
            self._look = look


def _look(obs: Any) -> Any:
    """Types and shapes of an observation. Lists equal nothing else, since their entries may change."""
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
