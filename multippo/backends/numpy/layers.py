"""Native layers, which are their equations in ``backends/api.py``.

Attributes bear the portable names, and arrays lie in the portable layouts, so neither has to be translated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as numpy_namespace
import numpy as np

from multippo.backends.numpy.modules import Module, NumpyParam, NumpyVariable, named_variables
from multippo.networks.convolution import pad_sizes


def _sigmoid(x: Any) -> Any:
    return np.exp(-np.logaddexp(0.0, -x))  # 1 / (1 + exp(-x)) would overflow


def activations(xp: Any, sigmoid: Callable[[Any], Any], erf: Callable[[Any], Any]) -> dict[str, Callable[[Any], Any]]:
    """Activations by name, of an array namespace and its two functions that have several forms."""
    return {
        "relu": lambda x: xp.maximum(x, 0.0),
        "tanh": xp.tanh,
        "sigmoid": sigmoid,
        "swish": lambda x: x * sigmoid(x),
        "silu": lambda x: x * sigmoid(x),
        "gelu": lambda x: 0.5 * x * (1.0 + xp.astype(erf(x * math.sqrt(0.5)), x.dtype)),
        "elu": lambda x: xp.where(x > 0, x, xp.expm1(xp.minimum(x, 0.0))),
        "leaky_relu": lambda x: xp.maximum(x, 0.01 * x),
        "softplus": lambda x: xp.maximum(x, 0.0) + xp.log1p(xp.exp(-xp.abs(x))),
        "identity": lambda x: x,
    }


erf = np.vectorize(math.erf, otypes=[np.float64])

ACTIVATIONS = activations(numpy_namespace, _sigmoid, erf)


class Linear(Module):
    """``x @ kernel + bias``."""

    def __init__(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        self.kernel, self.bias = _param(kernel), None if bias is None else _param(bias)

    def __call__(self, x: Any) -> Any:
        """``[..., in]`` to ``[..., out]``."""
        y = x @ self.kernel[...]
        return y if self.bias is None else y + self.bias[...]


class _Recurrent(Module):
    """Base of both cells: two kernels, a bias, and a carry of ``[B, H]`` arrays."""

    def __init__(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> None:
        self.input_kernel, self.recurrent_kernel = _param(input_kernel), _param(recurrent_kernel)
        self.bias = _param(bias)

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]``."""
        return np.zeros((batch_size, self.recurrent_kernel.value.shape[0]))


class LSTM(_Recurrent):
    """Gates i, f, g, o; see ``Engine.lstm``."""

    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """Takes one step."""
        z = x @ self.input_kernel[...] + h @ self.recurrent_kernel[...] + self.bias[...]
        i, f, g, o = np.split(z, 4, axis=-1)
        c = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
        return _sigmoid(o) * np.tanh(c), c

    def unroll(self, xs: Any, h: Any, c: Any, done: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any]:
        """Takes T steps, reset to ``(h0, c0)`` after each step where ``done`` holds."""
        hs: list[Any] = []
        for x, over in zip(xs, done[:, :, None], strict=True):
            h, c = self.step(x, h, c)
            hs.append(h)
            h, c = np.where(over, h0, h), np.where(over, c0, c)
        return np.stack(hs), h, c


class GRU(_Recurrent):
    """Gates r, z, n; see ``Engine.gru``."""

    def __init__(self, *arrays: np.ndarray) -> None:
        super().__init__(*arrays[:3])
        self.recurrent_bias = _param(arrays[3])

    def step(self, x: Any, h: Any) -> Any:
        """Takes one step."""
        a_r, a_z, a_n = np.split(x @ self.input_kernel[...] + self.bias[...], 3, axis=-1)
        b_r, b_z, b_n = np.split(h @ self.recurrent_kernel[...], 3, axis=-1)
        z = _sigmoid(a_z + b_z)
        n = np.tanh(a_n + _sigmoid(a_r + b_r) * (b_n + self.recurrent_bias[...]))
        return (1.0 - z) * n + z * h

    def unroll(self, xs: Any, h: Any, done: Any, h0: Any) -> tuple[Any, Any]:
        """Takes T steps, reset to ``h0`` after each step where ``done`` holds."""
        hs: list[Any] = []
        for x, over in zip(xs, done[:, :, None], strict=True):
            h = self.step(x, h)
            hs.append(h)
            h = np.where(over, h0, h)
        return np.stack(hs), h


class LayerNorm(Module):
    """``(x - mean) / sqrt(variance + epsilon) * scale + bias`` over the last axis."""

    def __init__(self, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> None:
        self.scale, self.bias = (None if value is None else _param(value) for value in (scale, bias))
        self.epsilon = epsilon

    def __call__(self, x: Any) -> Any:
        """``[..., features]`` to the same shape."""
        centred = x - np.mean(x, axis=-1, keepdims=True, dtype=np.float64)
        y = centred / np.sqrt(np.mean(centred**2, axis=-1, keepdims=True) + self.epsilon)
        y = y if self.scale is None else y * self.scale[...]
        return y if self.bias is None else y + self.bias[...]


class Conv(Module):
    """Cross-correlation of images with channels last."""

    def __init__(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> None:
        self.kernel, self.bias = _param(kernel), None if bias is None else _param(bias)
        self.stride, self.padding = stride, padding

    def __call__(self, x: Any) -> Any:
        """``[B, H, W, in]`` to ``[B, H', W', out]``."""
        kernel = self.kernel[...]
        pads = (self.padding,) * 2 if isinstance(self.padding, str) else self.padding
        around = [pad_sizes(*axis) for axis in zip(x.shape[1:3], kernel.shape[:2], self.stride, pads, strict=True)]
        padded = np.pad(x, ((0, 0), *around, (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(padded, kernel.shape[:2], axis=(1, 2))
        y = np.einsum("bhwikl,klio->bhwo", windows[:, :: self.stride[0], :: self.stride[1]], kernel)
        return y if self.bias is None else y + self.bias[...]


def lift(module: Any) -> Module:
    """Returns ``module``; raises a TypeError unless it is a ``Module`` that keeps no state."""
    if not isinstance(module, Module):
        raise TypeError(
            f"Lift got a {type(module).__module__}.{type(module).__name__}; on the engine numpy it takes a "
            "multippo.backends.numpy.modules.Module, or a function. Make module and Lift under one "
            "multippo.use_backend(...)."
        )
    for name, held in named_variables(module).items():
        if isinstance(held, NumpyVariable):
            raise TypeError(
                f"Lift got a {type(module).__name__} with a state of its own, {name}, which a call would write; it "
                "takes stateless modules. multippo has Dropout, LayerNorm and Normalizer."
            )
    return module


def _param(value: np.ndarray) -> NumpyParam:
    return NumpyParam(np.array(value, np.float64))
