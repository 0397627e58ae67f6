# ruff: noqa: B905, RUF007 - a line that stays as it is
"""nnx-ppo's fourth tutorial: a moving average with an index for each environment, and statistics beside it."""

import array_api_extra as xpx
import numpy as np

from multippo import nnx
from multippo.networks.containers import Sequential
from multippo.networks.feedforward import Dense
from multippo.networks.types import StatefulModule, StatefulModuleOutput


class MovingAverage(StatefulModule):
    """Divides by k from the first step on, as the tutorial's does."""

    def __init__(self, feature_size: int, k: int):
        self.feature_size = feature_size
        self.k = k

    def __call__(self, state, x, rollout_extras=None):
        idx = state["idx"]
        batch = self.engine.asarray(np.arange(idx.shape[0]))
        new_buffer = xpx.at(state["buffer"] + 0)[batch, idx].set(x)
        return StatefulModuleOutput(
            next_state={"buffer": new_buffer, "idx": (idx + 1) % self.k},
            output=self.xp.mean(new_buffer, axis=1),
            regularization_loss=0.0,
            metrics={},
            rollout_extras=None,
        )

    def initialize_state(self, batch_size: int):
        return {
            "buffer": self.zeros((batch_size, self.k, self.feature_size)),
            "idx": self.engine.asarray(np.zeros(batch_size, np.int32)),
        }

    def reset_state(self, prev_state):
        return {
            "buffer": self.xp.zeros_like(prev_state["buffer"]),
            "idx": self.xp.zeros_like(prev_state["idx"]),
        }


class GlobalMeanStats(nnx.Variable):
    pass


class MovingAverageWithStats(MovingAverage):
    def __init__(self, feature_size, k):
        super().__init__(feature_size, k)
        self.mean = GlobalMeanStats(np.zeros(feature_size))
        self.count = GlobalMeanStats(np.zeros((), np.int32))

    def __call__(self, state, x, rollout_extras=None):
        return super().__call__(state, x).replace(rollout_extras=x)

    def update_statistics(self, rollout_extras):
        flat = rollout_extras.reshape((-1, *rollout_extras.shape[2:]))
        batch_count = flat.shape[0]
        new_count = self.count[...] + batch_count
        delta = self.xp.mean(flat, axis=0) - self.mean[...]
        self.mean[...] = self.mean[...] + delta * (batch_count / new_count)
        self.count[...] = new_count


class StackOfLayers(StatefulModule):
    def __init__(self, sizes, rngs):
        self.layers = nnx.List([Dense(d_in, d_out, rngs) for d_in, d_out in zip(sizes[:-1], sizes[1:])])

    def __call__(self, state, x, rollout_extras=None):
        for layer in self.layers:
            x = layer((), x).output
        return StatefulModuleOutput(state, x)


def network(features, k, sizes, rngs):
    return Sequential([MovingAverageWithStats(features, k), StackOfLayers([features, *sizes], rngs)])
