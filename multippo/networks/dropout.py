"""Dropout with its randomness in the carry."""

from __future__ import annotations

import math
from typing import Any

from multippo.arguments import describe, is_number
from multippo.networks.core.random_state import Drawing, RandomState, draw_ahead
from multippo.networks.tree_layers import as_float
from multippo.networks.types import StatefulModuleOutput
from multippo.random import Rngs


class Dropout(Drawing):
    """Sets features to 0 at random (Srivastava et al., 2014, JMLR 15, section 4): ``y = x m / (1 - rate)``.

    Each number of the mask m is 1 with probability ``1 - rate``, else 0, drawn for each environment and step from the
    key in the carry; the division keeps the mean. The mask is emitted, ``[B, F]`` bool of the flattened features, and
    replay uses the stored one, so it drops the same features as the rollout. ``eval()`` switches dropout off
    (``y = x``), ``train()`` on again.

    Args:
        rate: Probability of a 0, in [0, 1).
        rngs: Source of the key.

    Raises:
        ValueError: If ``rate`` is out of range.
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    def __init__(self, rate: float, rngs: Rngs) -> None:
        if not is_number(rate) or not 0 <= rate < 1:
            raise ValueError(f"Dropout(rate={rate!r}) is not possible: expected a number of at least 0 and below 1.")
        self.rate = float(rate)
        super().__init__(rngs)

    def __call__(self, state: RandomState, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, ...]`` to the same shape."""
        return self._run(state, x, None, rollout_extras)

    def unroll(self, state: RandomState, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs all steps at once, since no step's mask depends on another's."""
        return self._run(state, xs, done, rollout_extras)

    def _run(self, state: RandomState, x: Any, done: Any, kept: Any) -> StatefulModuleOutput:
        if not getattr(x, "shape", ()):
            raise TypeError(f"Dropout got {describe(x)}; expected an array with a batch axis.")
        self._check_run(state, x, done)
        xp, lead = self.xp, 1 if done is None else 2
        size = math.prod(x.shape[lead:])
        if kept is None and self.deterministic:
            kept = xp.ones_like(xp.reshape(x, (*x.shape[:lead], size)), dtype=xp.bool)
        elif kept is None:
            kept = self._noise(state, (size,), done) >= self.rate
        state, x = self._advanced(state, done), as_float(self, x)
        if self.deterministic:
            return StatefulModuleOutput(state, x, rollout_extras=kept)
        scaled = x / (1.0 - self.rate)
        output = xp.where(xp.reshape(kept, x.shape), scaled, xp.zeros_like(scaled))
        return StatefulModuleOutput(state, output, rollout_extras=kept)

    def draw_ahead(self, state: RandomState, rollout_extras: Any, num_steps: int, replay: bool = False) -> RandomState:
        """The carry with the noise of the next steps; replay draws none, since it has the masks."""
        if replay or rollout_extras.ndim > 2:  # [T, B, F]: a rollout's
            return state
        return draw_ahead(self, self._draw, state, num_steps, rollout_extras.shape[-1:])
