"""Ready-made actor-critics from spaces or plain sizes."""

from multippo.networks.factories.actor_critics import (
    make_cnn_actor_critic,
    make_mlp,
    make_mlp_actor_critic,
    make_mlp_layers,
    make_recurrent_actor_critic,
)

__all__ = [
    "make_cnn_actor_critic",
    "make_mlp",
    "make_mlp_actor_critic",
    "make_mlp_layers",
    "make_recurrent_actor_critic",
]
