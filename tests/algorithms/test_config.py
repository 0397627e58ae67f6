"""What a configuration refuses, and what it derives."""

from __future__ import annotations

import dataclasses
import inspect
import json
import pickle
import re

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.config import EvalConfig, PPOConfig, TrainConfig


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("num_envs", 0),
        ("num_envs", 2.0),
        ("num_envs", 2**20 + 1),
        ("rollout_length", 0),
        ("rollout_length", 2**24 + 1),
        ("rollout_length", True),
        ("total_steps", -1),
        ("num_epochs", 0),
        ("num_minibatches", 1.5),
        ("sequence_length", 0),
        ("discounting_factor", 1.1),
        ("gae_lambda", -0.1),
        ("learning_rate", float("nan")),
        ("learning_rate", "1e-4"),
        ("weight_decay", -1.0),
        ("critic_loss_weight", float("inf")),
        ("clip_range", 0.0),
        ("adam_epsilon", 0),
        ("value_clip_range", 0.0),
        ("gradient_clipping", -0.5),
        ("target_kl", 0),
        ("lr_schedule", "sine"),
        ("combine_advantages", "max"),
        ("lr_schedule", None),
        ("learning_rate_warmup", -1),
        ("learning_rate_warmup", 0.1),
        ("learning_rate_warmup", True),
        ("desired_kl", 0.0),
        ("min_learning_rate", 0.0),
        ("min_learning_rate", 0.1),  # above the largest
        ("max_learning_rate", float("inf")),
        ("adam_betas", 0.9),
        ("adam_betas", (0.9,)),
        ("adam_betas", (0.9, 1.0)),
        ("adam_betas", (-0.1, 0.9)),
        ("adam_betas", ("0.9", 0.9)),
        ("advantage_normalization", "rollout"),
        ("recompute_advantages", "yes"),
        ("normalize_advantages", 1),
        ("scale_rewards", None),
        ("reward_clip", 0.0),
        ("entropy_weight", -0.01),
        ("entropy_weight", "0.01"),
        ("entropy_schedule", "cosine"),
    ],
)
def test_a_wrong_field_is_named_with_what_was_received(field, wrong):
    with pytest.raises(ValueError, match=re.escape(f"{field}={wrong!r}")) as caught:
        PPOConfig(**{field: wrong})
    assert "expected" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("config", "field", "wrong"),
    [
        (EvalConfig, "num_episodes", 0),
        (EvalConfig, "every_steps", 0),
        (EvalConfig, "max_episode_steps", 0),
        (TrainConfig, "seed", -1),
        (TrainConfig, "seed", 2**63),
        (TrainConfig, "compile", "yes"),
        (TrainConfig, "checkpoint_every_steps", 0),
        (TrainConfig, "checkpoint_at_evals", 1),
        (TrainConfig, "log_every_steps", -1),
        (TrainConfig, "ppo", {}),
        (TrainConfig, "eval", None),
    ],
)
def test_the_other_configurations_too(config, field, wrong):
    with pytest.raises(ValueError, match=field):
        config(**{field: wrong})


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


def test_an_adaptive_rate_must_start_within_its_bounds():
    bounds = {"min_learning_rate": 1e-3, "max_learning_rate": 1e-2}
    for rate in (1e-3, 1e-2):
        PPOConfig(lr_schedule="adaptive_kl", learning_rate=rate, **bounds)
    with pytest.raises(ValueError, match=r"learning_rate=0\.1 .* min_learning_rate=0\.001 and 0\.01"):
        PPOConfig(lr_schedule="adaptive_kl", learning_rate=0.1, **bounds)
    PPOConfig(lr_schedule="linear", learning_rate=0.1)


def test_a_schedule_of_the_entropy_needs_a_weight():
    with pytest.raises(ValueError, match="entropy_schedule='linear' needs an entropy_weight"):
        PPOConfig(entropy_schedule="linear")
    PPOConfig(entropy_schedule="linear", entropy_weight=0.0)


def test_a_configuration_comes_back_from_json():
    config = PPOConfig(adam_betas=(0.8, 0.9), entropy_weight=0.01)
    assert PPOConfig(**json.loads(json.dumps(dataclasses.asdict(config)))) == config


@pytest.mark.parametrize("boundary", [0, 0.0, 1, 1.0])
def test_the_ends_of_a_range_are_in_it(boundary):
    assert PPOConfig(discounting_factor=boundary, gae_lambda=boundary).gae_lambda == boundary


def test_a_sequence_length_must_divide_the_rollout():
    with pytest.raises(ValueError, match="sequence_length=5 does not divide rollout_length=12"):
        PPOConfig(rollout_length=12, sequence_length=5)


def test_minibatches_that_can_not_be_equal_are_refused_with_all_numbers():
    # 6 environments x (12 / 12) sequences = 6, which 4 does not divide.
    with pytest.raises(ValueError, match=r"num_envs=6 .* 6 sequences .* num_minibatches=4") as caught:
        PPOConfig(num_envs=6, rollout_length=12, sequence_length=12, num_minibatches=4)
    assert "shorter" in str(caught.value)
    # 1 x 3 steps in 2 parts.
    with pytest.raises(ValueError, match="num_minibatches=2"):
        PPOConfig(num_envs=1, rollout_length=3, num_minibatches=2)


@pytest.mark.parametrize(("num_envs", "num_minibatches"), [(6, 4), (2, 4)])
def test_more_or_other_minibatches_than_environments_are_fine(num_envs, num_minibatches):
    PPOConfig(num_envs=num_envs, num_minibatches=num_minibatches, rollout_length=8)


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


def test_sizes_are_not_known_without_environments():
    with pytest.raises(ValueError, match="num_envs is not set"):
        _ = PPOConfig().num_iterations


@pytest.mark.parametrize(
    ("field", "value", "other"),
    [
        ("desired_kl", 0.02, "lr_schedule='linear'"),
        ("min_learning_rate", 1e-4, "lr_schedule='linear'"),
        ("max_learning_rate", 1e-3, "lr_schedule='linear'"),
    ],
)
def test_a_field_without_effect_is_refused_with_what_it_needs(field, value, other):
    with pytest.raises(ValueError, match=re.escape(f"{field}={value!r} has no effect with {other}")) as caught:
        PPOConfig(**{field: value})
    assert "set lr_schedule='adaptive_kl', or leave" in str(caught.value)
    PPOConfig(**{field: value, "lr_schedule": "adaptive_kl"})


def test_the_entries_of_a_normalisation_need_one():
    with pytest.raises(ValueError, match="advantage_normalization='batch' has no effect with normalize_advantages=Fal"):
        PPOConfig(normalize_advantages=False, advantage_normalization="batch")
    PPOConfig(advantage_normalization="batch")


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
    with pytest.raises(ValueError, match="enabled=1 is not possible: expected True or False"):
        EvalConfig(enabled=1)


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
