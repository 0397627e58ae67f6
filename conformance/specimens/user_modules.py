"""Modules as a user would write them: own carry, own noise, own statistics, and the library's ``unroll``."""

from __future__ import annotations

from typing import Any

import numpy as np

import multippo as mp


class MovingAverage(mp.StatefulModule):
    """Mean of the last ``k`` inputs of the episode, from a ring buffer with an index for each environment."""

    def __init__(self, features: int, k: int) -> None:
        self.features, self.k = features, k

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        """Takes inputs ``[B, F]`` to outputs ``[B, F]``."""
        xp, buffer, index = self.xp, state["buffer"], state["index"]
        slots = self.engine.asarray(np.arange(self.k, dtype=np.int32))
        here = (slots == index[:, None])[:, :, None]
        buffer = xp.where(here, x[:, None, :], buffer)
        return mp.StatefulModuleOutput({"buffer": buffer, "index": (index + 1) % self.k}, xp.mean(buffer, axis=1))

    def initialize_state(self, batch_size: int) -> Any:
        """Carry with an empty buffer."""
        index = self.engine.asarray(np.zeros(batch_size, np.int32))
        return {"buffer": self.zeros((batch_size, self.k, self.features)), "index": index}

    def reset_state(self, prev_state: Any) -> Any:
        """Carry with an empty buffer."""
        return {name: self.xp.zeros_like(value) for name, value in prev_state.items()}


class CentredTrace(mp.StatefulModule):
    """Leaky sum of inputs, less their mean over all past rollouts; takes no mask for its statistics."""

    def __init__(self, features: int) -> None:
        self.features = features
        self.decay = mp.Param(np.full(features, 0.5))
        self.mean = mp.Variable(np.zeros(features))
        self.rollouts = mp.Variable(np.zeros(()))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        """Takes inputs ``[B, F]`` to outputs ``[B, F]``."""
        trace = self.xp.tanh(self.decay[...]) * state + (x - self.mean[...])
        loss = 0.01 * self.xp.mean(trace**2, axis=-1)
        return mp.StatefulModuleOutput(trace, trace, loss, {"trace": trace[:, 0]}, rollout_extras=x)

    def initialize_state(self, batch_size: int) -> Any:
        """Carry of an empty sum."""
        return self.zeros((batch_size, self.features))

    def reset_state(self, prev_state: Any) -> Any:
        """Carry of an empty sum."""
        return self.xp.zeros_like(prev_state)

    def update_statistics(self, rollout_extras: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Moves the mean a quarter of the way, and counts the rollout."""
        mean = self.mean[...]
        self.mean[...] = mean + 0.25 * (self.xp.mean(rollout_extras, axis=(0, 1)) - mean)
        self.rollouts[...] = self.rollouts[...] + 1.0


class NoisyGain(mp.StatefulModule):
    """Multiplies inputs by ``1 + gain * noise``, with noise from a key in the carry that outlives episodes."""

    def __init__(self, features: int, rngs: mp.Rngs) -> None:
        self.features = features
        self.gain = mp.Param(np.full(features, 0.1))
        self.base_key = mp.Variable(rngs.key())

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        """Takes inputs ``[B, F]`` to outputs ``[B, F]``."""
        keys = self.random.split(state, 2)
        noise = self.random.normal(keys[:, 0], (self.features,))
        return mp.StatefulModuleOutput(keys[:, 1], x * (1.0 + self.gain[...] * noise))

    def initialize_state(self, batch_size: int) -> Any:
        """Carry of one key for each environment."""
        return self.random.split(self.base_key[...], batch_size)


class Holder(mp.StatefulModule):
    """Container of a user's own, which hands everything on to one module inside."""

    def __init__(self, inner: mp.StatefulModule) -> None:
        self.inner = inner

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        """Calls the inner module."""
        return self.inner(state, x, rollout_extras)

    def initialize_state(self, batch_size: int) -> Any:
        """First carry of the inner module."""
        return self.inner.initialize_state(batch_size)

    def reset_state(self, prev_state: Any) -> Any:
        """Resets the carry of the inner module."""
        return self.inner.reset_state(prev_state)

    def draw_ahead(self, state: Any, rollout_extras: Any, num_steps: int, replay: bool = False) -> Any:
        """Draws the noise of the inner module ahead."""
        return self.inner.draw_ahead(state, rollout_extras, num_steps, replay)

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        """Updates the inner module's statistics; its method must take ``valid``."""
        self.inner.update_statistics(rollout_extras, valid)
