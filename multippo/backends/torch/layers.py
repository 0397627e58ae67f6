"""The layers torch ships, made from given arrays, and their portable names and layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from multippo.backends.api import Engine
from multippo.backends.torch import products
from multippo.backends.torch.segments import Carry, Weights, hidden_operator, parts_of, segmented
from multippo.networks.convolution import pad_sizes

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": functional.relu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "swish": functional.silu,
    "silu": functional.silu,
    "gelu": functional.gelu,
    "elu": functional.elu,
    "leaky_relu": functional.leaky_relu,
    # torch drops the logarithm above 20, an error of 2e-9; above 50 it is below float64's.
    "softplus": lambda x: functional.softplus(x, threshold=50.0),
    "identity": lambda x: x,
}


def _typed(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """Tensor ``x`` in the type of the weights.

    Raises:
        TypeError: If ``x`` is not a tensor.
    """
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"A layer got a {type(x).__module__}.{type(x).__name__}; expected a torch.Tensor, such as "
            "network.engine.asarray(x) makes it."
        )
    return x.to(dtype)


class LinearCore(nn.Linear):
    """``nn.Linear`` that takes any number type, as flax's does; with ``bfloat16``, in products of bfloat16 operands."""

    bfloat16_operands = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``[..., in]`` to ``[..., out]``."""
        linear = products.linear_bfloat16 if self.bfloat16_operands else functional.linear
        fits = isinstance(input, torch.Tensor) and input.dtype == self.weight.dtype
        return linear(input if fits else _typed(input, self.weight.dtype), self.weight, self.bias)


# An LSTM or GRU step by step, in products of bfloat16 operands, as torch's fused kernels have none: their carry is
# bfloat16, too. Here only the operands are: gates, carry and sums are float32. The input's product is one for all
# steps. Nothing waits for the host, so a graph of launches can hold the loop.


def _projected(cell: str, x: torch.Tensor, weights: Weights) -> torch.Tensor:
    """Input's part of the gates, with the biases that are added."""
    weight_ih, _, bias_ih, bias_hh = weights
    return products.linear_bfloat16(x, weight_ih, bias_ih + bias_hh if cell == "lstm" else bias_ih)


def _lstm(projected: torch.Tensor, carry: Carry, weights: Weights) -> Carry:
    h, c = carry
    i, f, g, o = torch.chunk(projected + products.product_bfloat16(h, weights[1].T), 4, dim=-1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _gru(projected: torch.Tensor, carry: Carry, weights: Weights) -> Carry:
    (h,) = carry
    a_r, a_z, a_n = torch.chunk(projected, 3, dim=-1)
    b_r, b_z, b_n = torch.chunk(products.linear_bfloat16(h, weights[1], weights[3]), 3, dim=-1)
    z = torch.sigmoid(a_z + b_z)
    n = torch.tanh(a_n + torch.sigmoid(a_r + b_r) * b_n)
    return ((1.0 - z) * n + z * h,)


def _stepped(cell: str, *tensors: torch.Tensor) -> Carry:
    step = _lstm if cell == "lstm" else _gru
    xs, carry, done, initial, weights = parts_of(cell, tensors)
    projected = _projected(cell, xs, weights)
    hs: list[torch.Tensor] = []
    for t in range(done.shape[0]):
        carry = step(projected[t], carry, weights)
        hs.append(carry[0])
        reset = done[t][:, None]
        carry = tuple(torch.where(reset, s0, s) for s, s0 in zip(carry, initial, strict=True))
    return torch.stack(hs), *carry


# A compiler would unroll the loop into one graph of all steps.
_STEPS: dict[str, Any] = {cell: hidden_operator("stepped", cell, _stepped) for cell in ("lstm", "gru")}


class _Recurrent:
    """Part of the cores of recurrent layers that is the same for all cells."""

    cell: str
    weight_hh: Any
    bfloat16_operands = False

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type, where they lie."""
        return self.weight_hh.new_zeros((batch_size, self.weight_hh.shape[1]))

    def unroll(self, xs: Any, *carries: Any) -> Any:
        """Takes T steps by the fused kernel.

        The kernel can't round a float32 carry to bfloat16 operands, so with ``bfloat16`` steps are taken one by one.

        Args:
            xs: Inputs ``[T, B, in]``.
            carries: The carry, ``done`` and the carry after each step where ``done`` holds.
        """
        way = _STEPS if self.bfloat16_operands else segmented
        return way[self.cell](_typed(xs, carries[0].dtype), *carries, *self._weights())

    def _weights(self) -> Weights:
        raise NotImplementedError


class LSTMCore(_Recurrent, nn.LSTMCell):
    """``nn.LSTMCell`` with one bias: the second, redundant one is zero and not trained.

    torch adds two biases to every gate, which under Adam would move their sum at twice the learning rate. A cell rather
    than an ``nn.LSTM``, since torch.compile does not take that; ``unroll`` calls the kernel of ``nn.LSTM`` anyhow.
    """

    cell = "lstm"
    bias_ih: torch.Tensor
    bias_hh: nn.Parameter

    def __init__(self, in_features: int, hidden_features: int, dtype: Any, device: Any) -> None:
        super().__init__(in_features, hidden_features, dtype=dtype, device=device)
        # The parameters of an nn.LSTM, which lie in one block on CUDA, as cuDNN wants them.
        native: Any = nn.LSTM(in_features, hidden_features, dtype=dtype, device=device)
        self.weight_ih, self.weight_hh = native.weight_ih_l0, native.weight_hh_l0
        self.bias_hh = native.bias_hh_l0
        # A buffer, since unfreezing by requires_grad_(True) would have a parameter trained.
        del self.bias_ih
        self.register_buffer("bias_ih", native.bias_ih_l0.data.zero_())

    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """Takes one step: ``[B, in]``, ``[B, H]``, ``[B, H]`` to the new ``h`` and ``c``."""
        x = _typed(x, h.dtype)
        if self.bfloat16_operands:
            h, c = _lstm(_projected("lstm", x, self._weights()), (h, c), self._weights())
            return h, c
        return self(x, (h, c))

    def _weights(self) -> Weights:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


class GRUCore(_Recurrent, nn.GRUCell):
    """``nn.GRUCell`` whose second bias is the candidate's alone: those of r and z would be redundant.

    ``bias_hh``, which the kernels want for all three gates, is ``recurrent_bias`` behind zeros that are not trained.
    """

    cell = "gru"

    def __init__(self, in_features: int, hidden_features: int, dtype: Any, device: Any) -> None:
        super().__init__(in_features, hidden_features, bias=False, dtype=dtype, device=device)
        self.bias_ih = nn.Parameter(self.weight_ih.new_zeros(3 * hidden_features))
        self.recurrent_bias = nn.Parameter(self.weight_ih.new_zeros(hidden_features))

    def forward(self, input: torch.Tensor, hx: torch.Tensor | None = None) -> torch.Tensor:
        """Takes one step in the form of ``nn.GRUCell``."""
        return torch.gru_cell(input, self.carry(input.shape[0]) if hx is None else hx, *self._weights())

    def step(self, x: Any, h: Any) -> Any:
        """Takes one step: ``[B, in]`` and ``[B, H]`` to the new ``h``."""
        x = _typed(x, h.dtype)
        if self.bfloat16_operands:
            return _gru(_projected("gru", x, self._weights()), (h,), self._weights())[0]
        return self(x, h)

    def _weights(self) -> Weights:
        bias_hh = functional.pad(self.recurrent_bias, (2 * self.hidden_size, 0))
        return self.weight_ih, self.weight_hh, self.bias_ih, bias_hh


class ConvCore(nn.Conv2d):
    """``nn.Conv2d`` of images with channels last, padded as its neutral layer says."""

    bfloat16_operands = False

    def __init__(self, stride: tuple[int, int], padding: str | tuple[int, int], *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs, stride=stride)
        self.zeros_around = padding

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``[B, H, W, in]`` to ``[B, H', W', out]``."""
        pads = (self.zeros_around,) * 2 if isinstance(self.zeros_around, str) else self.zeros_around
        around = zip(input.shape[1:3], self.kernel_size, self.stride, pads, strict=True)
        (top, bottom), (left, right) = (pad_sizes(*axis) for axis in around)
        # Axes change their order, not their memory: torch calls that layout channels_last.
        images = functional.pad(_typed(input, self.weight.dtype), (0, 0, left, right, top, bottom)).permute(0, 3, 1, 2)
        convolve = products.convolve_bfloat16 if self.bfloat16_operands else functional.conv2d
        return convolve(images, self.weight, self.bias, self.stride).permute(0, 2, 3, 1)


_TURNED = (1, 0)
_DENSE = {"weight": ("kernel", _TURNED), "bias": ("bias", None)}
_IMAGES = {"weight": ("kernel", (2, 3, 1, 0)), "bias": ("bias", None)}
_GATES = {"weight_ih": ("input_kernel", _TURNED), "weight_hh": ("recurrent_kernel", _TURNED)}

PORTABLE_NAMES: dict[type, Mapping[str, tuple[str, tuple[int, ...] | None]]] = {
    nn.Linear: _DENSE,
    LinearCore: _DENSE,
    LSTMCore: {**_GATES, "bias_hh": ("bias", None)},
    GRUCore: {**_GATES, "bias_ih": ("bias", None), "recurrent_bias": ("recurrent_bias", None)},
    nn.LayerNorm: {"weight": ("scale", None), "bias": ("bias", None)},
    nn.Conv2d: _IMAGES,
    ConvCore: _IMAGES,
}
"""Native parameter names of a wrapped layer: portable name, and the native axes in the portable layout's order."""


_STATEFUL = (nn.modules.batchnorm._NormBase, nn.RNNBase, nn.utils.parametrizations._SpectralNorm)  # pyright: ignore[reportPrivateUsage]
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def _state_of(module: nn.Module) -> tuple[str, str] | None:
    """State that a call of a module, without those in it, would write or draw from; None if none is known."""
    hooks = (*vars(module)["_forward_pre_hooks"].values(), *vars(module)["_forward_hooks"].values())
    if isinstance(module, _STATEFUL) or any(type(hook).__name__ == "SpectralNorm" for hook in hooks):
        return "a state of its own", "write"
    # Dropout may be a layer, or an argument of others, such as attention; a rate of 0 draws nothing.
    rates = {name: value for name, value in vars(module).items() if "drop" in name.lower()}
    if isinstance(module, nn.modules.dropout._DropoutNd):  # pyright: ignore[reportPrivateUsage]
        rates["p"] = float(module.p)
    drawn = [name for name, rate in rates.items() if isinstance(rate, float) and 0.0 < rate <= 1.0]
    if drawn or (isinstance(module, _RANDOM) and getattr(module, "_random_samples", None) is None):
        return f"noise of its own{f' ({drawn[0]}={rates[drawn[0]]})' if drawn else ''}", "draw"
    return None


class NativeLayers(Engine):
    """Part of the engine that makes layers from given arrays."""

    activations = ACTIVATIONS
    float_dtype: Any = torch.float32  # pyright: ignore[reportIncompatibleMethodOverride]
    device: torch.device
    _bfloat16 = False

    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        layer: Any = nn.utils.skip_init(
            LinearCore, *kernel.shape, bias=bias is not None, dtype=self.float_dtype, device=self.device
        )
        return self._filled(layer, weight=kernel.T, bias=bias)

    def lstm(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> Any:
        layer = LSTMCore(input_kernel.shape[0], recurrent_kernel.shape[0], self.float_dtype, self.device)
        return self._filled(layer, weight_ih=input_kernel.T, weight_hh=recurrent_kernel.T, bias_hh=bias)

    def gru(
        self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray
    ) -> Any:
        layer = GRUCore(input_kernel.shape[0], recurrent_kernel.shape[0], self.float_dtype, self.device)
        kernels = {"weight_ih": input_kernel.T, "weight_hh": recurrent_kernel.T}
        return self._filled(layer, **kernels, bias_ih=bias, recurrent_bias=recurrent_bias)

    def layer_norm(self, features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> Any:
        layer = nn.LayerNorm(features, eps=epsilon, dtype=self.float_dtype, device=self.device)
        return self._filled(layer, weight=scale, bias=bias)

    def conv(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> Any:
        options: Any = {"bias": bias is not None, "dtype": self.float_dtype, "device": self.device}
        layer = ConvCore(stride, padding, *kernel.shape[2:], kernel.shape[:2], **options)
        return self._filled(layer, weight=kernel.transpose(3, 2, 0, 1), bias=bias)

    def _filled(self, layer: Any, **arrays: np.ndarray | None) -> Any:
        layer.bfloat16_operands = self._bfloat16
        with torch.no_grad():
            for name, value in arrays.items():
                if value is None:
                    layer.register_parameter(name, None)
                else:
                    getattr(layer, name).copy_(torch.from_numpy(np.ascontiguousarray(value)))
        return layer

    def lift(self, module: Any) -> nn.Module:
        if not isinstance(module, nn.Module):
            raise TypeError(
                f"Lift got a {type(module).__module__}.{type(module).__name__}; on the engine torch it takes a "
                "torch.nn.Module, or a function. Make module and Lift under one multippo.use_backend(...)."
            )
        for where, child in module.named_modules():
            if state := _state_of(child):
                raise TypeError(
                    f"Lift got a {type(module).__name__} with {state[0]}, {where or 'itself'} "
                    f"({type(child).__name__}), which a call would {state[1]}; it takes stateless modules without "
                    "noise. multippo has Dropout, LayerNorm, Normalizer, LSTM and GRU."
                )
        types = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
        # A module of several types converts its input by itself.
        if len(types) == 1 and self.float_dtype not in types:
            raise TypeError(
                f"Lift got a {type(module).__name__} of {types.pop()}; expected one of {self.float_dtype}, the type in "
                f"which the engine computes: write Lift(module.to({self.float_dtype}))."
            )
        return module.to(self.device)
