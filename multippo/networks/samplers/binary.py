"""A sampler of binary actions."""

from __future__ import annotations

import math
from typing import Any

from multippo.networks.samplers.base import ActionSampler, check_action_shape, check_parameters
from multippo.networks.samplers.distributions import (
    Bernoulli,
    bernoulli_entropy,
    bernoulli_kl,
    bernoulli_log_probability,
    sigmoid,
)
from multippo.rngs import Rngs


class BernoulliSampler(ActionSampler):
    """Independent switches, as a MultiBinary space of any shape takes them.

    The input is log-odds ``[B, K]``; the action is 0 or 1, ``[B, *action_shape]``. Log-likelihood and entropy are sums
    over the switches. The mode is 1 where the odds are better than even.

    Args:
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.
        action_shape: Shape of one action, of K switches in all; None: one axis of as many as the input has.

    Raises:
        ValueError: If ``action_shape`` is not a shape.
    """

    def __init__(
        self, rngs: Rngs, entropy_weight: float = 0.0, *, action_shape: int | tuple[int, ...] | None = None
    ) -> None:
        super().__init__(rngs, entropy_weight)
        self.action_shape = check_action_shape("BernoulliSampler", action_shape)

    parameter_axes = 1

    def distribution(self, x: Any) -> Bernoulli:
        """The log-odds ``[..., K]``."""
        shape, size, expected = self.action_shape, None, "an array [B, K] of log-odds"
        if shape is not None:
            size = math.prod(shape)
            expected = f"{size} features on the last axis, for actions of shape {shape}"
        check_parameters("BernoulliSampler", x, expected, size)
        return Bernoulli(x)

    def num_choices(self, parameters: Bernoulli) -> int:
        """Two: off and on."""
        del parameters
        return 2

    def kl_divergence(self, old: Bernoulli, new: Bernoulli) -> Any:
        """KL(old || new) ``[...]``: the sum over the switches."""
        return self.xp.sum(bernoulli_kl(self.xp, old, new), axis=-1)

    def _noise_shape(self, raw_action: Any, parameters: Any) -> tuple[int, ...]:
        return (raw_action.shape[-1],) if raw_action is not None else (parameters.logits.shape[-1],)

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.random.uniform(key, shape)

    def _sample(self, parameters: Bernoulli, noise: Any) -> Any:
        xp = self.xp
        drawn = parameters.logits > 0 if noise is None else noise < sigmoid(xp, parameters.logits)
        return xp.astype(drawn, xp.int32)

    def _evaluate(self, parameters: Bernoulli, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp, logits = self.xp, parameters.logits
        log_probability = bernoulli_log_probability(xp, parameters, xp.astype(raw_action, logits.dtype))
        action, shape = raw_action, self.action_shape
        if shape is not None and len(shape) != 1:
            action = xp.reshape(action, (*action.shape[:-1], *shape))
        return action, xp.sum(log_probability, axis=-1), xp.sum(bernoulli_entropy(xp, parameters), axis=-1)
