"""A run that goes on from a checkpoint is the run that never stopped: with every option, and on the other engine."""

import dataclasses
import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from checkpoints import noisy_network

import multippo as mp
from multippo.testing import FunctionalGoal

NUM_ENVS, STEPS, WHOLE, HALF = 4, 6, 4, 2

# Fields of PPOConfig, with the others they need to have an effect. Those of BASE are at work in all of them.
BASE = {"num_envs": NUM_ENVS, "rollout_length": STEPS, "num_epochs": 2, "num_minibatches": 2, "learning_rate": 1e-2}
OPTIONS: dict[str, dict[str, Any]] = {
    "what keeps nothing": {
        "discounting_factor": 0.5,
        "gae_lambda": 0.2,
        "advantage_normalization": "batch",
        "reward_clip": 0.3,
        "clip_range": 0.01,
        "value_clip_range": 0.01,
        "critic_loss_weight": 3.0,
        "nonfinite": "stop",
        "adam_betas": (0.5, 0.6),
        "adam_epsilon": 0.1,
        "weight_decay": 0.1,
        "gradient_clipping": 0.01,
    },
    "linear": {"lr_schedule": "linear"},
    "cosine": {"lr_schedule": "cosine"},
    "constant": {"lr_schedule": "constant"},
    "warm-up": {"learning_rate_warmup": HALF + 1},
    "adaptive_kl": {"lr_schedule": "adaptive_kl"},
    "falling": {"lr_schedule": "adaptive_kl", "desired_kl": 1e-9, "min_learning_rate": 5e-3},
    "rising": {"lr_schedule": "adaptive_kl", "desired_kl": 10.0, "max_learning_rate": 2e-2},
    "stopped": {"target_kl": 1e-6, "normalize_advantages": False},
    "targets anew": {"recompute_advantages": True},
    "several rewards": {"combine_advantages": "mean"},
    "rewards as they are": {"scale_rewards": False},
    "entropy": {"entropy_weight": 0.1, "entropy_schedule": "linear"},
    "sequences": {"sequence_length": 3, "remat_steps": 2},
}


def test_every_option_is_here():
    named = {field for options in OPTIONS.values() for field in options} | set(BASE) | {"total_steps"}
    assert named == {field.name for field in dataclasses.fields(mp.PPOConfig)}


class TwoRewards(FunctionalGoal):
    """A reward for each of two keys."""

    def step(self, state: Any, action: Any) -> Any:
        following = super().step(state, action)
        return following._replace(reward={"near": following.reward, "far": 0.5 - following.reward})

    def reset(self, key: Any) -> Any:
        first = super().reset(key)
        return first._replace(reward={"near": first.reward, "far": first.reward})


@functools.cache
def make_env(several: bool, precision: str) -> Any:
    """Whose episodes end within a rollout and go on over two. It keeps no state, and what it compiles is kept."""
    with support.on("jax", precision):
        return mp.make_env(TwoRewards(4) if several else FunctionalGoal(4), num_envs=NUM_ENVS)


def in_two_parts(
    tmp_path: Path, first: str, second: str, options: dict[str, Any], precision: str = "float32"
) -> tuple[Any, ...]:
    """An uninterrupted run, and one of a network that began otherwise, from its checkpoint on."""
    several = "combine_advantages" in options
    settings = {**BASE, **options, "iterations": WHOLE}
    env = make_env(several, precision)
    with mp.use_backend(first):
        whole = noisy_network(0, several)
        run = training.train(env, whole, config={"checkpoint_every_steps": HALF * NUM_ENVS * STEPS}, **settings)
        mp.save_checkpoint(tmp_path / "half", run.checkpoints[0][0], whole)
    with mp.use_backend(second):
        again = noisy_network(1, several)
        state = mp.load_checkpoint(tmp_path / "half", again)
        assert state.iteration == HALF
        rest = training.train(env, again, initial_state=state, **settings)
    return whole, run, again, rest


def assert_same_end(whole: Any, run: Any, again: Any, rest: Any, tolerance: float) -> None:
    training.assert_same_end(rest, run, (again, whole), tolerance, iterations=WHOLE - HALF)
    assert rest.column("iteration") == [3, 4]
    assert rest.state.learning_rate == pytest.approx(run.state.learning_rate, abs=tolerance)


@pytest.fixture(scope="module")
def without_options() -> dict[str, np.ndarray]:
    with mp.use_backend("torch"):
        network = noisy_network(0)
        training.train(make_env(False, "float32"), network, iterations=WHOLE, **BASE)
        return mp.to_portable(network)


@pytest.mark.parametrize("name", OPTIONS)
def test_with_every_option_bit_for_bit(name: str, without_options: dict[str, np.ndarray], tmp_path: Path):
    whole, run, again, rest = in_two_parts(tmp_path, "torch", "torch", OPTIONS[name])
    assert_same_end(whole, run, again, rest, 0.0)
    # The option was at work, but for what is the default.
    weights = mp.to_portable(whole)
    same = weights.keys() == without_options.keys() and all((weights[k] == v).all() for k, v in without_options.items())
    assert same == (name == "linear")


@pytest.mark.parametrize("first", support.ENGINES)
@pytest.mark.nightly
def test_on_the_other_engine_in_double_precision(first: str, tmp_path: Path):
    second = next(name for name in support.ENGINES if name != first)
    options = {
        "lr_schedule": "adaptive_kl",
        "desired_kl": 1e-3,
        "max_learning_rate": 0.1,
        "value_clip_range": 0.2,
        "entropy_weight": 0.01,
        "entropy_schedule": "linear",
        "weight_decay": 0.01,
        "sequence_length": 3,
    }
    with support.both_at("float64"):
        whole, run, again, rest = in_two_parts(tmp_path, first, second, options, "float64")
        assert_same_end(whole, run, again, rest, 1e-8)
    assert len(set(run.column("learning_rate"))) > 1
