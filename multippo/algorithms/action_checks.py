"""Checks of a network's actions against the environment's action space, before the first step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.arguments import describe
from multippo.integer_boxes import is_integer_box, num_choices
from multippo.networks.core.error_paths import path_of
from multippo.networks.core.outputs import Draw


def check_actions(network: Any, actions: Any, draws: list[Any], space: Any, num_envs: int) -> None:
    """Raises unless the actions are of the space: of its shape, its kind and its number of choices.

    Other spaces than the library's adapters take are not checked, nor are choices of a user's sampler or under a mask.

    Args:
        network: For names in an error.
        actions: Tree of ``[B, ...]`` arrays, or what has their shapes.
        draws: For each leaf the ``Draw`` of its sampler, or None; see ``run_once``.
        space: Action space of one environment.
        num_envs: B.

    Raises:
        ValueError: If they are not; the error names the sampler, what was received, what was expected and the remedy.
    """
    _check_tree(network, actions, iter(draws), space, num_envs, "action")


def _check_tree(network: Any, actions: Any, draws: Iterator[Any], space: Any, num_envs: int, path: str) -> None:
    if not isinstance(space, spaces.Dict):
        _check_action(network, actions, next(draws, None), space, num_envs, path)
        return
    if not isinstance(actions, Mapping) or set(actions) != set(space.spaces):
        raise ValueError(
            f"The network's {path} is {describe(actions)}; expected a dict with the entries "
            f"{sorted(space.spaces)}, as the action space has them: give the network one sampler for each key."
        )
    for key in sorted(space.spaces):  # the order of leaves
        _check_tree(network, actions[key], draws, space.spaces[key], num_envs, f"{path}[{key!r}]")


def _check_action(network: Any, action: Any, draw: Draw | None, space: Any, num_envs: int, path: str) -> None:
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    received, choices = None if draw is None else draw.num_choices, _choices(space, path)
    what = f"The network's {path}" + ("" if draw is None else f", of the sampler {path_of(network, draw.sampler)},")
    shape = (num_envs, *(space.shape or ()))
    if tuple(getattr(action, "shape", (None,))) != shape:
        raise ValueError(
            f"{what} is {describe(action)}; expected shape {shape} for the action space {space}. Give the network a "
            "sampler for that space, and the layer in front of it the size that it needs."
        )
    if choices is None and received is not None:
        raise ValueError(
            f"{what} is a choice that counts from 0; expected numbers for the action space {space}. Use a sampler of "
            "continuous actions, such as NormalTanhSampler."
        )
    if choices is not None and not network.xp.isdtype(action.dtype, ("integral", "bool")):
        raise ValueError(
            f"{what} holds numbers of type {str(action.dtype).removeprefix('torch.')}; expected integers that count "
            f"from 0 for the action space {space}. Use a sampler of discrete actions."
        )
    if choices is None or received is None:
        return
    if not np.array_equal(np.broadcast_to(received, choices.shape), choices):
        remedy = f"Use a MultiCategoricalSampler({choices.tolist()}, ...)."
        if not choices.ndim:
            remedy = f"Give it {choices} logits, by the size of the layer in front of it."
        raise ValueError(
            f"{what} is one of {np.asarray(received).tolist()} choices; expected {choices.tolist()} for the action "
            f"space {space}. {remedy}"
        )


def _choices(space: Any, path: str) -> np.ndarray | None:
    """Number of choices of each number of an action; None if it is not a choice."""
    if isinstance(space, spaces.Discrete):
        return np.asarray(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return np.asarray(space.nvec)
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, 2)
    try:
        return num_choices(space, path) if is_integer_box(space) else None
    except ValueError:  # an Env of the user's own may take what the library's adapters refuse
        return None
