"""Maps from policy coordinates to the actions an environment takes.

A policy works in coordinates of its own: [-1, 1] in each bounded dimension of a Box of floats, counting from 0 in a
Discrete space and in each dimension of a Box of integers. The environment adapter alone applies the map, so the action
that is stored and replayed is the one that was sampled, neither scaled nor clipped.

For a Box of floats with bounds ``low`` and ``high``, per dimension:

    bounded on both sides:   env_action = clip((high + low) / 2 + action * (high - low) / 2, low, high)
    otherwise:               env_action = clip(action, low, high)

For a Box of integers, per dimension:

    env_action = low + action
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.action_spaces import MOST_CHOICES, is_bounded, num_choices
from multippo.arguments import describe

ActionMap = Callable[[Any], Any]
"""Maps a tree of ``[B, ...]`` arrays from policy coordinates to the environment's, and checks shapes and kinds."""


def make_action_map(space: spaces.Space[Any], num_envs: int, xp: Any = np, path: str = "action") -> ActionMap:
    """The map for a space.

    Args:
        space: One environment's action space.
        num_envs: Number of actions in a batch.
        xp: Array namespace of the environment: NumPy, ``jax.numpy``, or that of recorded arrays, for NumPy's.
        path: Name of the space in errors.

    Raises:
        ValueError: If the space is not supported; the message names the space and the supported ones.
    """
    counts = num_choices(space, path)
    if counts is not None:
        return _IntegerMap(space, counts, num_envs, xp, path)
    if isinstance(space, spaces.Box):
        return _BoxMap(space, num_envs, xp, path)
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        maps = {key: make_action_map(sub, num_envs, xp, f"{path}[{key!r}]") for key, sub in parts}
        return functools.partial(_map_dict, maps, path)
    raise ValueError(
        f"The action space {path} = {space} of type {type(space).__name__} is not supported; supported are Box (of "
        f"floats, or of at most {MOST_CHOICES} integers in each dimension), Discrete, MultiDiscrete, MultiBinary, and "
        "Dict of those. Wrap the environment so that it declares one of these."
    )


class _BoxMap:
    def __init__(self, space: spaces.Box, num_envs: int, xp: Any, path: str) -> None:
        low, high, bounded = space.low.astype(np.float64), space.high.astype(np.float64), is_bounded(space)
        lower, upper = np.where(bounded, low, -1.0), np.where(bounded, high, 1.0)
        scale, offset = (upper - lower) / 2, (upper + lower) / 2
        self._moves = not (np.all(scale == 1.0) and np.all(offset == 0.0))
        # NumPy scales in float64 and rounds once, so both ends are reached exactly. JAX computes in the space's type,
        # like the environment behind it.
        self._on_jax = xp.__name__ == "jax.numpy"
        dtype = np.dtype(np.float64) if self._moves and not self._on_jax else space.dtype
        self._scale, self._offset = scale.astype(dtype), offset.astype(dtype)
        self._low, self._high = low.astype(dtype), high.astype(dtype)
        self._clips = bool(np.any(np.isfinite(low)) or np.any(np.isfinite(high)))
        self._dtype, self._shape, self._xp, self._path = space.dtype, (num_envs, *space.shape), xp, path

    def __call__(self, action: Any) -> Any:
        action = self._xp.asarray(action)
        _check_shape(action, self._shape, self._path)
        if self._moves:
            action = action * self._scale + self._offset
        if self._clips:
            # Quicker than clip on NumPy, and the same.
            action = self._xp.minimum(self._xp.maximum(action, self._low), self._high)
        # Always a copy: an environment may write into its action, but not into the policy's.
        # Without its 64-bit mode JAX has no float64, and warns where one is asked for.
        return action.astype(self._xp.asarray(self._low).dtype if self._on_jax else self._dtype)


class _IntegerMap:
    def __init__(self, space: Any, counts: np.ndarray, num_envs: int, xp: Any, path: str) -> None:
        start = space.low if isinstance(space, spaces.Box) else getattr(space, "start", 0)
        self._start = np.asarray(start, space.dtype) if np.any(start) else None
        self._on_jax = xp.__name__ == "jax.numpy"
        self._dtype = np.dtype(np.int32) if self._on_jax and not isinstance(space, spaces.Box) else space.dtype
        self._counts, self._shape, self._xp, self._path = counts.astype(np.uint64), (num_envs, *space.shape), xp, path

    def __call__(self, action: Any) -> Any:
        action = self._xp.asarray(action)
        _check_shape(action, self._shape, self._path)
        if action.dtype.kind not in "iub":
            raise ValueError(
                f"The action for {self._path} is {action.dtype}; expected integers: use a sampler for discrete actions."
            )
        # Traced values can't be compared. A negative number is a large one without its sign.
        if self._xp is np and np.count_nonzero(action.astype(np.uint64) >= self._counts):
            raise ValueError(
                f"The action for {self._path} is {action.tolist()}; expected numbers from 0 to below "
                f"{self._counts.tolist()}: give the network's action head as many choices."
            )
        # Without its 64-bit mode JAX has no int64. In a small type a choice can wrap around; so does the sum, back.
        dtype = self._xp.asarray(np.zeros((), self._dtype)).dtype if self._on_jax else self._dtype
        action = action.astype(dtype)
        return action if self._start is None else action + self._start.astype(dtype)


def _map_dict(maps: dict[str, ActionMap], path: str, action: Any) -> Any:
    if not isinstance(action, dict) or action.keys() != maps.keys():
        raise ValueError(
            f"The action for {path} is {describe(action)}; expected a dict with the entries {sorted(maps)}: give the "
            "network one action head per key."
        )
    return {key: action_map(action[key]) for key, action_map in maps.items()}


def _check_shape(action: Any, shape: tuple[int, ...], path: str) -> None:
    if action.shape != shape:
        raise ValueError(
            f"The action for {path} has shape {action.shape}; expected {shape} (environments first): give the network "
            "an action head for this action space."
        )
