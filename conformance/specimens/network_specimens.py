"""Networks to act and train with, as users build them: every module meets every kind of neighbour."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

import multippo as mp

from .scripted_environment import NUM_ENVS, NUM_STEPS, ScriptedEnv, TracedEnv
from .specimen import NetworkSpecimen
from .user_modules import CentredTrace, MovingAverage, NoisyGain

CONTINUOUS = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
DISCRETE = gymnasium.spaces.Discrete(3)
_UNBOUNDED = gymnasium.spaces.Box(-np.inf, np.inf, (2,), np.float32)
_GRID = gymnasium.spaces.MultiDiscrete(np.asarray([[2], [3]]))
_TREE_OF_ACTIONS = gymnasium.spaces.Dict(
    arm=CONTINUOUS, hand=gymnasium.spaces.Dict(grid=_GRID, switches=gymnasium.spaces.MultiBinary((2, 2)))
)
_F = 5
_TREE = {"camera": (8,), "joints": (4,)}


def _masked(choices: int) -> gymnasium.spaces.Dict:
    mask = gymnasium.spaces.Box(0, 1, (choices,), np.int8)
    return gymnasium.spaces.Dict(position=gymnasium.spaces.Box(-np.inf, np.inf, (_F,)), action_mask=mask)


def ppo_config(**changes: Any) -> mp.PPOConfig:
    """Settings that use everything: epochs, minibatches, clipping of gradients and of ratios."""
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
    return mp.PPOConfig(**{**settings, **changes})


def _encoder_then_normalizer() -> mp.StatefulModule:
    actor = mp.Sequential(
        [
            mp.LSTM(6, 5, mp.Rngs(2)),
            mp.LSTM(5, 4, mp.Rngs(3)),
            mp.Dense(4, 4, mp.Rngs(4)),
            mp.NormalTanhSampler(mp.Rngs(5), 0.01),
        ]
    )
    critic = mp.Sequential([mp.Dense(6, 6, mp.Rngs(6), "swish"), mp.Dense(6, 1, mp.Rngs(7))])
    return mp.Sequential(
        [mp.Dense(_F, 6, mp.Rngs(1), "tanh"), mp.Normalizer(6), mp.PPOAdapter(action=actor, value=critic)]
    )


def _tree_of_heads() -> mp.StatefulModule:
    camera = mp.Sequential([mp.Normalizer(8), mp.Dense(8, 4, mp.Rngs(1), "relu")])
    encoder = mp.Concat(joints=mp.Sequential([mp.Normalizer(4), mp.LSTM(4, 4, mp.Rngs(2))]), camera=camera)
    split = mp.Sequential([mp.Dense(8, 7, mp.Rngs(3)), mp.Splitter(arm=4, gripper=3)])
    arm = mp.NormalTanhSampler(mp.Rngs(4), 0.01)
    pick = mp.CategoricalSampler(mp.Rngs(5), 0.01)
    actor = mp.Sequential([split, mp.Map(arm=arm, gripper=pick)])
    critic = mp.Parallel(
        arm=mp.Dense(8, 1, mp.Rngs(6)), gripper=mp.make_mlp([8, 4, 1], mp.Rngs(7), activation_last_layer=False)
    )
    return mp.Sequential([encoder, mp.PPOAdapter(action=actor, value=critic)])


def _asymmetric() -> mp.StatefulModule:
    sampler = mp.NormalSampler(mp.Rngs(3), 0.01, action_shape=2, state_dependent_std=False, initial_std=0.5)
    actor = mp.Sequential(
        [mp.Filter("joints"), mp.Normalizer(4), mp.Dense(4, 6, mp.Rngs(1), "tanh"), mp.Dense(6, 2, mp.Rngs(2)), sampler]
    )
    critic = mp.Sequential(
        [mp.Filter("camera"), mp.Normalizer(8), mp.LSTM(8, 5, mp.Rngs(4)), mp.Dense(5, 1, mp.Rngs(5))]
    )
    return mp.PPOAdapter(action=actor, value=critic)


def _user_defined() -> mp.StatefulModule:
    trunk = [mp.Dense(_F, 4, mp.Rngs(1), "tanh"), NoisyGain(4, mp.Rngs(2)), MovingAverage(4, 3), CentredTrace(4)]
    actor = mp.Sequential([mp.Dense(4, 3, mp.Rngs(3)), mp.CategoricalSampler(mp.Rngs(4), 0.02)])
    return mp.Sequential([*trunk, mp.PPOAdapter(action=actor, value=mp.Dense(4, 1, mp.Rngs(5)))])


NETWORKS: tuple[NetworkSpecimen, ...] = (
    NetworkSpecimen(
        "MLP, continuous",
        lambda: mp.make_mlp_actor_critic(_F, CONTINUOUS, (6,), (6,), mp.Rngs(0), entropy_weight=0.01),
        lambda: ScriptedEnv((_F,), CONTINUOUS, offset=3.0, scale=2.0),
        obs_statistics=(3.0, 2.0),
        sequence_length=1,
        ppo=ppo_config(),
        trained_in=("float32",),
        by_train_ppo=True,
    ),
    NetworkSpecimen(
        # More than 100 numbers, as small arrays are copied anyway, and memory shared by mistake would not be seen.
        "MLP, discrete, large observations, skipped steps, options",
        lambda: mp.make_mlp_actor_critic(128, DISCRETE, (8,), (8,), mp.Rngs(0), activation="relu"),
        lambda: ScriptedEnv((128,), DISCRETE, offset=-40.0, scale=15.0, may_skip=True),
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
        "LSTM, separate trunks",
        lambda: mp.make_recurrent_actor_critic(_F, CONTINUOUS, 5, mp.Rngs(0), encoder_sizes=(6,), entropy_weight=0.01),
        lambda: ScriptedEnv((_F,), CONTINUOUS),
    ),
    NetworkSpecimen(
        "LSTM, shared trunk, trainable initial state",
        lambda: mp.make_recurrent_actor_critic(
            _F,
            DISCRETE,
            5,
            mp.Rngs(0),
            encoder_sizes=(),
            actor_hidden_sizes=(4,),
            shared=True,
            entropy_weight=0.02,
            trainable_initial_state=True,
        ),
        lambda: ScriptedEnv((_F,), DISCRETE),
        sequence_length=12,
        # One minibatch, so that the first and the last of an iteration are whole epochs.
        ppo=ppo_config(num_minibatches=1, value_clip_range=0.2),
    ),
    NetworkSpecimen(
        "LSTM, shared trunk, skipped steps",
        lambda: mp.make_recurrent_actor_critic(_F, CONTINUOUS, 5, mp.Rngs(0), encoder_sizes=(4,), shared=True),
        lambda: ScriptedEnv((_F,), CONTINUOUS, may_skip=True),
    ),
    NetworkSpecimen(
        "encoder, Normalizer, two LSTMs, adaptive rate",
        _encoder_then_normalizer,
        lambda: ScriptedEnv((_F,), CONTINUOUS),
        sequence_length=4,
        ppo=ppo_config(num_epochs=1, lr_schedule="adaptive_kl", desired_kl=5e-6),
        shows=("kl/approx", "learning_rate", "learning_rate/change"),
    ),
    NetworkSpecimen(
        "nested containers, dict observations, actions and rewards",
        _tree_of_heads,
        lambda: ScriptedEnv(
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
        "LSTM, masked actions, skipped steps",
        lambda: mp.make_recurrent_actor_critic(
            _masked(3), DISCRETE, 5, mp.Rngs(0), encoder_sizes=(4,), shared=True, entropy_weight=0.02
        ),
        lambda: ScriptedEnv({"position": (_F,)}, DISCRETE, may_skip=True, mask_size=3),
        ppo=ppo_config(clip_range=0.005),
    ),
    NetworkSpecimen(
        "MLP, several choices, masked",
        lambda: mp.make_mlp_actor_critic(_masked(5), _GRID, (6,), (6,), mp.Rngs(0), entropy_weight=0.02),
        lambda: ScriptedEnv({"position": (_F,)}, _GRID, offset=3.0, scale=2.0, mask_size=5),
        obs_statistics=(3.0, 2.0),
        sequence_length=1,
    ),
    NetworkSpecimen(
        "LSTM, a tree of actions",
        lambda: mp.make_recurrent_actor_critic(
            _F, _TREE_OF_ACTIONS, 5, mp.Rngs(0), encoder_sizes=(), entropy_weight=0.02
        ),
        lambda: ScriptedEnv((_F,), _TREE_OF_ACTIONS),
        ppo=ppo_config(num_epochs=1),
    ),
    NetworkSpecimen(
        "asymmetric actor and critic, plain Gaussian",
        _asymmetric,
        lambda: ScriptedEnv(_TREE, _UNBOUNDED),
    ),
    NetworkSpecimen(
        "user-defined modules, skipped steps",
        _user_defined,
        lambda: ScriptedEnv((_F,), DISCRETE, may_skip=True),
        ppo=ppo_config(),
    ),
    NetworkSpecimen(
        "LSTM, functional environment",
        lambda: mp.make_recurrent_actor_critic(_F, CONTINUOUS, 4, mp.Rngs(0), encoder_sizes=(), shared=True),
        lambda: TracedEnv(ScriptedEnv((_F,), CONTINUOUS)),
        ppo=ppo_config(),
        trained_in=("float32",),
        requires=("jax",),
    ),
)
