"""Actions drawn at random, of those that an environment's mask allows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.integer_boxes import is_integer_box, num_choices

MASK_KEY = "action_mask"
"""The entry of a Dict observation that the ready-made networks take as a mask."""


def random_action(space: spaces.Space[Any], num_envs: int, rng: np.random.Generator, mask: Any = None) -> Any:
    """Actions in policy coordinates, extremes included now and then.

    Args:
        space: Of one action.
        num_envs: B.
        rng: Decides.
        mask: For Discrete and MultiDiscrete actions and a Box of integers, what is allowed: B rows of as many numbers
            as there are choices, in any shape; for a Dict of actions a dict with some of its keys. None, or a row
            without any: everything is.
    """
    if isinstance(space, spaces.Dict):
        masks = mask if isinstance(mask, Mapping) else {}
        return {key: random_action(sub, num_envs, rng, masks.get(key)) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Discrete):
        return _choices(np.array([space.n]), num_envs, rng, mask)[:, 0]
    if isinstance(space, spaces.MultiDiscrete):
        return _choices(space.nvec.ravel(), num_envs, rng, mask).reshape(num_envs, *space.nvec.shape)
    if is_integer_box(space):
        return _choices(num_choices(space, "action").ravel(), num_envs, rng, mask).reshape(num_envs, *space.shape)
    if isinstance(space, spaces.MultiBinary):
        return rng.integers(0, 2, (num_envs, *space.shape)).astype(np.int32)
    assert isinstance(space, spaces.Box)
    action = rng.uniform(-1.0, 1.0, (num_envs, *space.shape))
    extreme = rng.random((num_envs, *(1 for _ in space.shape))) < 0.1
    return np.where(extreme, np.sign(action), action).astype(np.float32)


def mask_in(observation: Any) -> Any:
    """The mask in an observation, or None."""
    return observation.get(MASK_KEY) if isinstance(observation, Mapping) else None


def _choices(counts: np.ndarray, num_envs: int, rng: np.random.Generator, mask: Any) -> np.ndarray:
    """``[B, parts]``, the number of a choice for each part of an action."""
    if mask is None:
        return rng.integers(0, counts, (num_envs, len(counts))).astype(np.int32)
    drawn = rng.random((num_envs, len(counts)))
    allowed = np.ones((num_envs, int(counts.sum())), np.bool_)
    leaves = [np.asarray(part) for part in mask] if isinstance(mask, tuple) else [np.asarray(mask)]
    given = np.concatenate([leaf.reshape(num_envs, -1) for leaf in leaves], axis=1) > 0
    # One of another size is not a mask of these choices.
    allowed = given if given.shape == allowed.shape else allowed
    columns = []
    for part, own in enumerate(np.split(allowed, np.cumsum(counts)[:-1], axis=1)):
        own = own | ~own.any(axis=1, keepdims=True)
        number = np.floor(drawn[:, part] * own.sum(axis=1))
        # The choice before which so many are allowed.
        columns.append(np.argmax(np.cumsum(own, axis=1) > number[:, None], axis=1))
    return np.stack(columns, axis=1).astype(np.int32)
