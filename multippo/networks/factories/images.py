"""A ready-made actor-critic for images."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.arguments import known_keywords
from multippo.networks.activations import Activation
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Sequential
from multippo.networks.convolution import Conv
from multippo.networks.factories.actions import Distribution, SamplerOptions, action_layers
from multippo.networks.factories.observations import Size
from multippo.networks.feedforward import Dense
from multippo.networks.initializers import orthogonal
from multippo.networks.tree_layers import Flattener, Scale
from multippo.networks.types import StatefulModule
from multippo.rngs import Rngs

_HIDDEN_GAIN = 2.0**0.5


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
    activation: Activation = "relu",
    entropy_weight: float = 0.0,
    distribution: Distribution | None = None,
    min_std: float = 0.1,
    std_scale: float = 1.0,
) -> StatefulModule:
    """Convolutions and a dense layer that actor and critic share, then a dense head for each.

    The sizes by default are those of Mnih et al. (2015, doi:10.1038/nature14236, Methods), for images of at least 36
    by 36 pixels. Bytes stay bytes where rollouts are stored; the network divides them by 255, whatever their shape: to
    ask for convolutions is to say that they are an image. Kernels are orthogonal at first, with gain sqrt(2), 0.01 in
    the actor's head and 1 in the critic's.

    Args:
        observation: A Box of shape ``(height, width, channels)``, of ``uint8`` or of floating-point numbers, which are
            taken as they are.
        action: See ``make_mlp_actor_critic``.
        rngs: Source of initial weights and the samplers' keys; ``Rngs(0)`` by default.
        channels: Output channels of each convolution.
        kernel_sizes: Height and width of each kernel.
        strides: Stride of each convolution.
        hidden_features: Units of the shared dense layer.
        activation: Of the convolutions and the dense layer.
        entropy_weight: Weight of the entropy bonus.
        distribution: See ``make_mlp_actor_critic``.
        min_std: Least standard deviation of a Box's actions, before scaling; see the samplers.
        std_scale: Multiplies the standard deviation of a Box's actions.

    Returns:
        A network whose output is a ``PPONetworkOutput``.

    Raises:
        ValueError: If the observation is not an image, or too small for the kernels; if the sizes of the convolutions
            are not equally many; or if the action space is not supported. The error says what was expected.
    """
    rngs = rngs or Rngs(0)
    if not isinstance(observation, spaces.Box) or len(observation.shape) != 3:
        raise ValueError(
            f"make_cnn_actor_critic got the observation space {observation}; expected a Box of shape (height, width, "
            "channels). For vectors there is make_mlp_actor_critic; for both at once, compose a network of containers."
        )
    if not len(channels) == len(kernel_sizes) == len(strides) >= 1:
        raise ValueError(
            f"channels={list(channels)}, kernel_sizes={list(kernel_sizes)} and strides={list(strides)} are not "
            "possible together: expected one entry for each convolution in all three, and at least one convolution."
        )
    gain = orthogonal(_HIDDEN_GAIN)
    front: list[StatefulModule] = [Scale(1.0 / 255.0)] if observation.dtype == np.uint8 else []
    shape: tuple[int, ...] = observation.shape
    for size, kernel, stride in zip(channels, kernel_sizes, strides, strict=True):
        conv = Conv(shape[-1], size, kernel, rngs, stride=stride, activation=activation, kernel_init=gain)
        shape = conv.output_shape(shape)
        front.append(conv)
    front += [Flattener(), Dense(math.prod(shape), hidden_features, rngs, activation, kernel_init=gain)]
    head = action_layers(action, rngs, SamplerOptions(entropy_weight, distribution, min_std, std_scale), None)
    actor = Dense(hidden_features, head.num_parameters, rngs, kernel_init=orthogonal(0.01))
    critic = Dense(hidden_features, 1, rngs, kernel_init=orthogonal(1.0))
    return Sequential([*front, PPOAdapter(action=Sequential([actor, *head.layers]), value=Sequential([critic]))])
