"""Dropout with its randomness in the carry."""

from __future__ import annotations

import math
from typing import Any

from multippo.arguments import describe, is_number
from multippo.networks.core import random_state
from multippo.networks.core.random_state import RandomState
from multippo.networks.core.unrolling import check_steps
from multippo.networks.tree_layers import as_float
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.random import Rngs, check_rngs


class Dropout(StatefulModule):
    """Sets features to 0 at random (Srivastava et al., 2014, JMLR 15, section 4): ``y = x m / (1 - rate)``.

    Each number of the mask m is 1 with probability ``1 - rate``, else 0, drawn for each environment and step from the
    key in the carry; the division keeps the mean. The mask is emitted, ``[B, F]`` bool of the flattened features, and
    replay uses the stored one, so it drops what the rollout dropped. ``eval()`` switches dropout off (``y = x``),
    ``train()`` on again.

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
        self.base_key = random_state.base_key(check_rngs("Dropout", rngs))
        self.deterministic = False

    def __call__(self, state: RandomState, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, ...]`` to the same shape."""
        self._check_input(x)
        random_state.check_random_state("Dropout", state, x.shape[0])
        kept = rollout_extras
        if kept is None:
            kept = self._kept(x, 1, lambda size: random_state.noise(self, self._draw, state, (size,)))
        return self._finish(random_state.advance(state), x, kept)

    def unroll(self, state: RandomState, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """All steps at once: no step's mask depends on another's."""
        self._check_input(xs)
        check_steps("Dropout", xs, done)
        random_state.check_random_state("Dropout", state, done.shape[1])
        time, kept = done.shape[0], rollout_extras
        if kept is None:
            kept = self._kept(xs, 2, lambda size: random_state.noise_over_time(self, self._draw, state, time, (size,)))
        return self._finish(random_state.advance(state, time), xs, kept)

    def _check_input(self, x: Any) -> None:
        if not getattr(x, "shape", ()):
            raise TypeError(f"Dropout got {describe(x)}; expected an array with a batch axis.")

    def _kept(self, x: Any, lead: int, noise: Any) -> Any:
        """The mask ``[..., F]`` of an input with ``lead`` leading axes; all True where nothing is dropped."""
        size = math.prod(x.shape[lead:])
        if self.deterministic:
            return self.xp.ones_like(self.xp.reshape(x, (*x.shape[:lead], size)), dtype=self.xp.bool)
        return noise(size) >= self.rate

    def _draw(self, key: Any, shape: tuple[int, ...]) -> Any:
        return self.random.uniform(key, shape)

    def _finish(self, state: RandomState, x: Any, kept: Any) -> StatefulModuleOutput:
        x, xp = as_float(self, x), self.xp
        if self.deterministic:
            return StatefulModuleOutput(state, x, rollout_extras=kept)
        scaled = x / (1.0 - self.rate)
        output = xp.where(xp.reshape(kept, x.shape), scaled, xp.zeros_like(scaled))
        return StatefulModuleOutput(state, output, rollout_extras=kept)

    def initialize_state(self, batch_size: int) -> RandomState:
        """A key for each environment. It outlives episodes: resets keep it."""
        return random_state.new_random_state(self, self.base_key[...], batch_size)

    def draw_ahead(self, state: RandomState, rollout_extras: Any, num_steps: int, replay: bool = False) -> RandomState:
        """The carry with the noise of the next steps; replay needs none, since it has the masks."""
        if replay or rollout_extras.ndim > 2:  # [T, B, F]: a rollout's
            return state
        return random_state.draw_ahead(self, self._draw, state, num_steps, rollout_extras.shape[-1:])
