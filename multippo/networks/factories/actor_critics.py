"""Ready-made actor-critics from spaces or plain sizes."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

from multippo.arguments import check_sizes, known_keywords
from multippo.networks.activations import Activation
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Filter, Parallel, Sequential
from multippo.networks.convolution import Conv
from multippo.networks.factories.actions import Distribution, SamplerOptions, action_layers, mask_layer
from multippo.networks.factories.observations import Size, observation_layers
from multippo.networks.feedforward import Dense
from multippo.networks.initializers import Initializer, orthogonal
from multippo.networks.recurrent import GRU, LSTM
from multippo.networks.tree_layers import Flattener, MoveAxis, Scale
from multippo.networks.types import StatefulModule
from multippo.random import Rngs

_HIDDEN_GAIN = 2.0**0.5

MASK_KEY = "action_mask"
"""Default key of a mask in an observation, which may lack one."""


@known_keywords
def make_mlp_layers(
    sizes: Sequence[int],
    rngs: Rngs,
    activation: Activation = "tanh",
    activation_last_layer: bool = True,
    *,
    kernel_init: Initializer | None = None,
    last_kernel_init: Initializer | None = None,
) -> list[Dense]:
    """Dense layers from ``sizes[0]`` inputs to ``sizes[-1]`` outputs.

    Args:
        sizes: Numbers of features, at least two.
        rngs: Source of initial kernels.
        activation: Activation of every layer, by name or as a callable.
        activation_last_layer: True for an activation of the last layer, too.
        kernel_init: Initialiser of the kernels; orthogonal with gain sqrt(2) by default.
        last_kernel_init: Initialiser of the last kernel; like the others by default.

    Raises:
        ValueError: If there are fewer than two sizes, one is not an integer of at least 1, or the activation unknown.
        TypeError: If an argument is of the wrong kind.
    """
    sizes = check_sizes("make_mlp", "sizes", sizes)
    if len(sizes) < 2:
        raise ValueError(f"sizes={sizes} is not possible: expected an input and an output size at least.")
    kernel_init = kernel_init or orthogonal(_HIDDEN_GAIN)
    layers: list[Dense] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        init = last_kernel_init if last and last_kernel_init is not None else kernel_init
        act = activation if activation_last_layer or not last else None
        layers.append(Dense(fan_in, fan_out, rngs, act, kernel_init=init))
    return layers


@known_keywords
def make_mlp(
    sizes: Sequence[int],
    rngs: Rngs,
    activation: Activation = "tanh",
    activation_last_layer: bool = True,
    *,
    kernel_init: Initializer | None = None,
    last_kernel_init: Initializer | None = None,
) -> Sequential:
    """The layers of ``make_mlp_layers`` in a ``Sequential``."""
    inits = {"kernel_init": kernel_init, "last_kernel_init": last_kernel_init}
    return Sequential(make_mlp_layers(sizes, rngs, activation, activation_last_layer, **inits))


@known_keywords
def make_mlp_actor_critic(
    observation: Size,
    action: Size,
    actor_hidden_sizes: Sequence[int] = (64, 64),
    critic_hidden_sizes: Sequence[int] = (64, 64),
    rngs: Rngs | None = None,
    *,
    activation: Activation = "tanh",
    normalize_obs: bool = True,
    entropy_weight: float = 0.0,
    distribution: Distribution | None = None,
    min_std: float = 0.1,
    std_scale: float = 1.0,
    mask_key: str | None = MASK_KEY,
    bytes_as_images: bool = False,
) -> StatefulModule:
    """A feed-forward actor and a feed-forward critic, side by side.

    Observations of any supported space are flattened, dicts in the order of their sorted keys. Bytes stay ``uint8``
    where rollouts are stored. Images, a Box of ``uint8`` from 0 to 255 on three axes (or four, stacked) with at least
    16 pixels a side, are divided by 255 and not normalised further. Other bytes, such as the codes of a grid world, are
    normalised as floats are. For convolutions see ``make_cnn_actor_critic``.

    With a mask in the observation (see ``mask_key``) an action that is not allowed has probability 0.

    Args:
        observation: Observation space (Box, Discrete, MultiDiscrete, MultiBinary, or a Dict or Tuple of those, nested),
            or the number of features.
        action: Action space (Box, Discrete, MultiDiscrete, MultiBinary, or a Dict of those, nested, with a sampler for
            each), or the number of continuous actions. In each dimension of a Box of integers one of its values is
            chosen, at most 1024, as in a MultiDiscrete.
        actor_hidden_sizes: Units of the actor's hidden layers.
        critic_hidden_sizes: Units of the critic's hidden layers.
        rngs: Source of initial weights and the samplers' keys; ``Rngs(0)`` by default.
        activation: Activation of the hidden layers.
        normalize_obs: True for a ``Normalizer`` in front.
        entropy_weight: Weight of the entropy bonus.
        distribution: Distribution of a Box's actions: "tanh_normal", a ``NormalTanhSampler``, with which an unbounded
            dimension is left with (-1, 1), or "normal", a ``NormalSampler`` with one trained standard deviation for
            each dimension, whose actions the environment's adapter clips to the bounds. None for the first where every
            dimension is bounded on both sides, else the second.
        min_std: Least standard deviation of a Box's actions, before scaling; see the samplers.
        std_scale: Factor of the standard deviation of a Box's actions.
        mask_key: Key of the action's mask in a Dict observation, or None. The mask has 1 (or anything but 0) for each
            allowed choice: one number for each choice of a Discrete, one block after another for a MultiDiscrete or a
            Box of integers, a Dict of masks for a Dict of actions. The layers neither normalise nor see the mask.
        bytes_as_images: True to divide all bytes from 0 to 255 by 255, whatever their shape, as networks did before
            this option, and as continued and loaded runs of that time still do.

    Returns:
        A network whose output is a ``PPONetworkOutput``.

    Raises:
        ValueError: If a space is not supported, the mask does not fit the action, or a setting is impossible or has no
            effect on the action space; the error names it.
        TypeError: If an argument is of the wrong kind.
    """
    rngs = rngs or Rngs(0)
    options = SamplerOptions(entropy_weight, distribution, min_std, std_scale)

    def layers(features: int, parameters: int) -> _Layers:
        actor = _head(features, actor_hidden_sizes, "actor_hidden_sizes", parameters, 0.01, rngs, activation)
        return [], actor, _head(features, critic_hidden_sizes, "critic_hidden_sizes", 1, 1.0, rngs, activation)

    return _actor_critic(observation, action, rngs, normalize_obs, options, mask_key, bytes_as_images, layers)


@known_keywords
def make_recurrent_actor_critic(
    observation: Size,
    action: Size,
    hidden_features: int = 64,
    rngs: Rngs | None = None,
    *,
    cell: str = "lstm",
    encoder_sizes: Sequence[int] = (64,),
    actor_hidden_sizes: Sequence[int] = (),
    critic_hidden_sizes: Sequence[int] = (),
    shared: bool = False,
    activation: Activation = "tanh",
    normalize_obs: bool = True,
    entropy_weight: float = 0.0,
    distribution: Distribution | None = None,
    min_std: float = 0.1,
    std_scale: float = 1.0,
    mask_key: str | None = MASK_KEY,
    trainable_initial_state: bool = False,
    bytes_as_images: bool = False,
) -> StatefulModule:
    """Recurrent actor and critic: normaliser, dense encoder, recurrent layer, heads.

    Args:
        observation: Observation space or number of features; see ``make_mlp_actor_critic``.
        action: Action space or number of continuous actions; see ``make_mlp_actor_critic``.
        hidden_features: Number of units of a recurrent layer.
        rngs: Source of initial weights and the samplers' keys; ``Rngs(0)`` by default.
        cell: Kind of the recurrent layer, "lstm" or "gru".
        encoder_sizes: Units of the dense layers before the recurrent layer.
        actor_hidden_sizes: Units of the dense layers between the recurrent layer and the action parameters.
        critic_hidden_sizes: Units of the dense layers between the recurrent layer and the value.
        shared: True for one recurrent trunk for actor and critic, instead of one each.
        activation: Activation of the dense layers.
        normalize_obs: True for a ``Normalizer`` in front.
        entropy_weight: Weight of the entropy bonus.
        distribution: Distribution of a Box's actions; see ``make_mlp_actor_critic``.
        min_std: Least standard deviation of a Box's actions, before scaling; see the samplers.
        std_scale: Factor of the standard deviation of a Box's actions.
        mask_key: Key of the action's mask in a Dict observation, or None; see ``make_mlp_actor_critic``.
        trainable_initial_state: True for a learnt carry at an episode's start; see ``LSTM``.
        bytes_as_images: True to divide all bytes by 255; see ``make_mlp_actor_critic``.

    Returns:
        A network whose output is a ``PPONetworkOutput``.

    Raises:
        ValueError: If a space or the cell is not supported, the mask does not fit the action, or a setting is
            impossible or has no effect on the action space; the error names it.
        TypeError: If an argument is of the wrong kind.
    """
    rngs = rngs or Rngs(0)
    if cell not in _CELLS:
        raise ValueError(f"Unknown recurrent cell {cell!r}; expected one of {', '.join(sorted(_CELLS))}.")
    options = SamplerOptions(entropy_weight, distribution, min_std, std_scale)

    def layers(features: int, parameters: int) -> _Layers:
        sizes = [features, *check_sizes("", "encoder_sizes", encoder_sizes)]

        def trunk() -> list[StatefulModule]:
            encoder = make_mlp_layers(sizes, rngs, activation) if len(sizes) > 1 else []
            core = _CELLS[cell](sizes[-1], hidden_features, rngs, trainable_initial_state=trainable_initial_state)
            return [*encoder, core]

        def head(hidden: Sequence[int], name: str, outputs: int, gain: float) -> list[StatefulModule]:
            return _head(hidden_features, hidden, name, outputs, gain, rngs, activation)

        front = trunk() if shared else []
        actor = [*([] if shared else trunk()), *head(actor_hidden_sizes, "actor_hidden_sizes", parameters, 0.01)]
        critic = [*([] if shared else trunk()), *head(critic_hidden_sizes, "critic_hidden_sizes", 1, 1.0)]
        return front, actor, critic

    return _actor_critic(observation, action, rngs, normalize_obs, options, mask_key, bytes_as_images, layers)


_CELLS: dict[str, Any] = {"gru": GRU, "lstm": LSTM}


_Layers = tuple[list[StatefulModule], list[StatefulModule], list[StatefulModule]]
"""Layers of a trunk that actor and critic share, the actor's up to the parameters of its action, and the critic's."""


def _head(
    features: int, hidden: Sequence[int], name: str, outputs: int, gain: float, rngs: Rngs, activation: Activation
) -> list[StatefulModule]:
    """Dense layers and a linear last one, whose kernel has ``gain``; ``name`` is that of ``hidden`` in errors."""
    sizes, last = [features, *check_sizes("", name, hidden), outputs], orthogonal(gain)
    return [*make_mlp_layers(sizes, rngs, activation, activation_last_layer=False, last_kernel_init=last)]


def _actor_critic(
    observation: Size,
    action: Size,
    rngs: Rngs,
    normalize: bool,
    options: SamplerOptions,
    mask_key: str | None,
    bytes_as_images: bool,
    layers: Callable[[int, int], _Layers],
) -> StatefulModule:
    """The network for two spaces, around the ``layers`` for a number of features and of action parameters.

    A mask goes around these layers, from the observation to the sampler.
    """
    keys = tuple(observation.spaces) if isinstance(observation, spaces.Dict) else ()
    if mask_key not in (None, MASK_KEY, *keys):
        has = f"it has {list(keys)}" if keys else f"it is {observation}"
        raise ValueError(
            f"mask_key={mask_key!r} is not an entry of the observation; {has}. Name the entry that masks the action, "
            "or leave mask_key out."
        )
    seen, mask_space = observation, None
    if isinstance(observation, spaces.Dict) and mask_key is not None and mask_key in keys:
        mask_space = observation[mask_key]
        seen = spaces.Dict({key: sub for key, sub in observation.spaces.items() if key != mask_key})
    front, features = observation_layers(seen, normalize, bytes_as_images)
    head = action_layers(action, rngs, options, mask_space)
    trunk, actor, critic = layers(features, head.num_parameters)
    if mask_space is None or mask_key is None:
        adapter = PPOAdapter(action=Sequential([*actor, *head.layers]), value=Sequential(critic))
        front = [*front, *trunk]
        return Sequential([*front, adapter]) if front else adapter
    # Both children see the whole observation, and take their part.
    rest = {key: key for key in keys if key != mask_key}
    shared = Parallel(
        features=Sequential([Filter(rest), *front, *trunk]), mask=Sequential([Filter(mask_key), mask_layer(mask_space)])
    )
    logits = Parallel(logits=Sequential([Filter("features"), *actor]), mask=Filter("mask"))
    adapter = PPOAdapter(action=Sequential([logits, *head.layers]), value=Sequential([Filter("features"), *critic]))
    return Sequential([shared, adapter])


@known_keywords
def make_cnn_actor_critic(
    observation: spaces.Space[Any],
    action: Size,
    rngs: Rngs | None = None,
    *,
    channels: Sequence[int] = (32, 64, 64),
    kernel_sizes: Sequence[int] = (8, 4, 3),
    strides: Sequence[int] = (4, 2, 1),
    hidden_features: int = 512,
    channel_axis: Literal["auto", "first", "last"] = "auto",
    activation: Activation = "relu",
    entropy_weight: float = 0.0,
    distribution: Distribution | None = None,
    min_std: float = 0.1,
    std_scale: float = 1.0,
) -> StatefulModule:
    """Convolutions and a dense layer that actor and critic share, then a dense head for each.

    The default sizes are those of Mnih et al. (2015, doi:10.1038/nature14236, Methods), for images of at least 36 by 36
    pixels. Bytes stay bytes where rollouts are stored; the network divides them by 255, whatever their shape, since
    only images need convolutions. Kernels are orthogonal at first, with gain sqrt(2), 0.01 in the actor's head and 1 in
    the critic's.

    Args:
        observation: Box of shape ``(height, width, channels)`` or ``(channels, height, width)``, of ``uint8`` or of
            floating-point numbers, which are taken as they are.
        action: Action space or number of continuous actions; see ``make_mlp_actor_critic``.
        rngs: Source of initial weights and the samplers' keys; ``Rngs(0)`` by default.
        channels: Number of output channels of each convolution.
        kernel_sizes: Height and width of each kernel in pixels.
        strides: Stride of each convolution in pixels.
        hidden_features: Number of units of the shared dense layer.
        channel_axis: Axis of the channels, such as the frames of a stack; "auto" for the first where it is the
            shortest, else the last.
        activation: Activation of the convolutions and the dense layer.
        entropy_weight: Weight of the entropy bonus.
        distribution: Distribution of a Box's actions; see ``make_mlp_actor_critic``.
        min_std: Least standard deviation of a Box's actions, before scaling; see the samplers.
        std_scale: Factor of the standard deviation of a Box's actions.

    Returns:
        A network whose output is a ``PPONetworkOutput``.

    Raises:
        ValueError: If the observation is not an image, or too small for the kernels; if the sizes of the convolutions
            are not equally many; if the action space is not supported; or if a setting is impossible or has no effect.
        TypeError: If an argument is of the wrong kind.
    """
    rngs = rngs or Rngs(0)
    if not isinstance(observation, spaces.Box) or len(observation.shape) != 3:
        raise ValueError(
            f"make_cnn_actor_critic got the observation space {observation}; expected a Box of shape (height, width, "
            "channels) or (channels, height, width). For vectors there is make_mlp_actor_critic; for both at once, "
            "compose a network of containers."
        )
    if not len(channels) == len(kernel_sizes) == len(strides) >= 1:
        raise ValueError(
            f"channels={list(channels)}, kernel_sizes={list(kernel_sizes)} and strides={list(strides)} are not "
            "possible together: expected one entry for each convolution in all three, and at least one convolution."
        )
    gain = orthogonal(_HIDDEN_GAIN)
    front: list[StatefulModule] = [Scale(1.0 / 255.0)] if observation.dtype == np.uint8 else []
    shape: tuple[int, ...] = observation.shape
    if channel_axis == "first" or (channel_axis == "auto" and shape[0] < min(shape[1:])):
        front.append(MoveAxis(0, -1))
        shape = *shape[1:], shape[0]
    for size, kernel, stride in zip(channels, kernel_sizes, strides, strict=True):
        conv = Conv(shape[-1], size, kernel, rngs, stride=stride, activation=activation, kernel_init=gain)
        shape = conv.output_shape(shape)
        front.append(conv)
    front += [Flattener(), Dense(math.prod(shape), hidden_features, rngs, activation, kernel_init=gain)]
    head = action_layers(action, rngs, SamplerOptions(entropy_weight, distribution, min_std, std_scale), None)
    actor = _head(hidden_features, (), "", head.num_parameters, 0.01, rngs, activation)
    critic = _head(hidden_features, (), "", 1, 1.0, rngs, activation)
    return Sequential([*front, PPOAdapter(action=Sequential([*actor, *head.layers]), value=Sequential(critic))])
