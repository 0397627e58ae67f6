"""Ready-made actor-critics from spaces or plain sizes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np

from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Sequential
from multippo.networks.feedforward import Activation, Dense
from multippo.networks.initializers import Initializer, orthogonal
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import LSTM
from multippo.networks.sampling_layers import CategoricalSampler, NormalTanhSampler
from multippo.networks.types import StatefulModule
from multippo.rngs import Rngs

__all__ = ["make_mlp", "make_mlp_actor_critic", "make_mlp_layers", "make_recurrent_actor_critic"]

Size = int | gymnasium.Space[Any]

_HIDDEN_GAIN = 2.0**0.5


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
        sizes: At least two sizes.
        rngs: Where initial kernels are drawn from.
        activation: Of every layer, by name or as a callable.
        activation_last_layer: Whether the last layer has it too.
        kernel_init: Initialiser of the kernels; orthogonal with gain sqrt(2) by default.
        last_kernel_init: Initialiser of the last kernel; like the others by default.
    """
    if len(sizes) < 2:
        raise ValueError(f"sizes={list(sizes)} is not possible: expected an input and an output size at least.")
    kernel_init = kernel_init or orthogonal(_HIDDEN_GAIN)
    layers: list[Dense] = []
    for index, (fan_in, fan_out) in enumerate(itertools.pairwise(sizes)):
        last = index == len(sizes) - 2
        init = last_kernel_init if last and last_kernel_init is not None else kernel_init
        act = activation if activation_last_layer or not last else None
        layers.append(Dense(fan_in, fan_out, rngs, act, kernel_init=init))
    return layers


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
    return Sequential(
        make_mlp_layers(
            sizes,
            rngs,
            activation,
            activation_last_layer,
            kernel_init=kernel_init,
            last_kernel_init=last_kernel_init,
        )
    )


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
    min_std: float = 0.1,
    std_scale: float = 1.0,
) -> StatefulModule:
    """A feed-forward actor and a feed-forward critic, side by side.

    Args:
        observation: Observation space (a Box of one axis), or the number of features.
        action: Action space (Box or Discrete), or the number of continuous actions.
        actor_hidden_sizes: Hidden layers of the actor.
        critic_hidden_sizes: Hidden layers of the critic.
        rngs: Where initial weights and the sampler's key are drawn from; ``Rngs(0)`` by default.
        activation: Of the hidden layers.
        normalize_obs: Put a ``Normalizer`` in front.
        entropy_weight: Weight of the entropy bonus.
        min_std: See ``NormalTanhSampler``.
        std_scale: See ``NormalTanhSampler``.

    Returns:
        A network whose output is a ``PPONetworkOutput``.

    Raises:
        ValueError: If a space is not supported; the error names it.
    """
    rngs = rngs or Rngs(0)
    features = observation_features(observation)
    parameters, sampler = _action_head(action, rngs, entropy_weight, min_std, std_scale)
    actor = make_mlp_layers(
        [features, *actor_hidden_sizes, parameters],
        rngs,
        activation,
        activation_last_layer=False,
        last_kernel_init=orthogonal(0.01),
    )
    critic = make_mlp(
        [features, *critic_hidden_sizes, 1],
        rngs,
        activation,
        activation_last_layer=False,
        last_kernel_init=orthogonal(1.0),
    )
    adapter = PPOAdapter(action=Sequential([*actor, sampler]), value=critic)
    return Sequential([Normalizer(features), adapter]) if normalize_obs else adapter


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
    min_std: float = 0.1,
    std_scale: float = 1.0,
    trainable_initial_state: bool = False,
) -> StatefulModule:
    """Recurrent actor and critic: normaliser, dense encoder, recurrent layer, heads.

    Args:
        observation: Observation space (a Box of one axis), or the number of features.
        action: Action space (Box or Discrete), or the number of continuous actions.
        hidden_features: Units of a recurrent layer.
        rngs: Where initial weights and the sampler's key are drawn from; ``Rngs(0)`` by default.
        cell: Which recurrent layer: "lstm".
        encoder_sizes: Dense layers before the recurrent layer.
        actor_hidden_sizes: Dense layers between the recurrent layer and the action parameters.
        critic_hidden_sizes: Dense layers between the recurrent layer and the value.
        shared: One recurrent trunk for actor and critic, instead of one each.
        activation: Of the dense layers.
        normalize_obs: Put a ``Normalizer`` in front.
        entropy_weight: Weight of the entropy bonus.
        min_std: See ``NormalTanhSampler``.
        std_scale: See ``NormalTanhSampler``.
        trainable_initial_state: See ``LSTM``.

    Returns:
        A network whose output is a ``PPONetworkOutput``.

    Raises:
        ValueError: If a space or the cell is not supported; the error names it.
    """
    rngs = rngs or Rngs(0)
    if cell not in _CELLS:
        raise ValueError(f"Unknown recurrent cell {cell!r}; expected one of {', '.join(sorted(_CELLS))}.")
    features = observation_features(observation)
    parameters, sampler = _action_head(action, rngs, entropy_weight, min_std, std_scale)

    def trunk() -> list[StatefulModule]:
        sizes = [features, *encoder_sizes]
        encoder = make_mlp_layers(sizes, rngs, activation) if encoder_sizes else []
        core = _CELLS[cell](sizes[-1], hidden_features, rngs, trainable_initial_state=trainable_initial_state)
        return [*encoder, core]

    def head(hidden: Sequence[int], outputs: int, gain: float) -> list[Dense]:
        sizes = [hidden_features, *hidden, outputs]
        return make_mlp_layers(sizes, rngs, activation, activation_last_layer=False, last_kernel_init=orthogonal(gain))

    front: list[StatefulModule] = [Normalizer(features)] if normalize_obs else []
    if shared:
        front += trunk()
    actor = [*([] if shared else trunk()), *head(actor_hidden_sizes, parameters, 0.01), sampler]
    critic = [*([] if shared else trunk()), *head(critic_hidden_sizes, 1, 1.0)]
    return Sequential([*front, PPOAdapter(action=Sequential(actor), value=Sequential(critic))])


_CELLS: dict[str, Any] = {"lstm": LSTM}


def observation_features(observation: Size) -> int:
    """The number of features of a flat observation.

    Raises:
        ValueError: If the space is no Box of one axis.
    """
    if isinstance(observation, int | np.integer) and not isinstance(observation, bool) and observation >= 1:
        return int(observation)
    if isinstance(observation, gymnasium.spaces.Box) and len(observation.shape) == 1 and observation.shape[0]:
        return int(observation.shape[0])
    raise ValueError(
        f"The ready-made networks take a Box observation of one axis, or a number of features; got {observation}. "
        "Flatten it with gymnasium.wrappers.FlattenObservation, or compose a network of containers."
    )


def _action_head(
    action: Size, rngs: Rngs, entropy_weight: float, min_std: float, std_scale: float
) -> tuple[int, StatefulModule]:
    """How many parameters the actor yields, and the sampler that takes them."""
    if isinstance(action, gymnasium.spaces.Discrete):
        return int(action.n), CategoricalSampler(rngs, entropy_weight)
    if isinstance(action, gymnasium.spaces.Box) and len(action.shape) == 1 and np.issubdtype(action.dtype, np.floating):
        action = int(action.shape[0])
    if isinstance(action, int | np.integer) and not isinstance(action, bool) and action >= 1:
        return 2 * int(action), NormalTanhSampler(rngs, entropy_weight, min_std, std_scale)
    raise ValueError(
        f"The ready-made networks take a floating-point Box action of one axis, a Discrete one, or a number of "
        f"continuous actions; got {action}. Compose a network with the samplers you need."
    )
