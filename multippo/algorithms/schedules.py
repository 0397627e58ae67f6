"""Schedules of learning rate and entropy weight, and the learning rate that follows the policy."""

from __future__ import annotations

import dataclasses
import math
from typing import Any, NamedTuple

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.types import TrainingState

_FACTOR = 1.5


class Coefficients(NamedTuple):
    """Values of the schedules in an iteration.

    Attributes:
        learning_rate: Learning rate; under ``lr_schedule="adaptive_kl"`` the share of the current one to take.
        entropy_weight: Weight of the entropy; 0 where ``PPOConfig.entropy_weight`` is None.
    """

    learning_rate: Any
    entropy_weight: Any


def compiled_in(config: PPOConfig) -> PPOConfig:
    """Settings that are compiled in; those of the schedules, whose values are arguments, have their defaults.

    >>> short, long = (PPOConfig(total_steps=n, learning_rate=1 / n) for n in (100, 1000))
    >>> compiled_in(short) == compiled_in(long)
    True
    """
    adaptive = config.lr_schedule == "adaptive_kl"
    return dataclasses.replace(
        config,
        total_steps=1,
        learning_rate=config.max_learning_rate,
        learning_rate_warmup=0,
        lr_schedule="adaptive_kl" if adaptive else "constant",
        entropy_schedule="constant",
        entropy_weight=config.entropy_weight and 1.0,
    )


def planned_steps(config: PPOConfig, state: TrainingState | None) -> int:
    """Planned steps before a run: ``TrainingState.planned_steps`` of its initial state, or 0."""
    if state is None:
        return 0
    known = state.planned_steps
    return state.iteration * config.steps_per_iteration if known is None else known


def iterations_left(config: PPOConfig, planned_steps: int) -> int:
    """Number of iterations that reach ``total_steps`` after ``planned_steps``.

    >>> config = PPOConfig(num_envs=1, rollout_length=4, total_steps=10, num_minibatches=1)
    >>> [iterations_left(config, steps) for steps in (0, 4, 6, 12)]
    [3, 2, 1, 0]
    """
    return max(0, math.ceil((config.total_steps - planned_steps) / config.steps_per_iteration))


def coefficients_at(config: PPOConfig, iteration: float) -> Coefficients:
    """Values of all schedules at an iteration, counted from 0; a fraction after iterations of another size."""
    return Coefficients(learning_rate_at(config, iteration), entropy_weight_at(config, iteration))


def learning_rate_at(config: PPOConfig, iteration: float) -> float:
    """Learning rate of an iteration, counted from 0: the same for all its epochs and minibatches.

    ``linear``: ``lr (1 - i / N)``; ``cosine``: ``lr (1 + cos(pi i / N)) / 2`` (Loshchilov and Hutter, 2017, without
    restarts); N is the number of iterations in the run, so a run continued with more ``total_steps`` goes on as one
    planned like that from the start. Never below 0. During a warm-up of n iterations the rate is multiplied by
    ``(i + 1) / (n + 1)``.

    For ``adaptive_kl`` the share of the rate that the warm-up leaves: 1 without or after one.

    >>> config = PPOConfig(num_envs=1, rollout_length=1, total_steps=4, num_minibatches=1, learning_rate=0.8)
    >>> [round(learning_rate_at(config, i), 3) for i in range(5)]
    [0.8, 0.6, 0.4, 0.2, 0.0]
    """
    warm = min((iteration + 1) / (config.learning_rate_warmup + 1), 1.0)
    if config.lr_schedule == "adaptive_kl":
        return warm
    progress = _progress(config, iteration)
    share = {"constant": 1.0, "linear": 1.0 - progress, "cosine": 0.5 * (1.0 + math.cos(math.pi * progress))}
    return warm * config.learning_rate * share[config.lr_schedule]


def entropy_weight_at(config: PPOConfig, iteration: float) -> float:
    """Weight of the entropy in an iteration, counted from 0; ``linear`` as for the learning rate.

    0 where ``PPOConfig.entropy_weight`` is None.
    """
    weight = config.entropy_weight or 0.0
    return weight * (1.0 - _progress(config, iteration)) if config.entropy_schedule == "linear" else weight


def _progress(config: PPOConfig, iteration: float) -> float:
    return min(iteration / config.num_iterations, 1.0)


def adapt_learning_rate(xp: Any, config: PPOConfig, learning_rate: Any, kl: Any) -> Any:
    """Learning rate of the next iteration under ``lr_schedule="adaptive_kl"``; see ``PPOConfig.desired_kl``.

    Args:
        xp: Array namespace.
        config: Settings: ``desired_kl``, and the bounds of the rate.
        learning_rate: Scalar array.
        kl: Mean approximate KL divergence of the iteration's minibatches, a scalar array. Where it is NaN the rate
            stays.
    """
    slower = xp.maximum(learning_rate / _FACTOR, xp.full_like(learning_rate, config.min_learning_rate))
    faster = xp.minimum(learning_rate * _FACTOR, xp.full_like(learning_rate, config.max_learning_rate))
    too_little = (kl > 0) & (kl < config.desired_kl / 2)
    return xp.where(kl > 2 * config.desired_kl, slower, xp.where(too_little, faster, learning_rate))
