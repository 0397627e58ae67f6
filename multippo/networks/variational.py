"""Variational bottlenecks: a noisy code, and its information as a loss."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from multippo.arguments import check_features, check_flag, check_number, check_size, known_keywords, require
from multippo.networks.activations import softplus
from multippo.networks.core import random_state
from multippo.networks.core.random_state import Drawing, RandomState
from multippo.networks.core.unrolling import reset_where
from multippo.networks.samplers.distributions import Gaussian, gaussian_kl
from multippo.networks.types import StatefulModuleOutput
from multippo.random import Rngs

_LARGEST = 1e8
"""Bound of means and standard deviations, whose squares are finite in float32."""

_LEAST_STD = 1e-6


class _Bottleneck(Drawing):
    """Base of variational bottlenecks, which turn an input into a code."""

    def __init__(self, latent_size: int, rngs: Rngs, kl_weight: float = 1.0, min_std: float = 1e-6) -> None:
        kind = type(self).__name__
        self.latent_size = check_size(kind, "latent_size", latent_size)
        self.kl_weight = check_number(kind, "kl_weight", kl_weight, least=0)
        self.min_std = check_number(kind, "min_std", min_std, least=0)
        super().__init__(rngs)

    def _encode(self, state: Any, x: Any, done: Any) -> tuple[Gaussian, Any]:
        """The code's distribution and a sample, or the mean, of one step or of all steps of ``done``."""
        check_features(type(self).__name__, x, 2 * self.latent_size)
        random = getattr(state, "random", state)
        self._check_run(random, x, done)
        mean = self._held(x[..., : self.latent_size])
        std = self._held(softplus(self.xp, x[..., self.latent_size :]) + self.min_std)
        if self.min_std < _LEAST_STD:  # softplus itself underflows to 0
            std = self.xp.maximum(std, self.xp.full_like(std, _LEAST_STD))
        if self.deterministic:
            return Gaussian(mean, std), mean
        return Gaussian(mean, std), mean + std * self._noise(random, (self.latent_size,), done)

    def _held(self, x: Any) -> Any:
        still = self.engine.stop_gradient(x)
        return self.xp.clip(still, -_LARGEST, _LARGEST) + (x - still)

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.random.normal(key, shape)


@known_keywords
class VariationalBottleneck(_Bottleneck):
    """A Gaussian code of the input, with the information it carries as a loss (Alemi et al., 2017, arXiv:1612.00410).

    The input is the mean and the pre-softplus standard deviation ``s``, concatenated, ``[B, 2 L]``. With
    ``std = softplus(s) + min_std`` the output is ``z = mean + std noise``, ``[B, L]``, and the regularisation loss
    ``kl_weight sum_i KL(N(mean_i, std_i**2) || N(0, 1))``, ``[B]`` (equation 17 of the paper, for one sample).

    The noise comes from a key for each environment in the carry, so a replay repeats it, and the gradient goes through
    ``z`` to mean and standard deviation. ``eval()`` makes the output the mean, ``train()`` adds the noise again. Means
    and standard deviations are held within 1e8, with the gradient at the bound.

    Metrics: ``kl`` ``[B]`` in nats, before weighing, and ``std`` ``[B]``, the mean over the code.

    Args:
        latent_size: L, the number of numbers in the code.
        rngs: Source of the key.
        kl_weight: Weight of the divergence in the loss.
        min_std: Number added to the softplus; a standard deviation below 1e-6 is taken as 1e-6.

    Raises:
        ValueError: If the size is not an integer of at least 1, or a number negative or not finite.
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    def __call__(self, state: RandomState, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, 2 L]`` to ``[B, L]``."""
        return self._run(state, x, None)

    def unroll(self, state: RandomState, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, 2 L]`` to ``[T, B, L]``, all steps at once, since no step's noise depends on another's."""
        return self._run(state, xs, done)

    def _run(self, state: RandomState, x: Any, done: Any) -> StatefulModuleOutput:
        code, z = self._encode(state, x, done)
        standard = Gaussian(self.xp.zeros_like(z), self.xp.ones_like(z))
        kl = self.xp.sum(gaussian_kl(self.xp, code, standard), axis=-1)
        metrics = {"kl": kl, "std": self.xp.mean(code.std, axis=-1)}
        return StatefulModuleOutput(self._advanced(state, done), z, self.kl_weight * kl, metrics)

    def draw_ahead(self, state: RandomState, rollout_extras: Any, num_steps: int, replay: bool = False) -> RandomState:
        """The carry with the noise of the next steps, which a replay needs as well."""
        return random_state.draw_ahead(self, self._draw, state, num_steps, (self.latent_size,))


class CodeState(NamedTuple):
    """Carry of an ``AR1VariationalBottleneck``.

    Attributes:
        random: Key and step count of every environment.
        previous: Code of the episode's step before, ``[B, L]``; 0 in its first step.
        has_previous: ``[B]`` bool, False before an episode's first step.
    """

    random: RandomState
    previous: Any
    has_previous: Any


class AR1VariationalBottleneck(_Bottleneck):
    """A variational bottleneck whose code should change little from step to step: a first-order autoregression.

    The code ``z_t`` is that of ``VariationalBottleneck``. The regularisation loss is, with ``a = prior_correlation``,

        kl_weight sum_i KL(N(mean_ti, std_ti**2) || N(a z_{t-1,i}, 1 - a**2)) + ar1_weight mean_i (z_ti - z_{t-1,i})**2

    and in the first step of an episode ``kl_weight sum_i KL(N(mean_ti, std_ti**2) || N(0, 1))``. With ``a = 0``, the
    default, the prior is the standard one throughout and ``ar1_weight`` alone smooths; with ``a > 0`` the prior is the
    stationary autoregressive process whose every code by itself is standard normal (Merel et al., 2019,
    arXiv:1811.11711, with a = 0.95 and no ``ar1_weight``).

    Metrics: ``kl`` and ``std`` as in ``VariationalBottleneck``, and ``l2_diff`` ``[B]``, the mean squared change, 0 in
    an episode's first step.

    Args:
        latent_size: L, the number of numbers in the code.
        rngs: Source of the key.
        kl_weight: Weight of the divergence in the loss.
        min_std: Number added to the softplus; a standard deviation below 1e-6 is taken as 1e-6.
        ar1_weight: Weight of the mean squared change in the loss.
        backprop_through_time: True if the loss of a step also moves the code of the step before; False makes
            ``z_{t-1}`` a constant in that loss.
        prior_correlation: a, at least 0 and below 1.

    Raises:
        ValueError: If the size is not an integer of at least 1, or a number out of range.
        TypeError: If ``rngs`` is not an ``Rngs``, or ``backprop_through_time`` neither True nor False.
    """

    def __init__(
        self,
        latent_size: int,
        rngs: Rngs,
        kl_weight: float = 1.0,
        min_std: float = 1e-6,
        ar1_weight: float = 1.0,
        backprop_through_time: bool = True,
        *,
        prior_correlation: float = 0.0,
    ) -> None:
        super().__init__(latent_size, rngs, kl_weight, min_std)
        kind = type(self).__name__
        self.ar1_weight = check_number(kind, "ar1_weight", ar1_weight, least=0)
        self.backprop_through_time = check_flag(kind, "backprop_through_time", backprop_through_time)
        self.prior_correlation = check_number(kind, "prior_correlation", prior_correlation, least=0)
        require(self.prior_correlation < 1.0, "prior_correlation", prior_correlation, "less than 1", kind)

    def __call__(self, state: CodeState, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, 2 L]`` to ``[B, L]``."""
        code, z = self._encode(state, x, None)
        after = CodeState(random_state.advance(state.random), z, self.xp.ones_like(state.has_previous))
        return self._compared(after, code, z, state.previous, state.has_previous)

    def unroll(self, state: CodeState, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, 2 L]`` to ``[T, B, L]``, all steps at once, since the codes do not depend on one another."""
        xp, (code, z) = self.xp, self._encode(state, xs, done)
        previous = xp.concat((state.previous[None], z[:-1]), axis=0)
        has_previous = xp.concat((state.has_previous[None], ~done[:-1]), axis=0)
        after = CodeState(self._advanced(state.random, done), z[-1], xp.ones_like(state.has_previous))
        return self._compared(reset_where(self, done[-1], after), code, z, previous, has_previous)

    def _compared(
        self, state: CodeState, code: Gaussian, z: Any, previous: Any, has_previous: Any
    ) -> StatefulModuleOutput:
        """The output, with the losses that compare a step's code with the one before."""
        xp, a, one = self.xp, self.prior_correlation, self.xp.ones_like(z)
        has_previous = xp.broadcast_to(has_previous[..., None], z.shape)
        if not self.backprop_through_time:
            previous = self.engine.stop_gradient(previous)
        prior = Gaussian(
            a * xp.where(has_previous, previous, xp.zeros_like(z)),
            xp.where(has_previous, math.sqrt(1.0 - a * a) * one, one),
        )
        kl = xp.sum(gaussian_kl(xp, code, prior), axis=-1)
        change = xp.mean((z - xp.where(has_previous, previous, z)) ** 2, axis=-1)
        metrics = {"kl": kl, "std": xp.mean(code.std, axis=-1), "l2_diff": change}
        return StatefulModuleOutput(state, z, self.kl_weight * kl + self.ar1_weight * change, metrics)

    def initialize_state(self, batch_size: int) -> CodeState:
        """A key for each environment, and no code yet."""
        previous = self.zeros((batch_size, self.latent_size))
        return CodeState(super().initialize_state(batch_size), previous, previous[:, 0] > 0)

    def reset_state(self, prev_state: CodeState) -> CodeState:
        """The same key, and no code yet."""
        zeros = self.xp.zeros_like
        return CodeState(prev_state.random, zeros(prev_state.previous), zeros(prev_state.has_previous))

    def draw_ahead(self, state: CodeState, rollout_extras: Any, num_steps: int, replay: bool = False) -> CodeState:
        """The carry with the noise of the next steps, which a replay needs as well."""
        random = random_state.draw_ahead(self, self._draw, state.random, num_steps, (self.latent_size,))
        return state._replace(random=random)
