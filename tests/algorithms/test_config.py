"""What a configuration refuses, and what it derives."""

import dataclasses
import json
import math
import pickle
import re

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig

CONFIGS = (PPOConfig, EvalConfig, TrainConfig, mp.DistillationConfig, mp.DistillationTrainConfig)


def test_every_field_refuses_what_it_can_not_be():
    for config in CONFIGS:
        for field in dataclasses.fields(config):
            with pytest.raises(ValueError, match=re.escape(f"{field.name}={NotImplemented!r}")) as caught:
                config(**{field.name: NotImplemented})
            assert "expected" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("num_envs", [0, 2.0, True, 2**20 + 1]),
        ("discounting_factor", [-0.1, 1.1]),
        ("learning_rate", [math.nan, -1.0, "1e-4"]),
        ("clip_range", [0.0, math.inf]),
        ("learning_rate_warmup", [-1, 0.1]),
        ("min_learning_rate", [0.0, 0.1]),  # above the largest
        ("adam_betas", [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), ("0.9", 0.9)]),
    ],
)
def test_numbers_out_of_range(field, wrong):
    for value in wrong:
        with pytest.raises(ValueError, match=re.escape(f"{field}={value!r}")):
            PPOConfig(**{field: value})


ADAPTIVE = {"lr_schedule": "adaptive_kl", "min_learning_rate": 1e-3, "max_learning_rate": 1e-2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**ADAPTIVE, "learning_rate": 0.1}, r"learning_rate=0\.1 .* min_learning_rate=0\.001 and 0\.01"),
        ({"rollout_length": 12, "sequence_length": 5}, "sequence_length=5 does not divide rollout_length=12"),
        # 6 environments x (12 / 12) sequences = 6, which 4 does not divide.
        (
            {"num_envs": 6, "rollout_length": 12, "sequence_length": 12, "num_minibatches": 4},
            r"num_envs=6 .* 6 sequences .* num_minibatches=4.*shorter",
        ),
        ({"desired_kl": 0.02}, "desired_kl=0.02 has no effect with lr_schedule='linear'.*set lr_schedule='ad"),
    ],
)
def test_fields_that_do_not_go_together(fields, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**fields)


def test_fields_that_go_together():
    for rate in (1e-3, 1e-2):
        assert PPOConfig(**ADAPTIVE, learning_rate=rate)
    assert PPOConfig(entropy_schedule="linear", entropy_weight=0.0, discounting_factor=1, gae_lambda=0)
    # What is not a number of environments is known once there are some.
    with pytest.raises(ValueError, match="num_envs is not set"):
        _ = PPOConfig().num_iterations


def test_numbers_of_numpy_are_numbers():
    config = mp.PPOConfig(
        rollout_length=np.int64(16), learning_rate=np.float32(0.25), scale_rewards=np.bool_(False), adam_betas=(0, 0.5)
    )
    assert (config.rollout_length, config.learning_rate, config.scale_rewards) == (16, 0.25, False)
    # torch takes no integer among them.
    assert [type(value) for value in (config.rollout_length, *config.adam_betas)] == [int, float, float]
    assert mp.TrainConfig(seed=np.uint32(3)).seed == 3 and mp.EvalConfig(num_envs=np.int8(2)).num_envs == 2
    assert json.dumps(dataclasses.asdict(config))


def test_iterations_are_rounded_up():
    # 100 steps in iterations of 4 x 8 = 32: 4 of them, 128 steps.
    config = PPOConfig(num_envs=4, rollout_length=8, total_steps=100)
    assert (config.steps_per_iteration, config.num_iterations) == (32, 4)
    assert dataclasses.replace(config, total_steps=96).num_iterations == 3


@pytest.mark.parametrize("fields", [{"every_steps": 25_000}, {"deterministic": False}])
def test_saying_how_to_evaluate_asks_for_evaluations(fields):
    assert EvalConfig(**fields).enabled
    assert not EvalConfig(enabled=False, **fields).enabled
    assert not EvalConfig().enabled
    # What is made of a configuration does not change what it says.
    off = EvalConfig(enabled=False, **fields)
    assert dataclasses.replace(off, max_episode_steps=7) == EvalConfig(enabled=False, max_episode_steps=7, **fields)
    assert EvalConfig(**dataclasses.asdict(EvalConfig())) == EvalConfig()
    assert pickle.loads(pickle.dumps(off)) == off


def test_an_unknown_field_is_answered_with_the_nearest():
    expected = "PPOConfig() got an unexpected keyword argument 'gamma'. Did you mean 'discounting_factor'?"
    with pytest.raises(TypeError, match=re.escape(expected)):
        PPOConfig(gamma=0.9)
