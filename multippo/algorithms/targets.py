"""What an epoch learns from: advantages and value targets, from stored values or from the critic as it is by now."""

from __future__ import annotations

from typing import Any

import optree

from multippo.algorithms.advantages import generalized_advantages, standardized_tree
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.replay import replay
from multippo.algorithms.types import Transition
from multippo.trees import tree_leaves, tree_map

__all__ = ["current_values", "estimate_targets"]


def estimate_targets(xp: Any, config: PPOConfig, transition: Transition, values: Any, v_last: Any) -> tuple[Any, Any]:
    """Advantages, normalised where ``config`` says over the batch, and value targets.

    Args:
        xp: Array namespace.
        config: ``discounting_factor``, ``gae_lambda`` and how to normalise.
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
        counted = transition.counted
        weight = xp.astype(counted, advantages[0].dtype)
        total = xp.maximum(xp.sum(weight), xp.ones_like(xp.sum(weight)))

        def mean(x: Any) -> Any:
            return xp.sum(xp.where(counted, x, xp.zeros_like(x))) / total

        advantages = standardized_tree(xp, advantages, mean, config.combine_advantages)
    return optree.tree_unflatten(treedef, advantages), optree.tree_unflatten(treedef, returns)


def current_values(network: Any, transition: Transition, starts: Any, network_state: Any, obs: Any) -> tuple[Any, Any]:
    """The values of a rollout's observations under the network's current weights.

    A carry is played through from before the rollout; the observation after the last step is valued under the carry
    that the rollout itself had come to, as every training sequence starts from a stored one.

    Args:
        network: With the current weights.
        transition: The rollout.
        starts: Carries ``[T / L, B, ...]``, of which the first is used.
        network_state: Carry after the last step.
        obs: Observation after the last step.

    Returns:
        V ``[T, B]`` and V ``[B]`` after the last step, trees like the rewards, constant for differentiation.
    """
    values = replay(network, tree_map(lambda x: x[0], starts), transition).value_estimates
    v_last = network(network_state, obs).output.value_estimates
    return network.engine.stop_gradient((values, v_last))
