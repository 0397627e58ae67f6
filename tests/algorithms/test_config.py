"""What a configuration refuses, and what it derives."""

import dataclasses
import inspect
import json
import pickle
import re
from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig

INFINITY, NAN = float("inf"), float("nan")
WRONG: dict[str, list[Any]] = {
    "num_envs": [0, 2.0, 2**20 + 1],
    "rollout_length": [0, True, 2**24 + 1],
    "total_steps": [-1],
    "num_epochs": [0],
    "num_minibatches": [1.5],
    "sequence_length": [0],
    "discounting_factor": [1.1],
    "gae_lambda": [-0.1],
    "learning_rate": [NAN, "1e-4"],
    "weight_decay": [-1.0],
    "critic_loss_weight": [INFINITY],
    "clip_range": [0.0],
    "adam_epsilon": [0],
    "value_clip_range": [0.0],
    "gradient_clipping": [-0.5],
    "target_kl": [0],
    "lr_schedule": ["sine", None],
    "combine_advantages": ["max"],
    "learning_rate_warmup": [-1, 0.1, True],
    "desired_kl": [0.0],
    "min_learning_rate": [0.0, 0.1],  # above the largest
    "max_learning_rate": [INFINITY],
    "adam_betas": [0.9, (0.9,), (0.9, 1.0), (-0.1, 0.9), ("0.9", 0.9)],
    "advantage_normalization": ["rollout"],
    "recompute_advantages": ["yes"],
    "normalize_advantages": [1],
    "scale_rewards": [None],
    "reward_clip": [0.0],
    "entropy_weight": [-0.01, "0.01"],
    "entropy_schedule": ["cosine"],
}


@pytest.mark.parametrize("field", WRONG)
def test_a_wrong_field_is_named_with_what_was_received(field):
    for wrong in WRONG[field]:
        with pytest.raises(ValueError, match=re.escape(f"{field}={wrong!r}")) as caught:
            PPOConfig(**{field: wrong})
        assert "expected" in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "fields"),
    [
        (EvalConfig, {"num_episodes": [0], "every_steps": [0], "max_episode_steps": [0], "enabled": [1]}),
        (TrainConfig, {"seed": [-1, 2**63], "compile": ["yes"], "checkpoint_every_steps": [0], "ppo": [{}]}),
        (TrainConfig, {"checkpoint_at_evals": [1], "log_every_steps": [-1], "eval": [None]}),
        (mp.DistillationConfig, {"loss": ["mse"], "lr_schedule": ["adaptive_kl"], "rollout_length": [0]}),
        (mp.DistillationConfig, {"learning_rate": [-1.0]}),
        (mp.DistillationTrainConfig, {"distillation": [mp.PPOConfig()], "seed": [-1]}),
    ],
)
def test_the_other_configurations_too(config, fields):
    for field, values in fields.items():
        for wrong in values:
            with pytest.raises(ValueError, match=field):
                config(**{field: wrong})


ADAPTIVE = {"lr_schedule": "adaptive_kl", "min_learning_rate": 1e-3, "max_learning_rate": 1e-2}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({**ADAPTIVE, "learning_rate": 0.1}, r"learning_rate=0\.1 .* min_learning_rate=0\.001 and 0\.01"),
        ({"entropy_schedule": "linear"}, "entropy_schedule='linear' needs an entropy_weight"),
        ({"rollout_length": 12, "sequence_length": 5}, "sequence_length=5 does not divide rollout_length=12"),
        # 6 environments x (12 / 12) sequences = 6, which 4 does not divide.
        (
            {"num_envs": 6, "rollout_length": 12, "sequence_length": 12, "num_minibatches": 4},
            r"num_envs=6 .* 6 sequences .* num_minibatches=4.*shorter",
        ),
        # 1 x 3 steps in 2 parts.
        ({"num_envs": 1, "rollout_length": 3, "num_minibatches": 2}, "num_minibatches=2"),
        (
            {"normalize_advantages": False, "advantage_normalization": "batch"},
            "advantage_normalization='batch' has no effect with normalize_advantages=Fal",
        ),
        (
            {"desired_kl": 0.02},
            "desired_kl=0.02 has no effect with lr_schedule='linear'.*set lr_schedule='ad",
        ),
        ({"min_learning_rate": 1e-4}, "min_learning_rate=0.0001 has no effect with lr_schedule='linear'"),
        ({"max_learning_rate": 1e-3}, "max_learning_rate=0.001 has no effect with lr_schedule='linear'"),
    ],
)
def test_fields_that_do_not_go_together(fields, message):
    with pytest.raises(ValueError, match=message):
        PPOConfig(**fields)


def test_fields_that_go_together():
    for fields in (
        *({**ADAPTIVE, "learning_rate": rate} for rate in (1e-3, 1e-2)),
        {"lr_schedule": "linear", "learning_rate": 0.1},
        {"entropy_schedule": "linear", "entropy_weight": 0.0},
        *({"num_envs": n, "num_minibatches": 4, "rollout_length": 8} for n in (6, 2)),
        {"advantage_normalization": "batch"},
        {"lr_schedule": "adaptive_kl", "desired_kl": 0.02, "min_learning_rate": 1e-4, "max_learning_rate": 1e-3},
        *({"discounting_factor": bound, "gae_lambda": bound} for bound in (0, 0.0, 1, 1.0)),
    ):
        assert PPOConfig(**fields)
    # What is not a number of environments is known once there are some.
    with pytest.raises(ValueError, match="num_envs is not set"):
        _ = PPOConfig().num_iterations


def test_configurations_are_frozen_and_keyword_only():
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPOConfig().learning_rate = 0.1
    with pytest.raises(TypeError):
        PPOConfig(8)


def test_every_field_says_what_it_is():
    import ast

    from multippo.algorithms import config

    tree = ast.parse(inspect.getsource(config))
    for node in (n for n in tree.body if isinstance(n, ast.ClassDef)):
        for field, after in zip(node.body, node.body[1:], strict=False):
            if isinstance(field, ast.AnnAssign):
                assert isinstance(after, ast.Expr), f"{node.name}.{field.target.id} has no docstring"


def test_a_configuration_comes_back_from_json():
    config = PPOConfig(adam_betas=(0.8, 0.9), entropy_weight=0.01)
    assert PPOConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


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


@pytest.mark.parametrize(
    "fields",
    [{"every_steps": 5000}, {"every_steps": 25_000}, {"num_episodes": 3}, {"deterministic": False}, {"num_envs": 2}],
)
def test_saying_how_to_evaluate_asks_for_evaluations(fields):
    assert EvalConfig(**fields).enabled
    assert not EvalConfig(enabled=False, **fields).enabled
    assert not EvalConfig().enabled
    # What is made of a configuration does not change what it says.
    off = EvalConfig(enabled=False, **fields)
    assert dataclasses.replace(off, max_episode_steps=7) == EvalConfig(enabled=False, max_episode_steps=7, **fields)
    assert EvalConfig(**dataclasses.asdict(EvalConfig())) == EvalConfig()
    assert pickle.loads(pickle.dumps(off)) == off


@pytest.mark.parametrize(
    ("make", "wrong", "meant"),
    [
        (PPOConfig, "learning_rates", "learning_rate"),
        (PPOConfig, "gamma", "discounting_factor"),
        (TrainConfig, "sed", "seed"),
        (EvalConfig, "episodes", "num_episodes"),
        (mp.DistillationConfig, "rollout_len", "rollout_length"),
        (mp.DistillationTrainConfig, "distilation", "distillation"),
    ],
)
def test_an_unknown_field_is_answered_with_the_nearest(make, wrong, meant):
    expected = f"{make.__name__}() got an unexpected keyword argument '{wrong}'. Did you mean '{meant}'?"
    with pytest.raises(TypeError, match=re.escape(expected)):
        make(**{wrong: 1})


def test_nothing_is_hidden_of_a_class_that_knows_its_keywords():
    for config in (PPOConfig, EvalConfig, TrainConfig):
        assert list(inspect.signature(config).parameters) == [field.name for field in dataclasses.fields(config)]
    with pytest.raises(TypeError, match=re.escape("It takes ppo, eval, seed, compile")):
        TrainConfig(zzz=1)
