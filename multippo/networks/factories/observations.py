"""Layers that turn an observation of a space into features, for the ready-made networks.

A network sees the observation from the environment's adapter: categorical entries one-hot, all others in the space's
types. Of that tree, images (see ``is_image``) are divided by 255, the rest is normalised, other bytes included; then
all of it is flattened, dicts in the order of their sorted keys.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from multippo.arguments import is_integer
from multippo.networks.normalizer import Normalizer
from multippo.networks.tree_layers import Flattener, Scale
from multippo.networks.types import StatefulModule
from multippo.trees import tree_leaves

Size = int | gymnasium.Space[Any]
"""A space, or the number of features (or of continuous actions) of a flat one."""

_LEAST_SIDE = 16
"""Least pixels a side of an image, since the codes of grid worlds are shaped like small ones."""

_SUPPORTED = "Box, Discrete, MultiDiscrete, MultiBinary, Dict and Tuple of those, or a number of features"


def observation_layers(
    observation: Size, normalize: bool, bytes_as_images: bool = False
) -> tuple[list[StatefulModule], int]:
    """The layers from an observation to features ``[B, F]``, and F.

    Args:
        observation: Space of one observation, or the number of features.
        normalize: True for a ``Normalizer`` of all but images.
        bytes_as_images: True to divide all bytes from 0 to 255 by 255, whatever their shape.

    Raises:
        ValueError: If the space is not supported, or holds no number at all; the error names the space.
    """
    if is_integer(observation, 1):
        return ([Normalizer(observation)] if normalize else []), int(observation)
    space: Any = observation
    features = num_features(space)
    if not features:
        raise ValueError(f"The observation space {space} holds no number; expected at least one feature.")
    layers: list[StatefulModule] = []
    divided = _is_bytes if bytes_as_images else is_image
    images = tree_leaves(map_space(divided, space))
    if normalize and not all(images):
        layers.append(Normalizer(map_space(lambda leaf: None if divided(leaf) else _shape(leaf), space)))
    if any(images):
        layers.append(Scale(map_space(lambda leaf: 1.0 / 255.0 if divided(leaf) else None, space)))
    flat = isinstance(space, spaces.Box) and len(space.shape) == 1
    # Normalizer and Scale leave floating-point numbers of the engine's type; without them Flattener does so.
    if not (flat and (layers or space.dtype == np.float32)):
        layers.append(Flattener())
    return layers, features


def num_features(space: Any, path: str = "observation") -> int:
    """Number of features that the policy sees of an observation.

    Raises:
        ValueError: If the space, or one inside, is not supported; the error names it.
    """
    if isinstance(space, spaces.Box | spaces.MultiBinary):
        return math.prod(space.shape)
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete):
        return int(space.nvec.sum())
    if isinstance(space, spaces.Dict | spaces.Tuple):
        if not space.spaces:
            raise ValueError(
                f"The {path} space {space} is empty: it holds no number; expected at least one entry in every Dict and "
                "Tuple. Leave it out of the observation space."
            )
        check_keys(space, path)
        entries = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
        return sum(num_features(sub, f"{path}[{key!r}]") for key, sub in entries)
    raise ValueError(
        f"The ready-made networks do not take the {path} {space!r} of type {type(space).__name__}; supported are "
        f"{_SUPPORTED}. Wrap the environment, or compose a network of containers."
    )


def check_keys(space: Any, path: str) -> None:
    """Raises for keys of a Dict space that can't be keys of a network's trees.

    Raises:
        ValueError: If a key is empty, or there are keys of several types, which can't be put in order.
    """
    if not isinstance(space, spaces.Dict):
        return
    keys = list(space.spaces)
    if "" in keys or len({type(key) for key in keys}) > 1:
        raise ValueError(
            f"The {path} space has the keys {keys}; expected strings that are not empty, or integers alone, since a "
            "tree's entries are named and put in order by them."
        )


def is_image(space: Any) -> bool:
    """True for a space of images: bytes from 0 to 255 on three axes (or four, stacked), at least 16 pixels a side.

    >>> is_image(spaces.Box(0, 255, (64, 64, 3), np.uint8)), is_image(spaces.Box(0, 255, (7, 7, 3), np.uint8))
    (True, False)
    """
    shape = space.shape or ()
    # Channels, and the axis of a stack, may come first or last.
    sides = (min(pair) for pair in itertools.pairwise(shape))
    return _is_bytes(space) and len(shape) in (3, 4) and max(sides) >= _LEAST_SIDE


def _is_bytes(space: Any) -> bool:
    is_uint8 = isinstance(space, spaces.Box) and space.dtype == np.uint8
    return is_uint8 and bool(np.all(space.low == 0) and np.all(space.high == 255))


def map_space(function: Callable[[Any], Any], space: Any) -> Any:
    """A space's tree with a value for each leaf."""
    if isinstance(space, spaces.Dict):
        return {key: map_space(function, sub) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map_space(function, sub) for sub in space.spaces)
    return function(space)


def _shape(leaf: Any) -> tuple[int, ...]:
    """The shape in which the policy sees a leaf."""
    return (num_features(leaf),) if isinstance(leaf, spaces.Discrete | spaces.MultiDiscrete) else tuple(leaf.shape)
