"""Action samplers: from distribution parameters to an action and its log-likelihood."""

from __future__ import annotations

import abc
import math
from typing import Any

from multippo.networks import random_state
from multippo.networks.random_state import RandomState
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.rngs import Rngs

__all__ = ["ActionSampler", "CategoricalSampler", "NormalTanhSampler"]

_HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class ActionSampler(StatefulModule):
    """Base of the samplers.

    The output is ``{"action", "log_likelihood"}``. In a rollout the sample before squashing is emitted; in replay the
    stored one is evaluated under the current parameters. ``eval()`` makes a sampler return the mode of its
    distribution, ``train()`` makes it sample again. The entropy bonus, ``-entropy_weight * entropy``, is the
    regularisation loss.

    Args:
        rngs: Where the sampler's key comes from.
        entropy_weight: Weight of the entropy in the loss.
    """

    def __init__(self, rngs: Rngs, entropy_weight: float = 0.0) -> None:
        self.entropy_weight = float(entropy_weight)
        self.base_key = random_state.base_key(rngs)
        self.deterministic = False

    @abc.abstractmethod
    def _noise_shape(self, raw_action: Any, x: Any) -> tuple[int, ...]:
        """Shape of one environment's noise, from an emitted sample (or None) and the input (or None)."""

    @abc.abstractmethod
    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        """Noise of the kind the distribution needs."""

    @abc.abstractmethod
    def _sample(self, x: Any, noise: Any) -> Any:
        """The sample before squashing; the distribution's mode where ``noise`` is None."""

    @abc.abstractmethod
    def _evaluate(self, x: Any, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        """Action, log-likelihood ``[...]`` and entropy ``[...]`` of stored or fresh samples."""

    @property
    def _entropy_draws(self) -> bool:
        """Whether replay needs noise too, for an estimate of the entropy."""
        return False

    def __call__(self, state: RandomState, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Samples, or evaluates the stored sample; ``[B, F]`` parameters."""
        noise = None
        if self._needs_noise(rollout_extras):
            noise = random_state.noise(self, self._draw, state, self._noise_shape(rollout_extras, x))
        return self._finish(random_state.advance(state), x, noise, rollout_extras)

    def unroll(self, state: RandomState, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """All steps at once: no step's noise depends on another's."""
        time, noise = done.shape[0], None
        if self._needs_noise(rollout_extras):
            shape = self._noise_shape(rollout_extras, xs)
            noise = random_state.noise_over_time(self, self._draw, state, time, shape)
        return self._finish(random_state.advance(state, time), xs, noise, rollout_extras)

    def _needs_noise(self, rollout_extras: Any) -> bool:
        sampling = rollout_extras is None and not self.deterministic
        return sampling or self._entropy_draws

    def _finish(self, state: RandomState, x: Any, noise: Any, rollout_extras: Any) -> StatefulModuleOutput:
        if rollout_extras is None:
            # A rollout's sample is data to the loss, also when replay is run without having stored it.
            raw_action = self.engine.stop_gradient(self._sample(x, None if self.deterministic else noise))
        else:
            raw_action = rollout_extras
        action, log_likelihood, entropy = self._evaluate(x, raw_action, noise)
        return StatefulModuleOutput(
            next_state=state,
            output={"action": action, "log_likelihood": log_likelihood},
            regularization_loss=-self.entropy_weight * entropy,
            metrics={"entropy": entropy},
            rollout_extras=raw_action,
        )

    def initialize_state(self, batch_size: int) -> RandomState:
        """A key for each environment. It outlives episodes: resets keep it."""
        return random_state.new_random_state(self, self.base_key[...], batch_size)

    def draw_ahead(self, state: RandomState, rollout_extras: Any, num_steps: int, replay: bool = False) -> RandomState:
        """The carry with the noise of the next steps."""
        if replay and not self._entropy_draws:
            return state
        shape = self._noise_shape(rollout_extras, None)
        return random_state.draw_ahead(self, self._draw, state, num_steps, shape)


class NormalTanhSampler(ActionSampler):
    """A Gaussian squashed to (-1, 1) by tanh, with a state-dependent standard deviation.

    The input is the mean and the pre-softplus standard deviation, concatenated: ``[B, 2 A]``. With
    ``std = std_scale (softplus(s) + min_std)`` and the sample ``u = mean + std noise``, the action is ``tanh(u)`` and
    its log-likelihood ``sum_i log N(u_i) - log(1 - tanh(u_i)**2)`` (Haarnoja et al., 2018, arXiv:1801.01290, equation
    21). The entropy is that of the Gaussian plus an estimate, from the same noise, of the mean log-derivative of tanh.

    Args:
        rngs: Where the sampler's key comes from.
        entropy_weight: Weight of the entropy in the loss.
        min_std: Added to the softplus.
        std_scale: Multiplies the standard deviation.

    Raises:
        ValueError: If ``min_std`` is negative or ``std_scale`` not above 0.
    """

    def __init__(self, rngs: Rngs, entropy_weight: float = 0.0, min_std: float = 1e-3, std_scale: float = 1.0) -> None:
        super().__init__(rngs, entropy_weight)
        if min_std < 0 or std_scale <= 0:
            raise ValueError(
                f"NormalTanhSampler(min_std={min_std!r}, std_scale={std_scale!r}) is not possible: expected min_std of "
                "at least 0 and std_scale above 0."
            )
        self.min_std, self.std_scale = float(min_std), float(std_scale)

    @property
    def _entropy_draws(self) -> bool:
        return self.entropy_weight != 0.0

    def _noise_shape(self, raw_action: Any, x: Any) -> tuple[int, ...]:
        return (raw_action.shape[-1],) if raw_action is not None else (x.shape[-1] // 2,)

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.random.normal(key, shape)

    def _mean_and_std(self, x: Any) -> tuple[Any, Any]:
        size = x.shape[-1] // 2
        if x.shape[-1] % 2 or not size:
            raise ValueError(
                f"NormalTanhSampler got an input of shape {tuple(x.shape)}; expected mean and standard deviation "
                "concatenated, an even number of features on the last axis."
            )
        return x[..., :size], self.std_scale * (softplus(self.xp, x[..., size:]) + self.min_std)

    def _sample(self, x: Any, noise: Any) -> Any:
        mean, std = self._mean_and_std(x)
        return mean if noise is None else mean + std * noise

    def _evaluate(self, x: Any, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp = self.xp
        mean, std = self._mean_and_std(x)
        if raw_action.shape != mean.shape:
            raise ValueError(
                f"NormalTanhSampler got stored samples of shape {tuple(raw_action.shape)}; its input of shape "
                f"{tuple(x.shape)} calls for {tuple(mean.shape)}."
            )
        log_std = xp.log(std)
        gaussian = -0.5 * ((raw_action - mean) / std) ** 2 - log_std - _HALF_LOG_2PI
        log_likelihood = xp.sum(gaussian - log_tanh_derivative(xp, raw_action), axis=-1)
        # Without an entropy bonus the estimate is only logged; the sample at hand serves as well then.
        around = raw_action if noise is None else mean + std * noise
        entropy = xp.sum(log_std + (0.5 + _HALF_LOG_2PI) + log_tanh_derivative(xp, around), axis=-1)
        return xp.tanh(raw_action), log_likelihood, entropy


class CategoricalSampler(ActionSampler):
    """One of N actions; the input is unnormalised logits ``[B, N]``, the action an integer ``[B]`` counted from 0.

    Sampling inverts the cumulative distribution at one uniform number a step, whatever N is; an action of
    probability 0 is never sampled.

    Args:
        rngs: Where the sampler's key comes from.
        entropy_weight: Weight of the entropy in the loss.
    """

    def _noise_shape(self, raw_action: Any, x: Any) -> tuple[int, ...]:
        return ()

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.random.uniform(key, shape)

    def _sample(self, x: Any, noise: Any) -> Any:
        xp = self.xp
        if noise is None:
            return xp.argmax(x, axis=-1)
        probabilities = xp.exp(log_softmax(xp, self.engine, x))
        cumulative = xp.cumulative_sum(probabilities, axis=-1)
        # An action of probability 0 is out of reach whatever the rounding of a parallel sum: its entry is 0, and the
        # number drawn is relative to the largest entry of the others.
        cumulative = xp.where(probabilities > 0, cumulative, xp.zeros_like(cumulative))
        reached = noise[..., None] * xp.max(cumulative, axis=-1, keepdims=True) < cumulative
        return xp.argmax(xp.astype(reached, xp.int32), axis=-1)  # the first

    def _evaluate(self, x: Any, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp = self.xp
        log_probs = log_softmax(xp, self.engine, x)
        log_likelihood = xp.take_along_axis(log_probs, raw_action[..., None], axis=-1)[..., 0]
        # 0 log 0 is 0, for the gradient too.
        possible = xp.where(xp.isfinite(log_probs), log_probs, xp.zeros_like(log_probs))
        entropy = -xp.sum(xp.exp(log_probs) * possible, axis=-1)
        return raw_action, log_likelihood, entropy


def softplus(xp: Any, x: Any) -> Any:
    """``log(1 + exp(x))``, finite for every x, with the derivative ``sigmoid(x)`` at 0 too."""
    return xp.maximum(x, xp.zeros_like(x)) + xp.log1p(xp.exp(-xp.abs(x)))


def log_tanh_derivative(xp: Any, x: Any) -> Any:
    """``log(1 - tanh(x)**2)``, finite for every x."""
    return 2.0 * (math.log(2.0) - x - softplus(xp, -2.0 * x))


def log_softmax(xp: Any, engine: Any, x: Any) -> Any:
    """Normalised log-probabilities over the last axis."""
    shifted = x - engine.stop_gradient(xp.max(x, axis=-1, keepdims=True))
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))
