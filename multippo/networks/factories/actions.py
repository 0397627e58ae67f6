"""Layers that turn parameters into the actions of a space, for the ready-made networks."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from gymnasium import spaces

from multippo.action_spaces import MOST_CHOICES, is_bounded, num_choices
from multippo.arguments import is_integer
from multippo.networks.containers import Filter, Flattener, Map, Parallel, Sequential, Splitter
from multippo.networks.factories.observations import Size
from multippo.networks.samplers.discrete import BernoulliSampler, CategoricalSampler, MultiCategoricalSampler
from multippo.networks.samplers.gaussian import NormalSampler, NormalTanhSampler
from multippo.networks.types import StatefulModule
from multippo.random import Rngs

Distribution = Literal["tanh_normal", "normal"]

_SUPPORTED = (
    f"Box (of floats, or of at most {MOST_CHOICES} integers in each dimension), Discrete, MultiDiscrete, MultiBinary, "
    "Dict of those, or a number of continuous actions"
)


class SamplerOptions(NamedTuple):
    """Settings that the samplers of a network share.

    Attributes:
        entropy_weight: Weight of the entropy bonus.
        distribution: Distribution of the actions of a Box of floats; None for one by the bounds.
        min_std: Least standard deviation, before scaling.
        std_scale: Factor of the standard deviation.
    """

    entropy_weight: float = 0.0
    distribution: Distribution | None = None
    min_std: float = 0.1
    std_scale: float = 1.0


class ActionLayers(NamedTuple):
    """The end of an actor.

    Attributes:
        num_parameters: Number of numbers that the layers take, ``[B, num_parameters]``.
        layers: Layers, of which the last is a sampler, or one for each key. With a mask the first takes
            ``{"logits", "mask"}``.
    """

    num_parameters: int
    layers: list[StatefulModule]


def action_layers(
    action: Size, rngs: Rngs, options: SamplerOptions, mask: Any = None, path: str = "action"
) -> ActionLayers:
    """The layers for an action space.

    Args:
        action: Space of one action, or a number of continuous actions.
        rngs: Source of the samplers' keys.
        options: Settings of the samplers.
        mask: Space of the mask, or None: as many numbers as there are logits, and for a Dict of actions a Dict with
            an entry for each key that has a mask.
        path: Name of the space in errors.

    Raises:
        ValueError: If the space is not supported, the mask does not fit the space, or an option is unknown or has no
            effect; the error names the space.
    """
    if options.distribution not in (None, "tanh_normal", "normal"):
        raise ValueError(
            f"distribution={options.distribution!r} is unknown; expected 'tanh_normal', 'normal', or None."
        )
    if path == "action" and options != SamplerOptions(options.entropy_weight) and not _has_numbers(action):
        raise ValueError(
            f"distribution, min_std and std_scale have no effect on {action!r}, whose actions have no standard "
            f"deviation; got {options}. Leave them out."
        )
    if isinstance(action, spaces.Dict) and action.spaces:
        return _of_dict(action, rngs, options, mask, path)
    counts = None if isinstance(action, spaces.MultiBinary) else num_choices(action, path)
    if isinstance(action, spaces.Discrete):
        head = ActionLayers(int(action.n), [CategoricalSampler(rngs, options.entropy_weight)])
    elif counts is not None and counts.size:
        head = ActionLayers(int(counts.sum()), [MultiCategoricalSampler(counts, rngs, options.entropy_weight)])
    elif mask is not None:
        raise ValueError(
            f"The observation holds a mask for the {path} {action!r}, but only Discrete and MultiDiscrete actions and "
            "those of a Box of integers can be masked. Pass mask_key=None to make it an observation like any other."
        )
    else:
        return _of_numbers(action, rngs, options, path)
    if mask is not None and _mask_size(mask) != head.num_parameters:
        raise ValueError(
            f"The mask for the {path} {action!r} has the space {mask!r}; expected a Box or MultiBinary of "
            f"{head.num_parameters} numbers, one for each choice, or a Tuple of such. Pass mask_key=None to make it an "
            "observation like any other."
        )
    return head


def mask_layer(mask: Any) -> StatefulModule:
    """The layer from the environment's mask to the samplers' input, flat for each key."""
    if isinstance(mask, spaces.Dict):
        return Map({key: mask_layer(sub) for key, sub in mask.spaces.items()})
    return Flattener()


def _of_dict(action: spaces.Dict, rngs: Rngs, options: SamplerOptions, mask: Any, path: str) -> ActionLayers:
    masks: Mapping[str, Any] = {}
    if mask is not None:
        masks = mask.spaces if isinstance(mask, spaces.Dict) else {}
        if not masks or not set(masks) <= set(action.spaces):
            raise ValueError(
                f"The mask for the {path} {action!r} has the space {mask!r}; expected a Dict with some of the keys "
                f"{sorted(action.spaces)}. Pass mask_key=None to make it an observation like any other."
            )
    heads = {
        key: action_layers(sub, rngs, options, masks.get(key), f"{path}[{key!r}]") for key, sub in action.spaces.items()
    }
    splitter = Splitter({key: head.num_parameters for key, head in heads.items()})
    samplers = Map(
        {key: head.layers[0] if len(head.layers) == 1 else Sequential(head.layers) for key, head in heads.items()}
    )
    total = sum(head.num_parameters for head in heads.values())
    if not masks:
        return ActionLayers(total, [splitter, samplers])
    split = Parallel(logits=Sequential([Filter("logits"), splitter]), mask=Filter("mask"))
    paired = Filter(
        {key: {"logits": ("logits", key), "mask": ("mask", key)} if key in masks else ("logits", key) for key in heads}
    )
    return ActionLayers(total, [split, paired, samplers])


def _of_numbers(action: Size, rngs: Rngs, options: SamplerOptions, path: str) -> ActionLayers:
    if isinstance(action, spaces.MultiBinary) and math.prod(action.shape):
        sampler = BernoulliSampler(rngs, options.entropy_weight, action_shape=tuple(action.shape))
        return ActionLayers(math.prod(action.shape), [sampler])
    if is_integer(action, 1):
        shape, bounded = (int(action),), True
    elif isinstance(action, spaces.Box) and action.dtype.kind == "f" and math.prod(action.shape):
        shape, bounded = tuple(action.shape), bool(is_bounded(action).all())
    else:
        raise ValueError(
            f"The ready-made networks do not take the {path} {action!r} of type {type(action).__name__}; supported are "
            f"{_SUPPORTED}, none of them empty. Wrap the environment, or compose a network with the samplers you need."
        )
    size = math.prod(shape)
    arguments = (rngs, options.entropy_weight, options.min_std, options.std_scale)
    if (options.distribution or ("tanh_normal" if bounded else "normal")) == "tanh_normal":
        return ActionLayers(2 * size, [NormalTanhSampler(*arguments, action_shape=shape)])
    return ActionLayers(size, [NormalSampler(*arguments, action_shape=shape, state_dependent_std=False)])


def _has_numbers(action: Size) -> bool:
    """True if any part of an action is drawn from a Gaussian, or not supported, which is an error later."""
    if isinstance(action, spaces.Dict) and action.spaces:
        return any(_has_numbers(sub) for sub in action.spaces.values())
    return num_choices(action) is None


def _mask_size(mask: Any) -> float:
    """Number of choices that a mask is for; NaN, which does not equal any number, for another space."""
    if isinstance(mask, spaces.Tuple):
        return sum(map(_mask_size, mask.spaces))
    return math.prod(mask.shape) if isinstance(mask, spaces.Box | spaces.MultiBinary) else math.nan
