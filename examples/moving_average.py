"""A module written once for both engines: moving averages, and moving averages about a mean that is learnt.

python examples/moving_average.py
MULTIPPO_BACKEND=torch python examples/moving_average.py
"""

from __future__ import annotations

from typing import Any

import array_api_extra as xpx
import numpy as np

import multippo as mp
from multippo.testing import check_module


class MovingAverage(mp.StatefulModule):
    """The mean of the last k inputs of the episode; of all of them, where there are fewer.

    The carry is a ring buffer ``[B, k, features]`` and, for each environment, how many inputs its episode has had.
    """

    def __init__(self, features: int, k: int) -> None:
        self.features, self.k = features, k

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        """``[B, features]`` to the same shape."""
        xp, seen = self.xp, state["seen"]
        rows = self.engine.asarray(np.arange(seen.shape[0]))
        # The sum is a copy: torch writes in place, and not into the caller's buffer. at(...).set(..., copy=True) would
        # copy as well, but in some versions of torch let no gradient through.
        buffer = xpx.at(state["buffer"] + 0)[rows, seen % self.k].set(x)
        seen = seen + 1
        filled = xp.astype(xp.minimum(seen, xp.full_like(seen, self.k)), x.dtype)
        mean = xp.sum(buffer, axis=1) / filled[:, None]
        return mp.StatefulModuleOutput({"buffer": buffer, "seen": seen}, mean)

    def initialize_state(self, batch_size: int) -> Any:
        """An empty buffer."""
        seen = self.engine.asarray(np.zeros(batch_size, np.int32))
        return {"buffer": self.zeros((batch_size, self.k, self.features)), "seen": seen}

    def reset_state(self, prev_state: Any) -> Any:
        """An empty buffer."""
        return {name: self.xp.zeros_like(array) for name, array in prev_state.items()}


class MovingAverageWithStats(MovingAverage):
    """The same, less the mean of all inputs of past rollouts."""

    def __init__(self, features: int, k: int) -> None:
        super().__init__(features, k)
        self.mean = mp.Variable(np.zeros(features))
        self.count = mp.Variable(np.zeros((), np.int32))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        """Emits its input, for ``update_statistics``; in replay it does so again, and nobody looks."""
        out = super().__call__(state, x)
        return out._replace(output=out.output - self.mean[...], rollout_extras=x)

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        """Folds the inputs of a rollout ``[T, B, features]`` into mean and count."""
        xp, mean, count = self.xp, self.mean[...], self.count[...]
        if valid is None:
            valid = xp.ones_like(rollout_extras[..., 0], dtype=xp.bool)
        # What does not count may hold anything, NaN included.
        x = xp.where(valid[..., None], rollout_extras - mean, xp.zeros_like(rollout_extras))
        total = count + xp.sum(xp.astype(valid, count.dtype), dtype=count.dtype)
        divisor = xp.astype(xp.maximum(total, xp.ones_like(total)), mean.dtype)
        self.mean[...] = mean + xp.sum(x, axis=(0, 1)) / divisor
        self.count[...] = total


def main() -> None:
    """Lets ``check_module`` look at both."""
    for module in (MovingAverage(4, 3), MovingAverageWithStats(4, 3)):
        print(f"{type(module).__name__}: {check_module(module, np.zeros(4))}")


if __name__ == "__main__":
    main()
