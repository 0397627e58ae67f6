"""Networks to act and train with: what users build, composed so that every module meets every kind of neighbour."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

from multippo.algorithms.config import PPOConfig
from multippo.networks.adapter import PPOAdapter
from multippo.networks.containers import Concat, Filter, Map, Parallel, Sequential, Splitter
from multippo.networks.factories import make_mlp, make_mlp_actor_critic, make_recurrent_actor_critic
from multippo.networks.feedforward import Dense
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import LSTM
from multippo.networks.sampling_layers import CategoricalSampler, NormalSampler, NormalTanhSampler
from multippo.networks.types import StatefulModule
from multippo.rngs import Rngs

from .custom import CentredTrace, MovingAverage, NoisyGain
from .environment import NUM_ENVS, NUM_STEPS, ScriptedEnv
from .specimens import NetworkSpecimen
from .traced_environment import TracedEnv

__all__ = ["CONTINUOUS", "DISCRETE", "NETWORKS", "ppo_config"]

CONTINUOUS = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(3)
_UNBOUNDED = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
_GRID = gymnasium.spaces.MultiDiscrete(np.asarray([[2], [3]]))
_TREE_OF_ACTIONS = gymnasium.spaces.Dict(
    arm=CONTINUOUS, hand=gymnasium.spaces.Dict(grid=_GRID, switches=gymnasium.spaces.MultiBinary((2, 2)))
)
_MASKED = gymnasium.spaces.Dict(
    position=gymnasium.spaces.Box(-np.inf, np.inf, (5,)), action_mask=gymnasium.spaces.Box(0, 1, (3,), np.int8)
)
_MASKED_GRID = gymnasium.spaces.Dict(
    position=gymnasium.spaces.Box(-np.inf, np.inf, (5,)), action_mask=gymnasium.spaces.Box(0, 1, (5,), np.int8)
)

_F = 5
_TREE = {"camera": (8,), "joints": (4,)}


def ppo_config(**changes: Any) -> PPOConfig:
    """A configuration in which everything happens: epochs, minibatches, clipping of gradients and of ratios."""
    settings: dict[str, Any] = {
        "num_envs": NUM_ENVS,
        "rollout_length": NUM_STEPS,
        "num_epochs": 2,
        "num_minibatches": 3,
        "total_steps": 4 * NUM_ENVS * NUM_STEPS,
        "gradient_clipping": 0.05,
        "clip_range": 0.02,
        "learning_rate": 1e-2,
        "lr_schedule": "constant",
        "normalize_advantages": True,
    }
    return PPOConfig(**{**settings, **changes})


def _encoder_then_normalizer() -> StatefulModule:
    actor = Sequential(
        [LSTM(6, 5, Rngs(2)), LSTM(5, 4, Rngs(3)), Dense(4, 4, Rngs(4)), NormalTanhSampler(Rngs(5), 0.01)]
    )
    critic = Sequential([Dense(6, 6, Rngs(6), "swish"), Dense(6, 1, Rngs(7))])
    return Sequential([Dense(_F, 6, Rngs(1), "tanh"), Normalizer(6), PPOAdapter(action=actor, value=critic)])


def _tree_of_heads() -> StatefulModule:
    camera = Sequential([Normalizer(8), Dense(8, 4, Rngs(1), "relu")])
    encoder = Concat(joints=Sequential([Normalizer(4), LSTM(4, 4, Rngs(2))]), camera=camera)
    split = Sequential([Dense(8, 7, Rngs(3)), Splitter(arm=4, gripper=3)])
    arm = NormalTanhSampler(Rngs(4), 0.01)
    pick = CategoricalSampler(Rngs(5), 0.01)
    actor = Sequential([split, Map(arm=arm, gripper=pick)])
    critic = Parallel(arm=Dense(8, 1, Rngs(6)), gripper=make_mlp([8, 4, 1], Rngs(7), activation_last_layer=False))
    return Sequential([encoder, PPOAdapter(action=actor, value=critic)])


def _asymmetric() -> StatefulModule:
    sampler = NormalSampler(Rngs(3), 0.01, action_shape=2, state_dependent_std=False, initial_std=0.5)
    actor = Sequential([Filter("joints"), Normalizer(4), Dense(4, 6, Rngs(1), "tanh"), Dense(6, 2, Rngs(2)), sampler])
    critic = Sequential([Filter("camera"), Normalizer(8), LSTM(8, 5, Rngs(4)), Dense(5, 1, Rngs(5))])
    return PPOAdapter(action=actor, value=critic)


def _user_defined() -> StatefulModule:
    trunk = [Dense(_F, 4, Rngs(1), "tanh"), NoisyGain(4, Rngs(2)), MovingAverage(4, 3), CentredTrace(4)]
    actor = Sequential([Dense(4, 3, Rngs(3)), CategoricalSampler(Rngs(4), 0.02)])
    return Sequential([*trunk, PPOAdapter(action=actor, value=Dense(4, 1, Rngs(5)))])


NETWORKS: tuple[NetworkSpecimen, ...] = (
    NetworkSpecimen(
        name="MLP, continuous",
        build=lambda: make_mlp_actor_critic(_F, CONTINUOUS, (6,), (6,), Rngs(0), entropy_weight=0.01),
        env=lambda: ScriptedEnv((_F,), CONTINUOUS, offset=3.0, scale=2.0),
        obs_statistics=(3.0, 2.0),
        sequence_length=1,
        ppo=ppo_config(),
        trained_in=("float32",),
        by_train_ppo=True,
    ),
    NetworkSpecimen(
        # More than 100 numbers: small arrays are copied anyway, so that memory shared by mistake would not be seen.
        name="MLP, discrete, large observations, skipped steps, options",
        build=lambda: make_mlp_actor_critic(128, DISCRETE, (8,), (8,), Rngs(0), activation="relu"),
        env=lambda: ScriptedEnv((128,), DISCRETE, offset=-40.0, scale=15.0, may_skip=True),
        obs_statistics=(-40.0, 15.0),
        sequence_length=4,
        ppo=ppo_config(
            total_steps=8 * NUM_ENVS * NUM_STEPS,
            num_epochs=3,
            value_clip_range=0.1,
            weight_decay=0.1,
            lr_schedule="cosine",
            learning_rate_warmup=4,
            target_kl=5e-3,
            entropy_weight=0.05,
            entropy_schedule="linear",
            scale_rewards=True,
            reward_clip=0.3,
            advantage_normalization="batch",
            recompute_advantages=True,
        ),
        shows=(
            "value/clip_fraction",
            "reward/clip_fraction",
            "kl/approx",
            "kl/stop",
            "update/minibatches",
            "losses/entropy",
            "entropy/weight",
            "learning_rate",
        ),
    ),
    NetworkSpecimen(
        name="LSTM, separate trunks",
        build=lambda: make_recurrent_actor_critic(_F, CONTINUOUS, 5, Rngs(0), encoder_sizes=(6,), entropy_weight=0.01),
        env=lambda: ScriptedEnv((_F,), CONTINUOUS),
    ),
    NetworkSpecimen(
        name="LSTM, shared trunk, trainable initial state",
        build=lambda: make_recurrent_actor_critic(
            _F,
            DISCRETE,
            5,
            Rngs(0),
            encoder_sizes=(),
            actor_hidden_sizes=(4,),
            shared=True,
            entropy_weight=0.02,
            trainable_initial_state=True,
        ),
        env=lambda: ScriptedEnv((_F,), DISCRETE),
        sequence_length=12,
        # One minibatch, so that the first and the last of an iteration are whole epochs.
        ppo=ppo_config(num_minibatches=1, value_clip_range=0.2),
    ),
    NetworkSpecimen(
        name="LSTM, shared trunk, skipped steps",
        build=lambda: make_recurrent_actor_critic(_F, CONTINUOUS, 5, Rngs(0), encoder_sizes=(4,), shared=True),
        env=lambda: ScriptedEnv((_F,), CONTINUOUS, may_skip=True),
    ),
    NetworkSpecimen(
        name="encoder, Normalizer, two LSTMs, adaptive rate",
        build=_encoder_then_normalizer,
        env=lambda: ScriptedEnv((_F,), CONTINUOUS),
        sequence_length=4,
        ppo=ppo_config(num_epochs=1, lr_schedule="adaptive_kl", desired_kl=5e-6),
        shows=("kl/approx", "learning_rate", "learning_rate/change"),
    ),
    NetworkSpecimen(
        name="nested containers, dict observations, actions and rewards",
        build=_tree_of_heads,
        env=lambda: ScriptedEnv(
            _TREE,
            gymnasium.spaces.Dict({"arm": CONTINUOUS, "gripper": DISCRETE}),
            scale=0.5,
            offset=1.0,
            reward_keys=("arm", "gripper"),
        ),
        obs_statistics=(1.0, 0.5),
        ppo=ppo_config(combine_advantages="separate", num_epochs=1),
    ),
    NetworkSpecimen(
        name="LSTM, masked actions, skipped steps",
        build=lambda: make_recurrent_actor_critic(
            _MASKED, DISCRETE, 5, Rngs(0), encoder_sizes=(4,), shared=True, entropy_weight=0.02
        ),
        env=lambda: ScriptedEnv({"position": (_F,)}, DISCRETE, may_skip=True, mask_size=3),
        ppo=ppo_config(clip_range=0.005),
    ),
    NetworkSpecimen(
        name="MLP, several choices, masked",
        build=lambda: make_mlp_actor_critic(_MASKED_GRID, _GRID, (6,), (6,), Rngs(0), entropy_weight=0.02),
        env=lambda: ScriptedEnv({"position": (_F,)}, _GRID, offset=3.0, scale=2.0, mask_size=5),
        obs_statistics=(3.0, 2.0),
        sequence_length=1,
    ),
    NetworkSpecimen(
        name="LSTM, a tree of actions",
        build=lambda: make_recurrent_actor_critic(
            _F, _TREE_OF_ACTIONS, 5, Rngs(0), encoder_sizes=(), entropy_weight=0.02
        ),
        env=lambda: ScriptedEnv((_F,), _TREE_OF_ACTIONS),
        ppo=ppo_config(num_epochs=1),
    ),
    NetworkSpecimen(
        name="asymmetric actor and critic, plain Gaussian",
        build=_asymmetric,
        env=lambda: ScriptedEnv(_TREE, _UNBOUNDED),
    ),
    NetworkSpecimen(
        name="user-defined modules, skipped steps",
        build=_user_defined,
        env=lambda: ScriptedEnv((_F,), DISCRETE, may_skip=True),
        ppo=ppo_config(),
    ),
    NetworkSpecimen(
        name="LSTM, functional environment",
        build=lambda: make_recurrent_actor_critic(_F, CONTINUOUS, 4, Rngs(0), encoder_sizes=(), shared=True),
        env=lambda: TracedEnv(ScriptedEnv((_F,), CONTINUOUS)),
        ppo=ppo_config(),
        trained_in=("float32",),
        requires=("jax",),
    ),
)
