"""Recurrent layers: the framework's own LSTM and GRU cells behind one signature, and a rate network.

The carry of each layer is a dict of ``[B, hidden]`` arrays; the output is the carry's ``h``.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from multippo.arguments import check_features, check_flag, check_number, check_size, require
from multippo.networks.activations import Activation, activate, resolve_activation
from multippo.networks.core.binding import Param, Variable
from multippo.networks.core.unrolling import check_steps, fold_time, take_carry, unfold_time
from multippo.networks.initializers import lecun_normal, orthogonal
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.random import Rngs, check_rngs

_Kernels = tuple[np.ndarray, np.ndarray]


class _Recurrent(StatefulModule):
    """Base of the recurrent layers: the carry is a dict of ``[B, hidden]``, zeros or trained where an episode starts.

    Attributes:
        entries: Keys of the carry.
    """

    entries: ClassVar[tuple[str, ...]] = ("h",)
    scans_in_replay = True

    def _adopt_sizes(self, in_features: int, hidden_features: int, rngs: Rngs, gates: int) -> _Kernels:
        """Keeps the sizes; returns initial kernels of the input and of the recurrence."""
        kind = type(self).__name__
        self.in_features = check_size(kind, "in_features", in_features)
        self.hidden_features = hidden = check_size(kind, "hidden_features", hidden_features)
        rngs = check_rngs(kind, rngs)
        input_kernel = lecun_normal()(rngs, (self.in_features, gates * hidden))
        return input_kernel, np.concatenate([orthogonal()(rngs, (hidden, hidden)) for _ in range(gates)], axis=1)

    def _adopt_initial(self, trainable: bool) -> None:
        self.trainable_initial_state = check_flag(type(self).__name__, "trainable_initial_state", trainable)
        for entry in self.entries if trainable else ():
            setattr(self, f"initial_{entry}", Param(np.zeros(self.hidden_features)))

    def _empty(self, batch_size: int) -> Any:
        """Zeros ``[B, hidden]`` of the weights' type."""
        return self.core.carry(batch_size)  # pyright: ignore[reportAttributeAccessIssue]

    def _carried(self, state: Any, x: Any, done: Any = None) -> list[Any]:
        """The arrays of a carry, in the order of ``entries``, if it fits an input of one step or of many."""
        kind = type(self).__name__
        check_features(kind, x, self.in_features)
        if done is not None:
            check_steps(kind, x, done)
        batch = x.shape[:-1] if done is None else done.shape[1:]
        return take_carry(kind, state, self.entries, (*batch, self.hidden_features))

    def initialize_state(self, batch_size: int) -> Any:
        """The carry at the start of an episode."""
        return self.reset_state(dict.fromkeys(self.entries, self._empty(batch_size)))

    def reset_state(self, prev_state: Any) -> Any:
        """Zeros, or the trained initial state."""
        if not self.trainable_initial_state:
            return {entry: self.xp.zeros_like(prev_state[entry]) for entry in self.entries}
        initial = {entry: getattr(self, f"initial_{entry}")[...] for entry in self.entries}
        return {entry: self.xp.broadcast_to(row, prev_state[entry].shape) for entry, row in initial.items()}


class LSTM(_Recurrent):
    """Long short-term memory (Hochreiter and Schmidhuber, 1997; forget gate of Gers et al., 2000).

    With gates i, f, g, o cut from ``z = x @ input_kernel + h @ recurrent_kernel + bias`` in this order:
    ``c' = sigmoid(f) c + sigmoid(i) tanh(g)`` and ``h' = sigmoid(o) tanh(c')``. The output is ``h'``; the carry is
    ``{"h", "c"}``, ``[B, hidden]`` each.

    Args:
        in_features: Number of features of the input.
        hidden_features: Number of units.
        rngs: Source of the initial kernels: normal for the input, orthogonal per gate for the recurrence.
        trainable_initial_state: True for a learnt carry at an episode's start, instead of zeros. The gradient comes
            from the episodes that start inside a training sequence.
        forget_bias: Initial bias of the forget gate (Jozefowicz et al., 2015).

    Raises:
        ValueError: If a size is not an integer of at least 1, or ``forget_bias`` not a finite number.
        TypeError: If ``rngs`` is not an ``Rngs``, or ``trainable_initial_state`` neither True nor False.
    """

    entries = ("h", "c")

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: Rngs,
        *,
        trainable_initial_state: bool = False,
        forget_bias: float = 1.0,
    ) -> None:
        kernels, hidden = self._adopt_sizes(in_features, hidden_features, rngs, 4), self.hidden_features
        bias = np.zeros(4 * hidden)
        bias[hidden : 2 * hidden] = check_number("LSTM", "forget_bias", forget_bias)
        self.core = self.engine.lstm(*kernels, bias)
        self._adopt_initial(trainable_initial_state)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, in]`` to ``[B, hidden]``."""
        h, c = self.core.step(x, *self._carried(state, x))
        return StatefulModuleOutput({"h": h, "c": c}, h)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, in]`` to ``[T, B, hidden]``; the input product of all steps is one call."""
        h, c = self._carried(state, xs, done)
        fresh = self.reset_state(state)
        hs, h, c = self.core.unroll(xs, h, c, done, fresh["h"], fresh["c"])
        return StatefulModuleOutput({"h": h, "c": c}, hs)


class GRU(_Recurrent):
    """Gated recurrent unit (Cho et al., 2014, arXiv:1406.1078), the reset gate applied after the recurrent product.

    With gates r, z, n cut in this order from ``a = x @ input_kernel + bias`` and ``b = h @ recurrent_kernel``:
    ``r = sigmoid(a_r + b_r)``, ``z = sigmoid(a_z + b_z)``, ``n = tanh(a_n + r (b_n + recurrent_bias))`` and
    ``h' = (1 - z) n + z h``. Cho et al. multiply h by r before the product (their equation 8); the form here is that of
    cuDNN and torch, without their recurrent biases of r and z, which would be redundant. The output is ``h'``; the
    carry is ``{"h"}``, ``[B, hidden]``.

    Args:
        in_features: Number of features of the input.
        hidden_features: Number of units.
        rngs: Source of the initial kernels: normal for the input, orthogonal per gate for the recurrence.
        trainable_initial_state: True for a learnt carry at an episode's start, instead of zeros. The gradient comes
            from the episodes that start inside a training sequence.

    Raises:
        ValueError: If a size is not an integer of at least 1.
        TypeError: If ``rngs`` is not an ``Rngs``, or ``trainable_initial_state`` neither True nor False.
    """

    def __init__(
        self, in_features: int, hidden_features: int, rngs: Rngs, *, trainable_initial_state: bool = False
    ) -> None:
        kernels, hidden = self._adopt_sizes(in_features, hidden_features, rngs, 3), self.hidden_features
        self.core = self.engine.gru(*kernels, np.zeros(3 * hidden), np.zeros(hidden))
        self._adopt_initial(trainable_initial_state)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, in]`` to ``[B, hidden]``."""
        h = self.core.step(x, *self._carried(state, x))
        return StatefulModuleOutput({"h": h}, h)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, in]`` to ``[T, B, hidden]``; the input product of all steps is one call."""
        (h,) = self._carried(state, xs, done)
        hs, h = self.core.unroll(xs, h, done, self.reset_state(state)["h"])
        return StatefulModuleOutput({"h": h}, hs)


class RNN(_Recurrent):
    """Simple recurrent network (Elman, 1990), with a leak if there is a time constant.

    ``h' = (1 - 1/tau) h + (1/tau) f(x @ input_kernel + h @ recurrent_kernel + bias)``: the Euler step, of one
    environment step, of a rate network ``tau dh/dt = -h + f(W x + U h + b)`` (Dayan and Abbott, 2001, "Theoretical
    Neuroscience", equation 7.11). Without a time constant tau is 1, and ``h' = f(...)``. The output is ``h'``; the
    carry is ``{"h"}``, ``[B, hidden]``.

    Args:
        in_features: Number of features of the input.
        hidden_features: Number of units.
        rngs: Source of the initial kernels: normal for the input, orthogonal for the recurrence.
        activation: f, as a name such as "tanh", a callable of the engine's arrays, or None for a linear network.
        time_constant: tau in environment steps, at least 1: one number, or one for each unit; None for 1.
        trainable_time_constant: True for a learnt tau of each unit. The parameter is ``leak_logit``, with
            ``1/tau = sigmoid(leak_logit)``, so that tau stays above 1; the initial tau has to be above 1, too.
        trainable_initial_state: True for a learnt carry at an episode's start, instead of zeros.

    Raises:
        ValueError: If a size is not an integer of at least 1, the activation unknown, or a time constant not a number
            or out of range.
        TypeError: If ``rngs`` is not an ``Rngs``, a flag neither True nor False, or ``activation`` neither a name nor a
            function of the engine's arrays.
    """

    def __init__(
        self,
        in_features: int,
        hidden_features: int,
        rngs: Rngs,
        *,
        activation: Activation = "tanh",
        time_constant: float | Sequence[float] | None = None,
        trainable_time_constant: bool = False,
        trainable_initial_state: bool = False,
    ) -> None:
        kernels, hidden = self._adopt_sizes(in_features, hidden_features, rngs, 1), self.hidden_features
        self.activation = resolve_activation(self.engine, activation)
        self.product = self.engine.product()
        self.input_kernel, self.recurrent_kernel = map(Param, kernels)
        self.bias = Param(np.zeros(hidden))
        trainable = check_flag("RNN", "trainable_time_constant", trainable_time_constant)
        self.leaky = time_constant is not None or trainable
        if self.leaky:
            logit = _leak_logit(time_constant, hidden, trainable)
            self.leak_logit = Param(logit) if trainable else Variable(logit)
        self._adopt_initial(trainable_initial_state)

    @property
    def time_constant(self) -> Any:
        """Tau of each unit, ``[hidden]``, in steps."""
        if not self.leaky:
            return self.zeros((self.hidden_features,)) + 1.0
        return 1.0 / self.engine.activation("sigmoid")(self.leak_logit[...])

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, in]`` to ``[B, hidden]``."""
        (h,) = self._carried(state, x)
        h = self._step()(self._project(x), h)
        return StatefulModuleOutput({"h": h}, h)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[T, B, in]`` to ``[T, B, hidden]``; the input product of all steps is one call."""
        (first,) = self._carried(state, xs, done)
        xp, step, fresh = self.xp, self._step(), self.reset_state(state)["h"]
        projected = unfold_time(xp, self._project(fold_time(xp, xs)), *done.shape)

        def body(h: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
            projected_t, done_t = inputs
            h = step(projected_t, h)
            return xp.where(done_t[:, None], fresh, h), h

        h, hs = self.engine.scan(body, first, (projected, done), done.shape[0])
        return StatefulModuleOutput({"h": h}, hs)

    def _project(self, x: Any) -> Any:
        kernel = self.input_kernel[...]
        return self.product(self.xp.astype(x, kernel.dtype), kernel) + self.bias[...]

    def _step(self) -> Any:
        """The step's function of a projected input and ``h``, which reads the weights once for all steps."""
        kernel, product = self.recurrent_kernel[...], self.product
        function = functools.partial(activate, "RNN", self.activation)
        if not self.leaky:
            return lambda projected, h: function(projected + product(h, kernel))
        leak = self.engine.activation("sigmoid")(self.leak_logit[...])
        return lambda projected, h: h + leak * (function(projected + product(h, kernel)) - h)

    def _empty(self, batch_size: int) -> Any:
        return self.zeros((batch_size, self.hidden_features))


_CLOSED = 40.0
"""A logit whose sigmoid is 1 in double precision: tau of exactly 1, without an infinity among the weights."""


def _leak_logit(time_constant: Any, hidden: int, trainable: bool) -> np.ndarray:
    """logit(1/tau) = -log(tau - 1), ``[hidden]``."""
    tau = np.asarray(time_constant, np.float64)
    slow = tau > 1.0 if trainable else tau >= 1.0
    bound = "above 1 (at 1 it could not be trained)" if trainable else "of at least 1"
    expected = f"numbers of steps {bound}, one or one for each of {hidden} units"
    fits = tau.shape in ((), (hidden,)) and bool(np.all(slow & np.isfinite(tau)))
    require(fits, "time_constant", time_constant, expected, "RNN")
    return np.asarray(
        [_CLOSED if value == 1.0 else -math.log(value - 1.0) for value in np.broadcast_to(tau, (hidden,))]
    )
