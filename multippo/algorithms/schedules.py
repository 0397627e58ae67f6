"""How the learning rate falls over a run."""

from __future__ import annotations

import math

from multippo.algorithms.config import PPOConfig

__all__ = ["learning_rate_at"]


def learning_rate_at(config: PPOConfig, iteration: int) -> float:
    """The learning rate of an iteration, counted from 0: the same for all its epochs and minibatches.

    ``linear``: ``lr (1 - i / N)``; ``cosine``: ``lr (1 + cos(pi i / N)) / 2`` (Loshchilov and Hutter, 2017, without
    restarts); N is the number of iterations in the run. Never below 0.
    """
    progress = min(iteration / config.num_iterations, 1.0)
    if config.lr_schedule == "linear":
        return config.learning_rate * (1.0 - progress)
    if config.lr_schedule == "cosine":
        return config.learning_rate * 0.5 * (1.0 + math.cos(math.pi * progress))
    return config.learning_rate
