"""Densities, entropies and divergences as functions of arrays, finite with their gradients at every extreme.

All are elementwise, or over the last axis where a docstring says so; the samplers sum over an action's dimensions.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

from multippo.networks.activations import softplus

HALF_LOG_2PI = 0.5 * math.log(2.0 * math.pi)


class Gaussian(NamedTuple):
    """Independent normal variables.

    Attributes:
        mean: Means, ``[..., A]``.
        std: Standard deviations, ``[..., A]``, above 0.
    """

    mean: Any
    std: Any


class Categorical(NamedTuple):
    """A choice of one of N, or several such choices side by side.

    Attributes:
        log_probabilities: Log-probabilities, ``[..., N]`` or ``[..., K, N]``, normalised over the last axis; -inf for
            impossible choices.
    """

    log_probabilities: Any


class Bernoulli(NamedTuple):
    """Independent binary variables.

    Attributes:
        logits: Log-odds of a 1, ``[..., K]``.
    """

    logits: Any


def gaussian_log_density(xp: Any, given: Gaussian, x: Any) -> Any:
    """``log N(x; mean, std**2)``."""
    return -0.5 * ((x - given.mean) / given.std) ** 2 - xp.log(given.std) - HALF_LOG_2PI


def gaussian_entropy(xp: Any, given: Gaussian) -> Any:
    """``log std + (1 + log 2 pi) / 2``."""
    return xp.log(given.std) + (0.5 + HALF_LOG_2PI)


def gaussian_kl(xp: Any, old: Gaussian, new: Gaussian) -> Any:
    """``log(s'/s) + (s**2 + (m - m')**2) / (2 s'**2) - 1/2`` for old ``(m, s)`` and new ``(m', s')``."""
    spread, shift = old.std / new.std, (old.mean - new.mean) / new.std
    return xp.log(new.std) - xp.log(old.std) + 0.5 * (spread**2 + shift**2 - 1.0)


def categorical_log_probability(xp: Any, given: Categorical, index: Any) -> Any:
    """``log p(index)``, over the last axis of the probabilities."""
    return xp.take_along_axis(given.log_probabilities, index[..., None], axis=-1)[..., 0]


def categorical_entropy(xp: Any, given: Categorical) -> Any:
    """``-sum p log p`` over the last axis; impossible entries add 0."""
    log_p = given.log_probabilities
    # 0 log 0 is 0, for the gradient too.
    return -xp.sum(xp.exp(log_p) * xp.where(xp.isfinite(log_p), log_p, xp.zeros_like(log_p)), axis=-1)


def categorical_kl(xp: Any, old: Categorical, new: Categorical) -> Any:
    """``sum p (log p - log p')`` over the last axis, infinite where ``p'`` is 0 and ``p`` is not."""
    log_p, log_q = old.log_probabilities, new.log_probabilities
    possible = xp.isfinite(log_p)
    zero = xp.zeros_like(log_p)
    return xp.sum(xp.exp(log_p) * (xp.where(possible, log_p, zero) - xp.where(possible, log_q, zero)), axis=-1)


def bernoulli_log_probability(xp: Any, given: Bernoulli, x: Any) -> Any:
    """``log p(x)`` for x of 0 and 1 in the logits' type."""
    return -softplus(xp, (1.0 - 2.0 * x) * given.logits)


def bernoulli_entropy(xp: Any, given: Bernoulli) -> Any:
    """``-p log p - (1 - p) log(1 - p)``."""
    log_p, log_not = _both_log_probabilities(xp, given)
    return -xp.exp(log_p) * log_p - xp.exp(log_not) * log_not


def bernoulli_kl(xp: Any, old: Bernoulli, new: Bernoulli) -> Any:
    """``p (log p - log p') + (1 - p) (log(1 - p) - log(1 - p'))``."""
    (log_p, log_not), (log_q, log_not_q) = _both_log_probabilities(xp, old), _both_log_probabilities(xp, new)
    return xp.exp(log_p) * (log_p - log_q) + xp.exp(log_not) * (log_not - log_not_q)


def _both_log_probabilities(xp: Any, given: Bernoulli) -> tuple[Any, Any]:
    return -softplus(xp, -given.logits), -softplus(xp, given.logits)


def sigmoid(xp: Any, x: Any) -> Any:
    """``1 / (1 + exp(-x))``."""
    return xp.exp(-softplus(xp, -x))


def log_tanh_derivative(xp: Any, x: Any) -> Any:
    """``log(1 - tanh(x)**2)``, finite for every x."""
    return 2.0 * (math.log(2.0) - x - softplus(xp, -2.0 * x))


def log_softmax(xp: Any, engine: Any, x: Any) -> Any:
    """Normalised log-probabilities over the last axis."""
    shifted = x - engine.stop_gradient(xp.max(x, axis=-1, keepdims=True))
    return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))


def mask_logits(xp: Any, logits: Any, mask: Any) -> Any:
    """Logits with -inf where ``mask`` is 0; a row of the last axis that allows nothing is taken to allow everything."""
    allowed = mask != 0
    # Without a choice there is not a distribution; a NaN would end the run for an observation that does not matter,
    # such as the last one of an episode.
    allowed = allowed | ~xp.any(allowed, axis=-1, keepdims=True)
    return xp.where(allowed, logits, xp.full_like(logits, -math.inf))
