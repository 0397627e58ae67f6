"""The layers torch ships, made from given arrays, and their portable names and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

from multippo.backends.torch import products
from multippo.backends.torch.segments import segmented_gru, segmented_lstm
from multippo.backends.torch.stepped import gru_step, lstm_step, stepped_gru, stepped_lstm
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

_TURNED = (1, 0)

PORTABLE_NAMES: dict[type, dict[str, tuple[str, tuple[int, ...] | None]]] = {
    nn.Linear: {"weight": ("kernel", _TURNED), "bias": ("bias", None)},
    nn.LayerNorm: {"weight": ("scale", None), "bias": ("bias", None)},
    nn.Conv2d: {"weight": ("kernel", (2, 3, 1, 0)), "bias": ("bias", None)},
}
"""Native parameter names of a wrapped layer: portable name, and which native axes the portable layout has in turn."""


def _typed(x: Any, dtype: torch.dtype) -> torch.Tensor:
    """A tensor of the weights' type."""
    if not isinstance(x, torch.Tensor):
        raise TypeError(
            f"A layer got a {type(x).__module__}.{type(x).__name__}; expected a torch.Tensor, such as "
            "network.engine.asarray(x) makes it."
        )
    return x.to(dtype)


class LinearCore(nn.Linear):
    """``nn.Linear`` that takes any number type, as flax's does; with ``bfloat16``, in products of such operands."""

    bfloat16_operands = False

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """``[..., in]`` to ``[..., out]``."""
        linear = products.linear_bfloat16 if self.bfloat16_operands else products.linear
        fits = isinstance(input, torch.Tensor) and input.dtype == self.weight.dtype
        return linear(input if fits else _typed(input, self.weight.dtype), self.weight, self.bias)


PORTABLE_NAMES[LinearCore] = PORTABLE_NAMES[nn.Linear]


def linear(kernel: np.ndarray, bias: np.ndarray | None, dtype: Any, device: Any) -> nn.Linear:
    """``nn.Linear`` with the given kernel ``[in, out]`` and bias ``[out]``."""
    layer: Any = nn.utils.skip_init(LinearCore, *kernel.shape, bias=bias is not None, dtype=dtype, device=device)
    _fill(layer.weight, kernel.T)
    if bias is not None:
        _fill(layer.bias, bias)
    return layer


class LSTMCore(nn.LSTMCell):
    """``nn.LSTMCell`` with one bias: the second, redundant one is zero and not trained.

    torch adds two biases to every gate, which under Adam would move their sum at twice the learning rate. A cell rather
    than an ``nn.LSTM``, since torch.compile does not take that; ``unroll`` calls the kernel of ``nn.LSTM`` anyhow.
    """

    bias_ih: torch.Tensor
    bias_hh: nn.Parameter
    bfloat16_operands = False

    def __init__(self, in_features: int, hidden_features: int, dtype: Any, device: Any) -> None:
        super().__init__(in_features, hidden_features, dtype=dtype, device=device)
        # The parameters of an nn.LSTM, which lie in one block on CUDA, as cuDNN wants them.
        native: Any = nn.LSTM(in_features, hidden_features, dtype=dtype, device=device)
        self.weight_ih, self.weight_hh = native.weight_ih_l0, native.weight_hh_l0
        self.bias_hh = native.bias_hh_l0
        # A buffer: as a parameter requires_grad_(True), after a while of freezing, would have it trained.
        del self.bias_ih
        self.register_buffer("bias_ih", native.bias_ih_l0.data.zero_())

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type, where they lie."""
        return self.weight_hh.new_zeros((batch_size, self.hidden_size))

    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """One step: ``[B, in]``, ``[B, H]``, ``[B, H]`` to the new ``h`` and ``c``."""
        if self.bfloat16_operands:
            return lstm_step(_typed(x, h.dtype), h, c, self._weights())
        return self(_typed(x, h.dtype), (h, c))

    def unroll(self, xs: Any, h: Any, c: Any, done: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any]:
        """T steps, reset to ``(h0, c0)`` after each step where ``done`` holds, by the fused kernel.

        The kernel can't round what goes from step to step to bfloat16 operands and keep it in float32, so those are
        taken one by one.
        """
        unroll = stepped_lstm if self.bfloat16_operands else segmented_lstm
        return unroll(_typed(xs, h.dtype), h, c, done, h0, c0, self._weights())

    def _weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        return self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh


PORTABLE_NAMES[LSTMCore] = {
    "weight_ih": ("input_kernel", _TURNED),
    "weight_hh": ("recurrent_kernel", _TURNED),
    "bias_hh": ("bias", None),
}


def lstm(input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, dtype: Any, device: Any) -> LSTMCore:
    """``LSTMCore`` with the given kernels ``[in, 4H]``, ``[H, 4H]`` and bias ``[4H]``."""
    layer = LSTMCore(input_kernel.shape[0], recurrent_kernel.shape[0], dtype, device)
    _fill(layer.weight_ih, input_kernel.T)
    _fill(layer.weight_hh, recurrent_kernel.T)
    _fill(layer.bias_hh, bias)
    return layer


class GRUCore(nn.GRUCell):
    """``nn.GRUCell`` whose second bias is the candidate's alone: those of r and z would be redundant.

    ``bias_hh``, which the kernels want for all three gates, is ``recurrent_bias`` behind zeros that are not trained.
    """

    bfloat16_operands = False

    def __init__(self, in_features: int, hidden_features: int, dtype: Any, device: Any) -> None:
        super().__init__(in_features, hidden_features, bias=False, dtype=dtype, device=device)
        self.bias_ih = nn.Parameter(self.weight_ih.new_zeros(3 * hidden_features))
        self.recurrent_bias = nn.Parameter(self.weight_ih.new_zeros(hidden_features))

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type, where they lie."""
        return self.weight_hh.new_zeros((batch_size, self.hidden_size))

    def forward(self, input: torch.Tensor, hx: torch.Tensor | None = None) -> torch.Tensor:
        """One step as torch writes it."""
        return torch.gru_cell(input, self.carry(input.shape[0]) if hx is None else hx, *self._weights())

    def step(self, x: Any, h: Any) -> Any:
        """One step: ``[B, in]`` and ``[B, H]`` to the new ``h``."""
        if self.bfloat16_operands:
            return gru_step(_typed(x, h.dtype), h, self._weights())
        return self(_typed(x, h.dtype), h)

    def unroll(self, xs: Any, h: Any, done: Any, h0: Any) -> tuple[Any, Any]:
        """T steps, reset to ``h0`` after each step where ``done`` holds; as ``LSTMCore`` does."""
        unroll = stepped_gru if self.bfloat16_operands else segmented_gru
        return unroll(_typed(xs, h.dtype), h, done, h0, self._weights())

    def _weights(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        bias_hh = functional.pad(self.recurrent_bias, (2 * self.hidden_size, 0))
        return self.weight_ih, self.weight_hh, self.bias_ih, bias_hh


PORTABLE_NAMES[GRUCore] = {
    "weight_ih": ("input_kernel", _TURNED),
    "weight_hh": ("recurrent_kernel", _TURNED),
    "bias_ih": ("bias", None),
    "recurrent_bias": ("recurrent_bias", None),
}


def gru(
    input_kernel: np.ndarray,
    recurrent_kernel: np.ndarray,
    bias: np.ndarray,
    recurrent_bias: np.ndarray,
    dtype: Any,
    device: Any,
) -> GRUCore:
    """``GRUCore`` with kernels ``[in, 3H]``, ``[H, 3H]``, bias ``[3H]`` and the candidate's recurrent bias ``[H]``."""
    layer = GRUCore(input_kernel.shape[0], recurrent_kernel.shape[0], dtype, device)
    _fill(layer.weight_ih, input_kernel.T)
    _fill(layer.weight_hh, recurrent_kernel.T)
    _fill(layer.bias_ih, bias)
    _fill(layer.recurrent_bias, recurrent_bias)
    return layer


def layer_norm(
    features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float, dtype: Any, device: Any
) -> nn.LayerNorm:
    """``nn.LayerNorm`` with the given scale and bias."""
    layer: Any = nn.LayerNorm(features, eps=epsilon, dtype=dtype, device=device)
    for name, value in (("weight", scale), ("bias", bias)):
        if value is None:
            layer.register_parameter(name, None)
        else:
            _fill(getattr(layer, name), value)
    return layer


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
        convolve = products.convolve_bfloat16 if self.bfloat16_operands else products.convolve
        return convolve(images, self.weight, self.bias, self.stride).permute(0, 2, 3, 1)


PORTABLE_NAMES[ConvCore] = PORTABLE_NAMES[nn.Conv2d]


def conv(
    kernel: np.ndarray,
    bias: np.ndarray | None,
    stride: tuple[int, int],
    padding: str | tuple[int, int],
    dtype: Any,
    device: Any,
) -> ConvCore:
    """``ConvCore`` with the given kernel ``[height, width, in, out]`` and bias ``[out]``."""
    height, width, *channels = kernel.shape
    layer = ConvCore(stride, padding, *channels, (height, width), bias=bias is not None, dtype=dtype, device=device)
    _fill(layer.weight, kernel.transpose(3, 2, 0, 1))
    if bias is not None:
        _fill(layer.bias, bias)  # pyright: ignore[reportArgumentType]
    return layer


_STATEFUL = (nn.modules.batchnorm._NormBase, nn.RNNBase, nn.utils.parametrizations._SpectralNorm)  # pyright: ignore[reportPrivateUsage]
_RANDOM = (nn.RReLU, nn.FractionalMaxPool2d, nn.FractionalMaxPool3d)


def _state_of(module: nn.Module) -> tuple[str, str] | None:
    """State that a call of a module itself, without those in it, would write or draw; None if none is known."""
    hooks = (*vars(module)["_forward_pre_hooks"].values(), *vars(module)["_forward_hooks"].values())
    if isinstance(module, _STATEFUL) or any(type(hook).__name__ == "SpectralNorm" for hook in hooks):
        return "a state of its own", "write"
    # Of dropout there are layers, and arguments of others, such as attention; with 0 it draws nothing.
    rates = {name: value for name, value in vars(module).items() if "drop" in name.lower()}
    if isinstance(module, nn.modules.dropout._DropoutNd):  # pyright: ignore[reportPrivateUsage]
        rates["p"] = float(module.p)
    drawn = [name for name, rate in rates.items() if isinstance(rate, float) and 0.0 < rate <= 1.0]
    if drawn or (isinstance(module, _RANDOM) and getattr(module, "_random_samples", None) is None):
        return f"noise of its own{f' ({drawn[0]}={rates[drawn[0]]})' if drawn else ''}", "draw"
    return None


def lift(module: Any, device: Any, dtype: Any) -> nn.Module:
    """``module`` on the device, if it is an ``nn.Module`` of numbers of the type that keeps no state."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"Lift got a {type(module).__module__}.{type(module).__name__}; on the engine torch it takes a "
            "torch.nn.Module, or a function. Make module and Lift under one multippo.use_backend(...)."
        )
    for where, child in module.named_modules():
        if state := _state_of(child):
            raise TypeError(
                f"Lift got a {type(module).__name__} with {state[0]}, {where or 'itself'} ({type(child).__name__}), "
                f"which a call would {state[1]}; it takes stateless modules without noise. multippo has Dropout, "
                "LayerNorm, Normalizer, LSTM and GRU."
            )
    if any(nn.parameter.is_lazy(parameter) for parameter in module.parameters()):
        raise TypeError(
            f"Lift got a {type(module).__name__} whose sizes are not known before its first call; give them, such as "
            "torch.nn.Linear(3, 2) in place of torch.nn.LazyLinear(2), or call it once before."
        )
    types = {parameter.dtype for parameter in module.parameters() if parameter.is_floating_point()}
    # A module of several types converts by itself.
    if len(types) == 1 and dtype not in types:
        raise TypeError(
            f"Lift got a {type(module).__name__} of {types.pop()}; expected one of {dtype}, the type in which the "
            f"engine computes: write Lift(module.to({dtype}))."
        )
    return module.to(device)


def _fill(parameter: torch.Tensor, value: np.ndarray) -> None:
    with torch.no_grad():
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(value)))
