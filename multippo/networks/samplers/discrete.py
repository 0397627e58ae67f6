"""Samplers of discrete actions: one of N, several such choices at once, or independent switches."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from multippo.arguments import describe
from multippo.networks.samplers.base import ActionSampler, check_action_shape, check_parameters
from multippo.networks.samplers.distributions import (
    Bernoulli,
    Categorical,
    bernoulli_entropy,
    bernoulli_kl,
    bernoulli_log_probability,
    categorical_entropy,
    categorical_kl,
    categorical_log_probability,
    log_softmax,
    mask_logits,
    sigmoid,
)
from multippo.random import Rngs


class CategoricalSampler(ActionSampler):
    """One of N actions; the input is unnormalised logits ``[B, N]``, the action an integer ``[B]`` counted from 0.

    A masked input is ``{"logits": [B, N], "mask": [B, N]}``, where a mask of any type allows the actions at which it is
    not 0. A masked action has probability 0, and no gradient reaches its logit; likelihood and entropy are those of the
    distribution over the allowed ones. A row that allows nothing is taken to allow everything. Logits of -inf mask as
    well, but then one in each row has to be finite. Containers lead a mask from the observation to the sampler:

        Parallel(logits=Sequential([Filter("position"), Dense(3, 4, rngs)]), mask=Filter("action_mask"))

    Sampling inverts the cumulative distribution at one uniform number a step, whatever N is; an action of
    probability 0 is never sampled.

    Args:
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.

    Raises:
        ValueError: If ``entropy_weight`` is negative or not a number.
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    parameter_axes = 1

    def distribution(self, x: Any) -> Categorical:
        """Log-probabilities ``[..., N]``."""
        logits, mask = _logits_and_mask("CategoricalSampler", x)
        check_parameters("CategoricalSampler", logits, "an array [B, N] of logits", None)
        masked = logits if mask is None else mask_logits(self.xp, logits, mask)
        return Categorical(log_softmax(self.xp, self.engine, masked))

    def num_choices(self, parameters: Categorical) -> Any:
        """N, the number of logits."""
        return parameters.log_probabilities.shape[-1]

    def kl_divergence(self, old: Categorical, new: Categorical) -> Any:
        """KL(old || new) ``[...]``, infinite where the new one excludes an action that the old one allows."""
        return categorical_kl(self.xp, old, new)

    def _noise_shape(self, raw_action: Any, parameters: Any) -> tuple[int, ...]:
        return ()

    def _sample(self, parameters: Categorical, noise: Any) -> Any:
        xp, log_probabilities = self.xp, parameters.log_probabilities
        if noise is None:
            return xp.argmax(log_probabilities, axis=-1)
        probabilities = xp.exp(log_probabilities)
        cumulative = xp.cumulative_sum(probabilities, axis=-1)
        largest = cumulative[..., -1:]
        if not self.engine.sums_in_order:
            # An action of probability 0 is out of reach whatever the rounding of a parallel sum, since its entry is 0
            # and the number drawn is relative to the largest entry of the others.
            cumulative = xp.where(probabilities > 0, cumulative, xp.zeros_like(cumulative))
            largest = xp.max(cumulative, axis=-1, keepdims=True)
        reached = noise[..., None] * largest < cumulative
        return xp.argmax(xp.astype(reached, xp.int32), axis=-1)  # the first

    def _evaluate(self, parameters: Categorical, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        log_likelihood = categorical_log_probability(self.xp, parameters, raw_action)
        return raw_action, log_likelihood, categorical_entropy(self.xp, parameters)


class MultiCategoricalSampler(CategoricalSampler):
    """Several independent choices, one of ``nvec[k]`` each, for a MultiDiscrete space of any shape.

    The input is the logits of all choices, ``[B, sum(nvec)]``, one block after another in the (row-major) order of
    ``nvec``; or ``{"logits", "mask"}`` of that shape, as for ``CategoricalSampler``, with its rule for each block. The
    action has the shape of ``nvec``, ``[B, *nvec.shape]``, counted from 0. Log-likelihood and entropy are sums over the
    choices.

    Args:
        nvec: Number of options of each choice: integers of at least 1, of any shape.
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.

    Raises:
        ValueError: If ``nvec`` is empty or holds anything but integers of at least 1, or ``entropy_weight`` is negative
            or not a number.
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    def __init__(self, nvec: Any, rngs: Rngs, entropy_weight: float = 0.0) -> None:
        super().__init__(rngs, entropy_weight)
        sizes = np.asarray(nvec)
        if not sizes.size or sizes.dtype.kind not in "iu" or sizes.min() < 1:
            raise ValueError(
                f"MultiCategoricalSampler(nvec={nvec!r}) is not possible: expected integers of at least 1, one for "
                "each choice."
            )
        self.action_shape = tuple(sizes.shape)
        self.sizes = tuple(int(size) for size in sizes.ravel())

    parameter_axes = 2

    def distribution(self, x: Any) -> Categorical:
        """Log-probabilities ``[..., K, max(nvec)]`` of K choices; -inf beyond a choice's options."""
        logits, mask = _logits_and_mask("MultiCategoricalSampler", x)
        total = sum(self.sizes)
        expected = f"{total} logits on the last axis, a block for each of its choices of {list(self.sizes)} options"
        check_parameters("MultiCategoricalSampler", logits, expected, total)
        return Categorical(log_softmax(self.xp, self.engine, self._blocks(logits, mask)))

    def num_choices(self, parameters: Categorical) -> Any:
        """The array ``nvec``."""
        del parameters
        return np.reshape(self.sizes, self.action_shape or ())

    def kl_divergence(self, old: Categorical, new: Categorical) -> Any:
        """KL(old || new) ``[...]``, summed over the choices."""
        return self.xp.sum(categorical_kl(self.xp, old, new), axis=-1)

    def _blocks(self, logits: Any, mask: Any) -> Any:
        """Logits ``[..., sum(nvec)]`` as ``[..., K, max(nvec)]``."""
        xp, widest = self.xp, max(self.sizes)
        if len(set(self.sizes)) == 1:
            shape = (*logits.shape[:-1], len(self.sizes), widest)
            logits = xp.reshape(logits, shape)
            return logits if mask is None else mask_logits(xp, logits, xp.reshape(mask, shape))
        blocks, start = [], 0
        for size in self.sizes:
            block = logits[..., start : start + size]
            if mask is not None:
                block = mask_logits(xp, block, mask[..., start : start + size])
            padding = xp.full_like(logits[..., : widest - size], -math.inf)
            blocks.append(xp.concat([block, padding], axis=-1))
            start += size
        return xp.stack(blocks, axis=-2)

    def _noise_shape(self, raw_action: Any, parameters: Any) -> tuple[int, ...]:
        return (len(self.sizes),)

    def _evaluate(self, parameters: Categorical, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp = self.xp
        action, log_likelihood, entropy = super()._evaluate(parameters, raw_action, noise)
        return self._shaped(action), xp.sum(log_likelihood, axis=-1), xp.sum(entropy, axis=-1)


def _logits_and_mask(kind: str, x: Any) -> tuple[Any, Any]:
    if not isinstance(x, Mapping):
        return x, None
    if set(x) != {"logits", "mask"}:
        raise ValueError(f"{kind} got {describe(x)}; expected logits, or 'logits' and 'mask'.")
    logits, mask = x["logits"], x["mask"]
    if not hasattr(logits, "shape") or getattr(mask, "shape", None) != logits.shape:
        raise ValueError(
            f"{kind} got {describe(logits)} as its logits and {describe(mask)} as the mask; expected two arrays of one "
            "shape, the mask with 1 for every action that is allowed."
        )
    return logits, mask


class BernoulliSampler(ActionSampler):
    """Independent switches, for a MultiBinary space of any shape.

    The input is log-odds ``[B, K]``; the action is 0 or 1, ``[B, *action_shape]``. Log-likelihood and entropy are sums
    over the switches. The mode is 1 where the odds are better than even.

    Args:
        rngs: Source of the sampler's key.
        entropy_weight: Weight of the entropy in the loss.
        action_shape: Shape of one action, of K switches in all; None for one axis of as many as the input has.

    Raises:
        ValueError: If ``action_shape`` is not a shape, or ``entropy_weight`` is negative or not a number.
        TypeError: If ``rngs`` is not an ``Rngs``.
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
        """Two choices, off and on."""
        del parameters
        return 2

    def kl_divergence(self, old: Bernoulli, new: Bernoulli) -> Any:
        """KL(old || new) ``[...]``, summed over the switches."""
        return self.xp.sum(bernoulli_kl(self.xp, old, new), axis=-1)

    def _sample(self, parameters: Bernoulli, noise: Any) -> Any:
        xp = self.xp
        drawn = parameters.logits > 0 if noise is None else noise < sigmoid(xp, parameters.logits)
        return xp.astype(drawn, xp.int32)

    def _evaluate(self, parameters: Bernoulli, raw_action: Any, noise: Any) -> tuple[Any, Any, Any]:
        xp, logits = self.xp, parameters.logits
        log_probability = bernoulli_log_probability(xp, parameters, xp.astype(raw_action, logits.dtype))
        return (
            self._shaped(raw_action),
            xp.sum(log_probability, axis=-1),
            xp.sum(bernoulli_entropy(xp, parameters), axis=-1),
        )
