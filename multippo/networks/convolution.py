"""Convolution of images, channels last."""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.arguments import check_flag, check_size, describe
from multippo.networks.activations import Activation, activate, resolve_activation
from multippo.networks.initializers import Initializer, drawn, lecun_normal
from multippo.networks.tree_layers import as_float
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.random import Rngs, check_rngs

Padding = str | tuple[int, int]
"""Padding of two axes: "valid", "same", or numbers of zeros on each side of the rows and of the columns."""


class Conv(StatefulModule):
    """The framework's convolution of images: ``[B, H, W, in_channels]`` to ``[B, H', W', out_channels]``.

    ``y[i, j] = activation(sum_{a, b} x[s i + a, s j + b] @ kernel[a, b] + bias)`` with stride s, on the padded image
    (LeCun et al., 1998, "Gradient-based learning applied to document recognition", section II). Channels come last, as
    gymnasium's images have them. Integers become floating-point numbers of the same value: to see bytes as numbers
    from 0 to 1, put ``Scale(1 / 255)`` in front. A ``Flattener`` leads to dense layers, ``output_shape`` returns the
    shape to flatten.

    Args:
        in_channels: Number of channels of the input.
        out_channels: Number of channels of the output.
        kernel_size: Height and width of the kernel in pixels, or one number for both.
        rngs: Source of the initial kernel.
        stride: Pixels from one position of the kernel to the next, down and across, or one number for both.
        padding: "valid" for none, so that ``H' = floor((H - kernel) / stride) + 1``; "same" for zeros around the image
            that make ``H' = ceil(H / stride)``, of an odd number the larger half at the bottom and at the right; or
            rows and columns of zeros on each side, or one number for both.
        activation: Name such as "relu", a callable of the engine's arrays, or None.
        kernel_init: Initialiser of the kernel, called with the shape ``(height * width * in, out)``.
        use_bias: True for a layer with a bias, 0 at first.

    Raises:
        ValueError: If a size or the padding is impossible, the activation unknown, or ``kernel_init`` makes an array of
            another shape.
        TypeError: If ``rngs`` is not an ``Rngs``, or another argument of the wrong kind.
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        rngs: Rngs,
        *,
        stride: int | tuple[int, int] = 1,
        padding: int | Padding = "valid",
        activation: Activation = None,
        kernel_init: Initializer | None = None,
        use_bias: bool = True,
    ) -> None:
        self.in_channels = check_size("Conv", "in_channels", in_channels)
        self.out_channels = check_size("Conv", "out_channels", out_channels)
        self.kernel_size = _pair("kernel_size", kernel_size)
        self.stride = _pair("stride", stride)
        self.padding = _padding(padding)
        rngs = check_rngs("Conv", rngs)
        self.activation = resolve_activation(self.engine, activation)
        height, width = self.kernel_size
        shape = (height * width * self.in_channels, self.out_channels)
        rows = drawn("Conv", "kernel_init", lecun_normal() if kernel_init is None else kernel_init, rngs, shape)
        kernel = np.reshape(rows, (height, width, self.in_channels, self.out_channels))
        bias = np.zeros(self.out_channels) if check_flag("Conv", "use_bias", use_bias) else None
        self.core = self.engine.conv(kernel, bias, self.stride, self.padding)

    def output_shape(self, input_shape: tuple[int, ...]) -> tuple[int, int, int]:
        """The shape of one output, ``(H', W', out_channels)``, from that of one input ``(H, W, in_channels)``.

        Raises:
            ValueError: If the input has another number of axes or channels, or the kernel does not fit in.
        """
        pads = (self.padding,) * 2 if isinstance(self.padding, str) else self.padding
        sizes = [output_size(*axis) for axis in zip(input_shape, self.kernel_size, self.stride, pads, strict=False)]
        if len(input_shape) != 3 or input_shape[-1] != self.in_channels or min(sizes) < 1:
            raise ValueError(
                f"Conv got an image of shape {tuple(input_shape)}; expected (height, width, {self.in_channels}), not "
                f"smaller than its kernel {self.kernel_size}. If the channels come first, move them to the end."
            )
        return sizes[0], sizes[1], self.out_channels

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, H, W, in]`` to ``[B, H', W', out]``."""
        if len(getattr(x, "shape", ())) != 4:
            raise ValueError(f"Conv got {describe(x)}; expected an array [B, H, W, {self.in_channels}].")
        self.output_shape(tuple(x.shape[1:]))
        return StatefulModuleOutput(state, activate("Conv", self.activation, self.core(as_float(self, x))))


def _pair(name: str, value: Any, least: int = 1, otherwise: str = "") -> tuple[int, int]:
    sizes = tuple(value) if isinstance(value, tuple | list) else (value, value)
    if len(sizes) != 2:
        raise ValueError(f"Conv({name}={value!r}) is not possible: expected one integer, or two.")
    first, second = (check_size("Conv", name, size, least, otherwise) for size in sizes)
    return first, second


def _padding(value: Any) -> Padding:
    if isinstance(value, str) and value.lower() in ("valid", "same"):
        return value.lower()
    return _pair("padding", value, least=0, otherwise=", 'valid' or 'same'")


def pad_sizes(size: int, kernel: int, stride: int, padding: str | int) -> tuple[int, int]:
    """Zeros before and after one axis of ``size``.

    "same" makes ``ceil(size / stride)`` positions; of an odd number of zeros the larger half comes after.
    """
    if not isinstance(padding, str):
        return padding, padding
    if padding == "valid":
        return 0, 0
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def output_size(size: int, kernel: int, stride: int, padding: str | int) -> int:
    """Number of kernel positions on one axis, ``floor((size + zeros - kernel) / stride) + 1``; 0 or less if none."""
    return (size + sum(pad_sizes(size, kernel, stride, padding)) - kernel) // stride + 1
