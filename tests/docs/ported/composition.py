"""nnx-ppo's second tutorial: networks put together from containers."""

from multippo import nnx
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Concat, Parallel, Sequential
from multippo.networks.factories import make_mlp
from multippo.networks.feedforward import Dense
from multippo.networks.normalizer import Normalizer
from multippo.networks.sampling_layers import NormalTanhSampler
from multippo.networks.utils import Filter, Flattener, Map


def by_hand(obs_size=8, action_size=2):
    rngs = nnx.Rngs(0)
    actor = Sequential(
        [
            Dense(obs_size, 16, rngs, activation=nnx.swish),
            Dense(16, 2 * action_size, rngs),
            NormalTanhSampler(rngs, entropy_weight=1e-2, min_std=0.1),
        ]
    )
    critic = Sequential([Dense(obs_size, 16, rngs, activation=nnx.swish), Dense(16, 1, rngs)])
    return Sequential([Normalizer(obs_size), PPOAdapter(action=actor, value=critic)])


def shared_trunk(proprio=12, goal=4, action_size=3, hidden=16):
    """Observation ``{"proprio", "goal"}``."""
    rngs = nnx.Rngs(0)
    trunk = Sequential(
        [
            Concat(
                proprio=make_mlp([proprio, hidden], rngs, activation=nnx.swish, activation_last_layer=True),
                goal=make_mlp([goal, hidden], rngs, activation=nnx.swish, activation_last_layer=True),
            ),
            make_mlp([2 * hidden, hidden], rngs, activation=nnx.swish, activation_last_layer=True),
        ]
    )
    actor_head = make_mlp([hidden, 2 * action_size], rngs, activation=nnx.swish, activation_last_layer=False)
    critic_head = make_mlp([hidden, 1], rngs, activation=nnx.swish, activation_last_layer=False)
    sampler = NormalTanhSampler(rngs, entropy_weight=1e-2, min_std=0.1)
    return Sequential([trunk, PPOAdapter(action=Sequential([actor_head, sampler]), value=critic_head)])


def several_heads(hidden=8):
    rngs = nnx.Rngs(0)
    sizes = {"action_arm": 4, "action_leg": 6, "value_arm": 1, "value_leg": 1}
    heads = Parallel({name: Dense(hidden, size, rngs) for name, size in sizes.items()})
    ports = PPOAdapter(
        action=Sequential(
            [
                Filter({"arm": "action_arm", "leg": "action_leg"}),
                Map({name: NormalTanhSampler(rngs, entropy_weight=1e-2) for name in ("arm", "leg")}),
            ]
        ),
        value=Filter({"arm": "value_arm", "leg": "value_leg"}),
    )
    return Sequential([heads, ports])


def privileged_critic(proprio=6, goal=3, action_size=2):
    """Observation ``{"proprio", "goal": {"direction", "dist"}}``."""
    rngs = nnx.Rngs(0)
    actor = Sequential(
        [
            Filter({"proprio": ("proprio",)}),
            Flattener(),
            Dense(proprio, 2 * action_size, rngs),
            NormalTanhSampler(rngs, entropy_weight=1e-2),
        ]
    )
    critic = Sequential(
        [
            Filter({"proprio": ("proprio",), "goal": ("goal",), "distance": ("goal", "dist")}),
            Flattener(),
            Dense(proprio + goal + 1 + 1, 1, rngs),
        ]
    )
    normalizer = Normalizer({"proprio": proprio, "goal": {"direction": goal, "dist": 1}})
    return Sequential([normalizer, PPOAdapter(action=actor, value=critic)])
