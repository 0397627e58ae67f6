"""Generalised advantage estimation as a linear recurrence, and the targets of an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.types import Transition
from multippo.trees import tree_leaves, tree_sum


def linear_recurrence(xp: Any, decay: Any, x: Any, *, reverse: bool = False) -> Any:
    """``y_t = x_t + decay_t y_{t-1}``, or with ``reverse`` ``y_t = x_t + decay_t y_{t+1}``, along the first axis.

    Parallel in time by doubling (Hillis and Steele, 1986; Blelloch, 1990, section 1.4): log2(T) rounds over whole
    arrays.

    Args:
        xp: Array namespace.
        decay: ``[T, ...]``. The first (with ``reverse``, last) entry multiplies nothing.
        x: ``[T, ...]``.
        reverse: True to go from the end to the start.

    Returns:
        The ``y_t``, ``[T, ...]``.
    """
    time, span = x.shape[0], 1
    while span < time:
        if reverse:
            x_far = xp.concat([x[span:], xp.zeros_like(x[:span])], axis=0)
            decay_far = xp.concat([decay[span:], xp.zeros_like(decay[:span])], axis=0)
        else:
            x_far = xp.concat([xp.zeros_like(x[:span]), x[:-span]], axis=0)
            decay_far = xp.concat([xp.zeros_like(decay[:span]), decay[:-span]], axis=0)
        x = x + decay * x_far
        decay = decay * decay_far
        span *= 2
    return x


def generalized_advantages(
    xp: Any,
    *,
    r_t: Any,
    v_t: Any,
    v_last: Any,
    v_bootstrap_t: Any,
    terminated_t: Any,
    truncated_t: Any,
    valid_t: Any,
    discount: float,
    gae_lambda: float,
) -> tuple[Any, Any]:
    """Advantages and value targets (Schulman et al., 2016, arXiv:1506.02438, equations 11-16).

    ``delta_t = r_t + discount v_{t+1} - v_t`` and ``A_t = delta_t + discount gae_lambda A_{t+1}``, where across the end
    of an episode the trace is cut, and ``v_{t+1}`` is 0 after a termination and V(final observation) after a
    truncation (Pardo et al., 2018, arXiv:1712.00378).

    Args:
        xp: Array namespace.
        r_t: Rewards ``[T, B]``.
        v_t: Value estimates ``[T, B]``.
        v_last: Value ``[B]`` of the observation after the last step.
        v_bootstrap_t: Value ``[T, B]`` of the final observation where truncated.
        terminated_t: ``[T, B]`` bool.
        truncated_t: ``[T, B]`` bool.
        valid_t: ``[T, B]`` bool. An entry that is not valid has advantage 0.
        discount: gamma.
        gae_lambda: lambda.

    Returns:
        Advantages ``A_t`` and returns ``A_t + v_t``, both ``[T, B]``.
    """
    v_next = xp.concat([v_t[1:], v_last[None]], axis=0)
    v_tp1 = xp.where(truncated_t, v_bootstrap_t, xp.where(terminated_t, xp.zeros_like(v_t), v_next))
    zero = xp.zeros_like(v_t)
    delta_t = xp.where(valid_t, r_t + discount * v_tp1 - v_t, zero)
    cut_t = terminated_t | truncated_t | ~valid_t
    decay_t = xp.where(cut_t, zero, xp.full_like(v_t, discount * gae_lambda))
    advantage_t = linear_recurrence(xp, decay_t, delta_t, reverse=True)
    return advantage_t, advantage_t + v_t


def mean_over(xp: Any, mask: Any, dtype: Any) -> Callable[[Any], Any]:
    """Function that averages an array of ``dtype`` over the entries where ``mask`` holds; 0 if it holds nowhere."""
    count = xp.sum(xp.astype(mask, dtype))
    count = xp.maximum(count, xp.ones_like(count))
    # ``where`` and not a product: an entry that does not count may be NaN.
    return lambda x: xp.sum(xp.where(mask, x, xp.zeros_like(x))) / count


def standardized(xp: Any, x: Any, mean: Callable[[Any], Any]) -> Any:
    """``(x - mean) / (std + 1e-8)`` with the population's standard deviation; equal values become 0.

    Args:
        xp: Array namespace.
        x: Array of any shape.
        mean: Function that averages the entries of an array like ``x`` that count.
    """
    centred = x - mean(x)
    # Centred once more: of equal values rounding leaves a little, and the division would make that 1.
    centred = centred - mean(centred)
    return centred / (xp.sqrt(mean(centred**2)) + 1e-8)


def standardized_tree(xp: Any, advantages: list[Any], mean: Callable[[Any], Any], combine: str) -> list[Any]:
    """Per-key advantages whose combination by ``combine_advantages`` is standardised.

    Args:
        xp: Array namespace.
        advantages: One array for each reward.
        mean: See ``standardized``.
        combine: ``PPOConfig.combine_advantages``. By ``"separate"`` each is standardised by itself; otherwise their sum
            is, and each key gets an equal part of it, since nothing but the sum (or mean) is used.
    """
    if combine == "separate":
        return [standardized(xp, advantage, mean) for advantage in advantages]
    total = standardized(xp, tree_sum(advantages), mean)
    part = 1.0 if combine == "mean" else 1.0 / len(advantages)
    return [total * part for _ in advantages]


def estimate_targets(xp: Any, config: PPOConfig, transition: Transition, values: Any, v_last: Any) -> tuple[Any, Any]:
    """Advantages, normalised where ``config`` says over the batch, and value targets.

    Args:
        xp: Array namespace.
        config: Settings: ``discounting_factor``, ``gae_lambda`` and those of normalisation.
        transition: The rollout, with rewards in the network's floating-point type.
        values: V ``[T, B]`` of every observation, a tree like the rewards.
        v_last: V ``[B]`` of the observation after the last step, likewise.

    Returns:
        Two trees of ``[T, B]`` like the values.
    """
    leaves, treedef = optree.tree_flatten(values)
    pairs = [
        generalized_advantages(
            xp,
            r_t=reward,
            v_t=value,
            v_last=last,
            v_bootstrap_t=bootstrap,
            terminated_t=transition.terminated,
            truncated_t=transition.truncated,
            valid_t=transition.counted,
            discount=config.discounting_factor,
            gae_lambda=config.gae_lambda,
        )
        for reward, value, last, bootstrap in zip(
            tree_leaves(transition.rewards),
            leaves,
            tree_leaves(v_last),
            tree_leaves(transition.bootstrap_values),
            strict=True,
        )
    ]
    advantages, returns = ([pair[i] for pair in pairs] for i in (0, 1))
    if config.normalize_advantages and config.advantage_normalization == "batch":
        mean = mean_over(xp, transition.counted, advantages[0].dtype)
        advantages = standardized_tree(xp, advantages, mean, config.combine_advantages)
    return optree.tree_unflatten(treedef, advantages), optree.tree_unflatten(treedef, returns)
