"""Samplers of continuous actions: a Gaussian, as it is or squashed by tanh."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from multippo.arguments import check_flag, check_number, require
from multippo.networks.activations import softplus
from multippo.networks.core.binding import Param
from multippo.networks.samplers.base import ActionSampler, check_action_shape, check_parameters
from multippo.networks.samplers.distributions import (
    Gaussian,
    gaussian_entropy,
    gaussian_kl,
    gaussian_log_density,
    log_tanh_derivative,
)
from multippo.random import Rngs

_LEAST_STD = 1e-6
_LARGEST_LOG_STD = 10.0


class _GaussianSampler(ActionSampler):
    """Base of the Gaussian samplers; the standard deviation is an input."""

    def __init__(
        self,
        rngs: Rngs,
        entropy_weight: float = 0.0,
        min_std: float = 1e-3,
        std_scale: float = 1.0,
        *,
        action_shape: int | tuple[int, ...] | None = None,
    ) -> None:
        super().__init__(rngs, entropy_weight)
        kind = type(self).__name__
        self.min_std = check_number(kind, "min_std", min_std, least=0)
        self.std_scale = check_number(kind, "std_scale", std_scale, above=0)
        self.action_shape = check_action_shape(kind, action_shape)

    parameter_axes = 1

    def distribution(self, x: Any) -> Gaussian:
        """Mean and standard deviation ``[..., A]`` from ``[..., 2 A]``."""
        total = None if self.action_shape is None else 2 * math.prod(self.action_shape)
        many = "an even number of features" if total is None else f"{total}"
        expected = f"mean and standard deviation concatenated, {many} on the last axis"
        check_parameters(type(self).__name__, x, expected, total, multiple=2)
        size = x.shape[-1] // 2
        std = self.std_scale * (softplus(self.xp, x[..., size:]) + self.min_std)
        if self.std_scale * self.min_std < _LEAST_STD:  # softplus itself underflows to 0
            std = self.xp.maximum(std, self.xp.full_like(std, _LEAST_STD))
        return Gaussian(x[..., :size], std)

    def kl_divergence(self, old: Gaussian, new: Gaussian) -> Any:
        """KL(old || new) ``[...]`` of the Gaussians; a squashing function common to both does not change it."""
        return self.xp.sum(gaussian_kl(self.xp, old, new), axis=-1)

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.random.normal(key, shape)

    def _sample(self, parameters: Gaussian, noise: Any) -> Any:
        return parameters.mean if noise is None else parameters.mean + parameters.std * noise

    def _check_stored(self, parameters: Gaussian, raw_action: Any) -> None:
        if raw_action.shape != parameters.mean.shape:
            raise ValueError(
                f"{type(self).__name__} got stored samples of shape {tuple(raw_action.shape)}; its input calls for "
                f"{tuple(parameters.mean.shape)}."
            )


class NormalSampler(_GaussianSampler):
    """A Gaussian, neither squashed nor clipped; the environment's adapter clips actions to the space's bounds.

    The standard deviation is chosen in one of two ways. State-dependent (the default): the input is the mean and the
    pre-softplus standard deviation ``s``, concatenated, ``[B, 2 A]``, and ``std = std_scale (softplus(s) + min_std)``.
    State-independent (``state_dependent_std=False``): the input is the mean alone, ``[B, A]``, and
    ``std = std_scale max(exp(log_std), min_std)`` with ``log_std`` a trained ``Param`` ``[A]``. A ``log_std`` outside
    ``[log min_std, 10]`` is taken as the bound, with the gradient at the bound, so that it can come back.

    The log-likelihood is ``sum_i log N(u_i; mean_i, std_i**2)`` of the action ``u`` before any clipping. The entropy is
    exact: ``sum_i log std_i + (1 + log 2 pi) / 2``.

    Args:
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.
        min_std: Least standard deviation, before scaling; below 1e-6 taken as 1e-6.
        std_scale: Factor of the standard deviation.
        action_shape: Shape of one action, of A numbers in all; None for one axis, whose size follows from the input.
        state_dependent_std: True if the standard deviation is part of the input.
        initial_std: First standard deviation, before scaling, if it is not part of the input; None for 1.

    Raises:
        ValueError: If a number is out of range, ``action_shape`` is not a shape or is missing although the standard
            deviation is not an input, or ``initial_std`` is given although it is.
        TypeError: If ``rngs`` is not an ``Rngs``, or ``state_dependent_std`` neither True nor False.
    """

    def __init__(
        self,
        rngs: Rngs,
        entropy_weight: float = 0.0,
        min_std: float = 1e-3,
        std_scale: float = 1.0,
        *,
        action_shape: int | tuple[int, ...] | None = None,
        state_dependent_std: bool = True,
        initial_std: float | None = None,
    ) -> None:
        super().__init__(rngs, entropy_weight, min_std, std_scale, action_shape=action_shape)
        self.state_dependent_std = check_flag("NormalSampler", "state_dependent_std", state_dependent_std)
        if self.state_dependent_std:
            expected = "None where the standard deviation is part of the input"
            require(initial_std is None, "initial_std", initial_std, expected, "NormalSampler")
            return
        if self.action_shape is None:
            raise ValueError(
                "NormalSampler(state_dependent_std=False) needs action_shape, to make one log_std for each dimension; "
                "got None."
            )
        first = check_number("NormalSampler", "initial_std", 1.0 if initial_std is None else initial_std, above=0)
        self.log_std = Param(np.full(math.prod(self.action_shape), math.log(first)))

    def distribution(self, x: Any) -> Gaussian:
        """Mean and standard deviation ``[..., A]`` from ``[..., 2 A]``, or from ``[..., A]`` and ``log_std``."""
        if self.state_dependent_std:
            return super().distribution(x)
        xp, log_std = self.xp, self.log_std[...]
        (size,) = log_std.shape
        expected = f"the mean alone, {size} features on the last axis (the standard deviation is a parameter)"
        check_parameters("NormalSampler", x, expected, size)
        held = xp.clip(log_std, math.log(max(self.min_std, _LEAST_STD)), _LARGEST_LOG_STD)
        log_std = log_std + self.engine.stop_gradient(held - log_std)
        return Gaussian(x, xp.broadcast_to(self.std_scale * xp.exp(log_std), x.shape))

    def _evaluate(self, parameters: Gaussian, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp = self.xp
        self._check_stored(parameters, raw_action)
        log_likelihood = xp.sum(gaussian_log_density(xp, parameters, raw_action), axis=-1)
        entropy = xp.sum(gaussian_entropy(xp, parameters), axis=-1)
        return self._shaped(raw_action), log_likelihood, entropy


class NormalTanhSampler(_GaussianSampler):
    """A Gaussian squashed to (-1, 1) by tanh, with a state-dependent standard deviation.

    The input is the mean and the pre-softplus standard deviation, concatenated: ``[B, 2 A]``. With
    ``std = std_scale (softplus(s) + min_std)`` and the sample ``u = mean + std noise``, the action is ``tanh(u)`` and
    its log-likelihood ``sum_i log N(u_i) - log(1 - tanh(u_i)**2)`` (Haarnoja et al., 2018, arXiv:1801.01290, equation
    21). The entropy is that of the Gaussian plus an estimate, from the same noise, of the mean log-derivative of tanh.

    Args:
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.
        min_std: Number added to the softplus; a standard deviation below 1e-6 is taken as 1e-6.
        std_scale: Factor of the standard deviation.
        action_shape: Shape of one action, of A numbers in all; None for one axis, whose size follows from the input.

    Raises:
        ValueError: If ``entropy_weight`` or ``min_std`` is negative, ``std_scale`` not above 0, or ``action_shape`` not
            a shape.
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    estimates_entropy = True

    def _evaluate(self, parameters: Gaussian, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp = self.xp
        self._check_stored(parameters, raw_action)
        density = gaussian_log_density(xp, parameters, raw_action)
        log_likelihood = xp.sum(density - log_tanh_derivative(xp, raw_action), axis=-1)
        # Without an entropy bonus the estimate is only logged, and the present sample will do.
        around = raw_action if noise is None else parameters.mean + parameters.std * noise
        entropy = xp.sum(gaussian_entropy(xp, parameters) + log_tanh_derivative(xp, around), axis=-1)
        return self._shaped(xp.tanh(raw_action)), log_likelihood, entropy
