"""PPO's loss on training sequences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from multippo.algorithms.advantages import mean_over, standardized
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.minibatches import unroll_sequences
from multippo.algorithms.types import Sequences
from multippo.networks.activations import clip
from multippo.networks.core.outputs import ACTIVATION_KEY, per_environment
from multippo.trees import named_leaves, tree_leaves, tree_map, tree_sum

_MAX_LOG_RATIO = 20.0


class LossOutput(NamedTuple):
    """Metrics and statistics of a loss.

    Attributes:
        metrics: Scalars to log, by name.
        max_ratio_deviation: Largest ``|ratio - 1|`` of the valid entries; None for a loss without ratios.
        approximate_kl: Estimate of KL(old || new); None for a loss without ratios.
    """

    metrics: dict[str, Any]
    max_ratio_deviation: Any = None
    approximate_kl: Any = None


def ppo_loss(
    network: Any, sequences: Sequences, config: PPOConfig, entropy_weight: Any = None
) -> tuple[Any, LossOutput]:
    """Clipped surrogate, value, entropy and regularisation loss of one minibatch (Schulman et al., 2017).

    ``L = -mean min(rho A, clip(rho, 1 - eps, 1 + eps) A) + w mean (V - R)**2 - u mean H + mean regularisation`` with
    ``rho`` the ratio of the new to the old likelihood (arXiv:1707.06347, equations 7 and 9). Means are over valid
    entries. H is the policy's entropy, summed over the keys of an action tree; its term is there where
    ``config.entropy_weight`` is a number. Samplers with a weight of their own charge it as regularisation.

    With ``value_clip_range`` c the value term is ``mean max((V - R)**2, (V_old + clip(V - V_old, -c, c) - R)**2)``,
    which is not in the paper but in its authors' code, OpenAI Baselines' ``ppo2`` (and has no further factor 1/2 here).

    Args:
        network: The network, evaluated by its ``unroll``.
        sequences: Training sequences ``[L, S, ...]``.
        config: Coefficients.
        entropy_weight: u, a number or a scalar array; ``config.entropy_weight`` by default.

    Returns:
        The scalar loss, and its metrics.

    Raises:
        ValueError: If a metric or the regularisation loss is of a shape that would broadcast, or the network has no
            entropies to weigh.
    """
    xp = network.xp
    out = unroll_sequences(network, sequences, config.remat_steps)
    valid = sequences.valid
    weight = xp.astype(valid, tree_leaves(sequences.advantages)[0].dtype)
    mean = mean_over(xp, valid, weight.dtype)
    actor, ratio_stats = _actor_loss(network.engine, out.output.loglikelihoods, sequences, mean, config)
    critic, value_stats = _critic_loss(network.engine, out.output.value_estimates, sequences, mean, config)
    zero = xp.zeros_like(weight)
    regularization = mean(per_environment("regularization_loss", out.regularization_loss, zero))
    loss = actor + config.critic_loss_weight * critic + regularization
    metrics: dict[str, Any] = {}
    if out.output.entropies is not None:
        metrics["entropy/mean"] = mean(tree_sum(out.output.entropies))
        metrics |= {f"entropy/mean/{name}": mean(leaf) for name, leaf in named_leaves(out.output.entropies) if name}
    if config.entropy_weight is not None:
        check_entropies(out.output.entropies, config.entropy_weight)
        entropy_weight = config.entropy_weight if entropy_weight is None else entropy_weight
        metrics["losses/entropy"] = -entropy_weight * metrics["entropy/mean"]
        loss = loss + metrics["losses/entropy"]
    metrics |= {
        "losses/actor": actor,
        "losses/critic": critic,
        "losses/regularization": regularization,
        "losses/total": loss,
        "ratio/clip_fraction": ratio_stats["clip_fraction"],
        "kl/approx": ratio_stats["kl"],
        **value_stats,
        **mean_metrics(out.metrics, zero, mean),
    }
    return loss, LossOutput(metrics, ratio_stats["max_deviation"], ratio_stats["kl"])


def check_entropies(entropies: Any, weight: float) -> None:
    """Raises a ValueError if a network's output has no entropies, which a weight is for."""
    if not tree_leaves(entropies):
        raise ValueError(
            f"PPOConfig.entropy_weight={weight!r} needs the entropy of the policy, but the network's PPONetworkOutput."
            "entropies is None. End the action port with samplers, which report it, or return entropies; or leave "
            "entropy_weight unset."
        )


def _actor_loss(
    engine: Any, log_likelihoods: Any, sequences: Sequences, mean: Any, config: PPOConfig
) -> tuple[Any, Any]:
    news, olds = tree_leaves(log_likelihoods), tree_leaves(sequences.loglikelihoods)
    advantages = tree_leaves(sequences.advantages)
    if config.combine_advantages != "separate":
        news, olds = [tree_sum(news)], [tree_sum(olds)]
        count = len(advantages) if config.combine_advantages == "mean" else 1
        advantages = [tree_sum(advantages) / count]
    terms = [
        _surrogate(engine, new, old, advantage, sequences.valid, mean, config)
        for new, old, advantage in zip(news, olds, advantages, strict=True)
    ]
    stats = {
        "clip_fraction": tree_sum([term["clip_fraction"] for term in terms]) / len(terms),
        "kl": tree_sum([term["kl"] for term in terms]),
        "max_deviation": functools.reduce(engine.xp.maximum, [term["max_deviation"] for term in terms]),
    }
    return tree_sum([term["loss"] for term in terms]), stats


def _surrogate(
    engine: Any, new: Any, old: Any, advantage: Any, valid: Any, mean: Any, config: PPOConfig
) -> dict[str, Any]:
    xp = engine.xp
    if config.normalize_advantages and config.advantage_normalization == "minibatch":
        advantage = standardized(xp, advantage, mean)
    # An exponent of 20 is far outside the clip range, and keeps a product with the advantage finite.
    log_ratio = clip(engine, new - old, -_MAX_LOG_RATIO, _MAX_LOG_RATIO)
    ratio = xp.exp(log_ratio)
    # The clipped one is a constant where it is the lesser; elsewhere the derivative is the other one's.
    surrogate = ratio * advantage
    clipped = xp.clip(engine.stop_gradient(ratio), 1.0 - config.clip_range, 1.0 + config.clip_range) * advantage
    deviation = xp.abs(ratio - 1.0)
    outside = xp.astype(deviation > config.clip_range, ratio.dtype)
    return {
        "loss": -mean(xp.where(surrogate > clipped, clipped, surrogate)),
        "clip_fraction": mean(outside),
        # Schulman's low-variance, never negative estimate, (rho - 1) - log rho.
        "kl": mean((ratio - 1.0) - log_ratio),
        "max_deviation": xp.max(xp.where(valid, deviation, xp.zeros_like(deviation))),
    }


def _critic_loss(
    engine: Any, values: Any, sequences: Sequences, mean: Any, config: PPOConfig
) -> tuple[Any, dict[str, Any]]:
    xp, reach = engine.xp, config.value_clip_range

    def loss(value: Any, old: Any, target: Any) -> Any:
        error = (value - target) ** 2
        if reach is not None:
            near = old + clip(engine, value - old, -reach, reach)
            error = xp.maximum(error, (near - target) ** 2)
        return mean(error)

    def outside(value: Any, old: Any) -> Any:
        return mean(xp.astype(xp.abs(value - old) > reach, value.dtype))

    olds, stats = sequences.value_estimates, {}
    if reach is not None:
        shares = tree_leaves(tree_map(outside, values, olds))
        stats["value/clip_fraction"] = tree_sum(shares) / len(shares)
    return tree_sum(tree_map(loss, values, olds, sequences.returns)), stats


def mean_metrics(metrics: Any, zero: Any, mean: Callable[[Any], Any], prefix: str = "network") -> dict[str, Any]:
    """Averages of a network's nested metrics, under slash-separated names.

    Args:
        metrics: Metrics of an ``unroll``: numbers, scalars, ``[L]`` (a scalar of every step) or ``[L, S]``.
        zero: Zeros ``[L, S]``.
        mean: Function from ``mean_over``.
        prefix: Prefix of the names.

    Raises:
        ValueError: If a metric is of another shape, which would broadcast.
    """
    flat: dict[str, Any] = {}
    for name, value in metrics.items():
        path = f"{prefix}/{name}"
        if name == ACTIVATION_KEY and (isinstance(value, dict) or getattr(value, "ndim", 0) > 2):
            continue  # recorded for analysis, not for the log
        if isinstance(value, dict):
            flat |= mean_metrics(value, zero, mean, path)
        elif getattr(value, "ndim", 0) == 1 and value.shape[0] == zero.shape[0]:
            flat[path] = mean(value[:, None] + zero)
        else:
            flat[path] = mean(per_environment(f"The metric {path!r}", value, zero))
    return flat
