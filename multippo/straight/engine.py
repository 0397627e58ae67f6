"""The engine whose networks are recorded: the NumPy engine in a network's own floating-point type, written for speed.

Cells and activations are rearranged so that few calls are left: gates of one kind lie side by side, both products of an
LSTM are one. What follows from the weights alone, such as the rearranged kernels, is computed once for a whole rollout.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.backends.numpy.engine import NumpyEngine
from multippo.backends.numpy.layers import activations, erf
from multippo.backends.numpy.modules import Module, NumpyParam, NumpyVariable
from multippo.networks.convolution import pad_sizes
from multippo.random import Random
from multippo.straight.tracing import Traced, recorded, xp
from multippo.trees import select, tree_map


def _sigmoid(x: Any) -> Any:
    return 1.0 / (1.0 + xp.exp(-x))  # where exp overflows, the quotient is 0, as it should be


class _Param(NumpyParam):
    """A parameter that is read without a copy, since nothing writes to it."""

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]


class _Variable(NumpyVariable):
    """A variable that is read without a copy."""

    def __getitem__(self, index: Any) -> Any:
        return self.value[index]


class _Linear(Module):
    def __init__(self, kernel: Any, bias: Any) -> None:
        self.kernel, self.bias = kernel, bias

    def __call__(self, x: Any) -> Any:
        kernel = self.kernel[...]
        y = xp.astype(x, kernel.dtype) @ kernel
        return y if self.bias is None else y + self.bias[...]


class _Cell(Module):
    def __init__(self, input_kernel: Any, recurrent_kernel: Any, bias: Any) -> None:
        self.input_kernel, self.recurrent_kernel, self.bias = input_kernel, recurrent_kernel, bias

    def carry(self, batch_size: int) -> Any:
        recurrent = self.recurrent_kernel[...]
        return np.zeros((batch_size, recurrent.shape[0]), recurrent.dtype)


class _LSTM(_Cell):
    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        size = c.shape[-1]
        weights = xp.concat([self.input_kernel[...], self.recurrent_kernel[...], self.bias[...][None]], axis=0)
        # Gates i, f, o side by side, with the sign that the exponential of a sigmoid needs.
        weights = xp.concat([-weights[:, : 2 * size], -weights[:, 3 * size :], weights[:, 2 * size : 3 * size]], axis=1)
        z = xp.concat([xp.astype(x, h.dtype), h], axis=-1) @ weights[:-1] + weights[-1]
        gates = 1.0 / (1.0 + xp.exp(z[:, : 3 * size]))
        c = gates[:, size : 2 * size] * c + gates[:, :size] * xp.tanh(z[:, 3 * size :])
        return gates[:, 2 * size :] * xp.tanh(c), c


class _GRU(_Cell):
    def __init__(self, input_kernel: Any, recurrent_kernel: Any, bias: Any, recurrent_bias: Any) -> None:
        super().__init__(input_kernel, recurrent_kernel, bias)
        self.recurrent_bias = recurrent_bias

    def step(self, x: Any, h: Any) -> Any:
        size = h.shape[-1]
        a = xp.astype(x, h.dtype) @ self.input_kernel[...] + self.bias[...]
        b = h @ self.recurrent_kernel[...]
        gates = _sigmoid(a[:, : 2 * size] + b[:, : 2 * size])
        n = xp.tanh(a[:, 2 * size :] + gates[:, :size] * (b[:, 2 * size :] + self.recurrent_bias[...]))
        return n + gates[:, size:] * (h - n)


class _LayerNorm(Module):
    def __init__(self, scale: Any, bias: Any, epsilon: float) -> None:
        self.scale, self.bias, self.epsilon = scale, bias, epsilon

    def __call__(self, x: Any) -> Any:
        centred = x - xp.mean(x, axis=-1, keepdims=True)
        y = centred / xp.sqrt(xp.mean(centred * centred, axis=-1, keepdims=True) + self.epsilon)
        y = y if self.scale is None else y * self.scale[...]
        return y if self.bias is None else y + self.bias[...]


def windows(x: Any, shape: tuple[int, int], stride: tuple[int, int]) -> Any:
    """``[B, H, W, C]`` to every position of a kernel, ``[B, H', W', height, width, C]``, without a copy."""
    found = np.lib.stride_tricks.sliding_window_view(x, shape, axis=(1, 2))
    return np.moveaxis(found[:, :: stride[0], :: stride[1]], 3, -1)


class _Conv(Module):
    def __init__(self, kernel: Any, bias: Any, stride: tuple[int, int], padding: Any) -> None:
        self.kernel, self.bias, self.stride, self.padding = kernel, bias, stride, padding

    def __call__(self, x: Any) -> Any:
        kernel = self.kernel[...]
        pads = (self.padding,) * 2 if isinstance(self.padding, str) else self.padding
        around = [pad_sizes(*axis) for axis in zip(x.shape[1:3], kernel.shape[:2], self.stride, pads, strict=True)]
        if any(map(any, around)):
            x = recorded("pad", np.pad, x, ((0, 0), *around, (0, 0)))
        under = recorded("windows", windows, x, tuple(kernel.shape[:2]), tuple(self.stride))
        # Rows of one product: the channels and places under a kernel.
        rows = xp.reshape(under, (math.prod(under.shape[:3]), math.prod(under.shape[3:])))
        y = rows @ xp.reshape(kernel, (rows.shape[1], kernel.shape[-1]))
        y = y if self.bias is None else y + self.bias[...]
        return xp.reshape(y, (*under.shape[:3], kernel.shape[-1]))


def _one_operation(rounds: Callable[..., Any]) -> Callable[..., Any]:
    """The random generator's rounds, recorded as one operation."""
    rounds = np.errstate(over="ignore")(rounds)

    def call(*words: Any) -> Any:
        if not any(isinstance(word, Traced) for word in words):
            return rounds(*words)
        both = recorded("threefry", lambda *words: np.stack(np.broadcast_arrays(*rounds(*words))), *words)
        return both[0], both[1]

    return call


class TracingEngine(NumpyEngine):
    """Engine of networks that are to be recorded.

    Args:
        dtype: Floating-point type.
        plain_words: Type of random words whose rounds are recorded one by one; None for NumPy's, as one operation.
    """

    name = "straight"
    xp = xp
    activations = activations(xp, _sigmoid, functools.partial(recorded, "erf", erf))

    def __init__(self, dtype: Any, plain_words: Any = None) -> None:
        super().__init__()
        self._dtype, words = np.dtype(dtype), np.dtype(plain_words or np.uint32)
        self.sums_in_order = plain_words is None  # other frameworks that take the record may not
        rounds = np.errstate(over="ignore") if plain_words else _one_operation
        self.random = Random(xp, words, np.asarray, lambda: self._dtype, rounds)

    @property
    def float_dtype(self) -> Any:
        return self._dtype

    def make_variable(self, kind: str, value: Any) -> Any:
        array = np.array(value)
        array = array.astype(self._dtype) if array.dtype.kind in ("fiub" if kind == "Param" else "f") else array
        return _Param(array) if kind == "Param" else _Variable(array)

    def _param(self, value: Any) -> Any:
        return None if value is None else self.make_variable("Param", value)

    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        return _Linear(self._param(kernel), self._param(bias))

    def lstm(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> Any:
        return _LSTM(*map(self._param, (input_kernel, recurrent_kernel, bias)))

    def gru(
        self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray
    ) -> Any:
        return _GRU(*map(self._param, (input_kernel, recurrent_kernel, bias, recurrent_bias)))

    def layer_norm(self, features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> Any:
        del features
        return _LayerNorm(self._param(scale), self._param(bias), epsilon)

    def conv(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> Any:
        return _Conv(self._param(kernel), self._param(bias), stride, padding)

    def asarray(self, value: Any) -> Any:
        if isinstance(value, Traced):
            return value
        array = np.array(value)
        return array.astype(self._dtype) if array.dtype.kind == "f" else array

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape, self._dtype)

    def writable(self, tree: Any) -> Any:
        return tree  # a write is refused

    def stack_time(self, trees: list[Any]) -> Any:
        return tree_map(lambda *leaves: xp.stack(list(leaves)), *trees)

    def cond(self, predicate: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        if not isinstance(predicate, Traced):
            return super().cond(predicate, if_true, if_false)
        return select(xp, predicate, if_true(), if_false())
