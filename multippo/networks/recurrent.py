"""Recurrent layers: the framework's own cells behind one signature."""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.networks.initializers import lecun_normal, orthogonal
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.networks.utils import check_features, check_size
from multippo.networks.variables import Param
from multippo.rngs import Rngs, check_rngs

__all__ = ["LSTM"]


class LSTM(StatefulModule):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate of Gers et al., 2000).

    With gates i, f, g, o cut from ``z = x @ input_kernel + h @ recurrent_kernel + bias`` in this order:
    ``c' = sigmoid(f) c + sigmoid(i) tanh(g)`` and ``h' = sigmoid(o) tanh(c')``. The output is ``h'``; the carry is
    ``{"h", "c"}``, ``[B, hidden]`` each.

    Args:
        in_features: Features of the input.
        hidden_features: Units.
        rngs: Where the initial kernels are drawn from: normal for the input, orthogonal per gate for the recurrence.
        trainable_initial_state: Learn the carry an episode starts from, instead of zeros. Its gradient comes from the
            episodes that start inside a training sequence.
        forget_bias: Initial bias of the forget gate (Jozefowicz et al., 2015).
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: Rngs,
        *,
        trainable_initial_state: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        self.in_features = check_size("LSTM", "in_features", in_features)
        self.hidden_features = check_size("LSTM", "hidden_features", hidden_features)
        check_rngs("LSTM", rngs)
        hidden = self.hidden_features
        input_kernel = lecun_normal()(rngs, (self.in_features, 4 * hidden))
        recurrent_kernel = np.concatenate([orthogonal()(rngs, (hidden, hidden)) for _ in range(4)], axis=1)
        bias = np.zeros(4 * hidden)
        bias[hidden : 2 * hidden] = forget_bias
        self.core = self.engine.lstm(input_kernel, recurrent_kernel, bias)
        self.trainable_initial_state = trainable_initial_state
        if trainable_initial_state:
            self.initial_h = Param(np.zeros(hidden))
            self.initial_c = Param(np.zeros(hidden))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, in]`` to ``[B, hidden]``."""
        check_features("LSTM", x, self.in_features)
        h, c = self.core.step(x, state["h"], state["c"])
        return StatefulModuleOutput({"h": h, "c": c}, h)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, in]`` to ``[T, B, hidden]``; the input product of all steps is one call."""
        check_features("LSTM", xs, self.in_features)
        fresh = self.reset_state(state)
        hs, h, c = self.core.unroll(xs, state["h"], state["c"], done, fresh["h"], fresh["c"])
        return StatefulModuleOutput({"h": h, "c": c}, hs)

    def initialize_state(self, batch_size: int) -> Any:
        """The carry of an episode's start."""
        zeros = self.core.carry(batch_size)
        return self.reset_state({"h": zeros, "c": zeros})

    def reset_state(self, prev_state: Any) -> Any:
        """Zeros, or the trained initial state."""
        xp, (h, c) = self.xp, (prev_state["h"], prev_state["c"])
        if not self.trainable_initial_state:
            return {"h": xp.zeros_like(h), "c": xp.zeros_like(c)}
        return {
            "h": xp.broadcast_to(self.initial_h[...], h.shape),
            "c": xp.broadcast_to(self.initial_c[...], c.shape),
        }
