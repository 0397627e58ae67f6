"""Whether a network's actions are those of the environment's action space, before the first of them is taken."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.arguments import describe
from multippo.integer_boxes import is_integer_box, num_choices
from multippo.networks.locating import path_of
from multippo.networks.outputs import Draw
from multippo.networks.types import PPONetworkOutput
from multippo.trees import tree_map

__all__ = ["check_actions", "whose"]


def whose(output: Any, draws: list[Draw]) -> Any:
    """A tree like that of a network's actions: for each of them its ``Draw``, or None where no sampler has made it.

    Args:
        output: What a network put out.
        draws: What its samplers have drawn, in the same call.
    """
    if not isinstance(output, PPONetworkOutput):
        return None
    return tree_map(
        lambda action: next((draw._replace(action=None) for draw in draws if draw.action is action), None),
        output.actions,
    )


def check_actions(network: Any, actions: Any, drawn: Any, space: Any, num_envs: int, path: str = "action") -> None:
    """Refuses actions that the space does not have: of another shape, of another kind, or other choices.

    Of spaces that no adapter of the library's takes, nothing is known; nor of the choices of a user's own sampler, or
    of one with a mask.

    Args:
        network: Whose they are.
        actions: Tree of ``[B, ...]`` arrays, or what has their shapes.
        drawn: From ``whose``.
        space: Of one environment's action.
        num_envs: B.
        path: What an error calls the action.

    Raises:
        ValueError: If so; the error names the sampler, what was received, what was expected and the remedy.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(actions, Mapping) or set(actions) != set(space.spaces):
            raise ValueError(
                f"The network's {path} is {describe(actions)}; expected a dict with the entries "
                f"{sorted(space.spaces)}, as the action space has them: give the network one sampler for each key."
            )
        for key, inner in space.spaces.items():
            inside = drawn[key] if isinstance(drawn, Mapping) else None
            check_actions(network, actions[key], inside, inner, num_envs, f"{path}[{key!r}]")
        return
    if not isinstance(space, spaces.Box | spaces.Discrete | spaces.MultiDiscrete | spaces.MultiBinary):
        return
    draw = drawn if isinstance(drawn, Draw) else None
    sampler = "" if draw is None else f", of the sampler {path_of(network, draw.sampler)},"
    expected = (num_envs, *(space.shape or ()))
    if not hasattr(actions, "shape") or tuple(actions.shape) != expected:
        raise ValueError(
            f"The network's {path}{sampler} is {describe(actions)}; expected shape {expected} for the action space "
            f"{space}. Give the network a sampler for that space, and the layer in front of it the size that it needs."
        )
    choices = _choices(space, path)
    if choices is None:
        if draw is not None and draw.num_choices is not None:
            raise ValueError(
                f"The network's {path}{sampler} is a choice that counts from 0; expected numbers for the action space "
                f"{space}. Use a sampler of continuous actions, such as NormalTanhSampler."
            )
        return
    if not network.xp.isdtype(actions.dtype, ("integral", "bool")):
        received = str(actions.dtype).removeprefix("torch.")
        raise ValueError(
            f"The network's {path}{sampler} holds numbers of type {received}; expected "
            f"integers that count from 0 for the action space {space}. Use a sampler of discrete actions."
        )
    received = None if draw is None else draw.num_choices
    if received is not None and not np.array_equal(np.broadcast_to(received, choices.shape), choices):
        remedy = f"Use a MultiCategoricalSampler({choices.tolist()}, ...)."
        if not choices.ndim:
            remedy = f"Give it {choices} logits, by the size of the layer in front of it."
        raise ValueError(
            f"The network's {path}{sampler} is one of {np.asarray(received).tolist()} choices; expected "
            f"{choices.tolist()} for the action space {space}. {remedy}"
        )


def _choices(space: Any, path: str) -> np.ndarray | None:
    """How many choices each number of an action is one of; None where it is no choice."""
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
