"""Running statistics that a wrapper of gymnasium's keeps to itself."""

from __future__ import annotations

import logging
from typing import Any

from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv, VectorEnv, VectorWrapper

__all__ = ["report_wrapper_statistics"]

_LOG = logging.getLogger("multippo")

_STATISTICS = {
    "obs_rms": "observations are normalised by the network's own Normalizer (normalize_obs=True, the default)",
    "return_rms": "rewards are scaled by PPOConfig(scale_rewards=True)",
}
"""Attributes of NormalizeObservation and NormalizeReward, scalar and vector form, and what to use in their place."""


def report_wrapper_statistics(name: str, vector_env: VectorEnv[Any, Any, Any]) -> None:
    """Warns of wrappers, anywhere in the chain, that normalise by statistics of their own.

    Args:
        name: The environment's.
        vector_env: The environment.
    """
    found = {attribute for attribute in _STATISTICS if _has(vector_env, attribute)}
    if found:
        _LOG.warning(
            "%s is wrapped in something that normalises by running statistics of its own (%s). They are not saved with "
            "checkpoints, each environment has others, and those for evaluation begin without any, so that a policy "
            "sees other numbers than it was trained on. Leave the wrapper out: %s. Those statistics are part of the "
            "training state.",
            name,
            ", ".join(sorted(found)),
            ", and ".join(_STATISTICS[attribute] for attribute in sorted(found)),
        )


def _has(vector_env: VectorEnv[Any, Any, Any], attribute: str) -> bool:
    while isinstance(vector_env, VectorWrapper):
        if attribute in vars(vector_env):
            return True
        vector_env = vector_env.env
    if isinstance(vector_env, SyncVectorEnv | AsyncVectorEnv):
        return any(vector_env.call("has_wrapper_attr", attribute))
    return False
