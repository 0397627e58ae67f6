"""Matrix products with bfloat16 operands and float32 sums.

Operands are rounded to bfloat16, whose products are exact in float32, and summed in float32; so are the products of the
backward pass. They hide in operators of their own: a compiler would take a chain of conversions there and back for
superfluous, and leave out the rounding. On CUDA they run on the matrix units; elsewhere the rounded numbers are
multiplied in float32, which gives the same up to the order of summation, and takes as long as float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional

from multippo.backends.torch.switches import one_precision

_LIBRARY = "multippo"
_WHERE = "CompositeExplicitAutograd"


def product(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """``x @ kernel``, ``[..., in]`` and ``[in, out]``."""
    return x @ kernel


def product_bfloat16(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """``product`` of the operands' nearest bfloat16 numbers, summed in float32."""
    found = torch.ops.multippo.bfloat16_product(x.reshape(-1, x.shape[-1]), kernel)
    return found.reshape(*x.shape[:-1], kernel.shape[1])


linear: Callable[..., torch.Tensor] = functional.linear
"""``x @ weight.T + bias``, ``[..., in]`` and ``[out, in]``."""


def linear_bfloat16(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``linear`` by ``product_bfloat16``; the bias is added in float32."""
    y = product_bfloat16(x, weight.T)
    return y if bias is None else y + bias


def convolve(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: tuple[int, ...]) -> torch.Tensor:
    """Cross-correlation of ``[B, in, H, W]`` with ``[out, in, height, width]``."""
    return functional.conv2d(x, weight, bias, stride)


def convolve_bfloat16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: tuple[int, ...]
) -> torch.Tensor:
    """``convolve`` of the operands' nearest bfloat16 numbers, summed in float32."""
    y = torch.ops.multippo.bfloat16_convolution(x, weight, list(stride))
    return y if bias is None else y + bias[:, None, None]


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.device.type != "cuda":
        return _rounded(a) @ _rounded(b)
    if "dtype" in torch.ops.aten.mm.overloads():
        return torch.mm(a.to(torch.bfloat16), b.to(torch.bfloat16), out_dtype=torch.float32)
    with _reduced(a):
        return _rounded(a) @ _rounded(b)


def _reduced(x: torch.Tensor) -> contextlib.AbstractContextManager[None]:
    """On CUDA, TF32, in which products of bfloat16 numbers are exact, for as long as kernels are launched."""
    return one_precision(x.device, "high")


def _convolve(x: torch.Tensor, weight: torch.Tensor, stride: list[int]) -> torch.Tensor:
    with _reduced(x):
        return functional.conv2d(_rounded(x), _rounded(weight), None, tuple(stride)).contiguous()


def _convolve_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = (_rounded(grad), _rounded(x), _rounded(weight))
    whole: Any = (None, stride, [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])  # no bias, padding or groups
    with _reduced(x):
        to_x, to_weight, _ = torch.ops.aten.convolution_backward(*arrays, *whole)
    return to_x.contiguous(), to_weight.contiguous()


def _define(name: str, schema: str, run: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    torch.library.define(f"{_LIBRARY}::{name}", schema)
    torch.library.impl(f"{_LIBRARY}::{name}", _WHERE)(run)
    torch.library.register_fake(f"{_LIBRARY}::{name}")(shapes)


def _differentiate_product(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    multiply = torch.ops.multippo.bfloat16_product
    return multiply(grad, b.T), multiply(a.T, grad)


def _differentiate_convolution(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    return *torch.ops.multippo.bfloat16_convolution_backward(grad, *ctx.saved_tensors, ctx.stride), None


def _save_product(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs)


def _save_convolution(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs[:2])
    ctx.stride = inputs[2]


_define(
    "bfloat16_product",
    "(Tensor a, Tensor b) -> Tensor",
    _multiply,
    lambda a, b: a.new_empty((a.shape[0], b.shape[1])),
)
torch.library.register_autograd(f"{_LIBRARY}::bfloat16_product", _differentiate_product, setup_context=_save_product)
_define(
    "bfloat16_convolution",
    "(Tensor x, Tensor weight, int[] stride) -> Tensor",
    _convolve,
    lambda x, weight, stride: functional.conv2d(x, weight, None, tuple(stride)).contiguous(),
)
_define(
    "bfloat16_convolution_backward",
    "(Tensor grad, Tensor x, Tensor weight, int[] stride) -> (Tensor, Tensor)",
    _convolve_backward,
    lambda grad, x, weight, stride: (x.new_empty(x.shape), weight.new_empty(weight.shape)),
)
torch.library.register_autograd(
    f"{_LIBRARY}::bfloat16_convolution", _differentiate_convolution, setup_context=_save_convolution
)
