"""Matrix products: torch's two switches for TF32 as one setting, and products of bfloat16 operands with float32 sums.

Operands are rounded to bfloat16, whose products are exact in float32, and summed in float32; so are the products of the
backward pass. The products hide in operators of their own: a compiler would take a chain of conversions there and back
for superfluous, and leave out the rounding. On CUDA they run on the matrix units; elsewhere the rounded numbers are
multiplied in float32, which gives the same up to the order of summation, and takes as long as float32.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.nn import functional


def _read() -> tuple[str, bool] | None:
    """Precision of products and permission of TF32 for cuDNN; None if the user has set single operations."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


@contextlib.contextmanager
def set_switches(precision: str) -> Generator[None]:
    """Sets torch's two switches inside a ``with`` block, "highest" for full float32.

    Raises:
        RuntimeError: If the user has set single operations.
    """
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def one_precision(device: torch.device, precision: str | None = None) -> contextlib.AbstractContextManager[None]:
    """Sets cuDNN's convolutions and recurrent kernels to the precision of all other products, on CUDA.

    Args:
        device: Device of the computation.
        precision: Precision of all products; None for that of ``torch.set_float32_matmul_precision``.
    """
    before = _read() if device.type == "cuda" else None
    return contextlib.nullcontext() if before is None else set_switches(precision or before[0])


def describe_switches() -> dict[str, str]:
    """Values of the two switches, by torch's names."""
    precision, tf32 = _read() or ("set for single operations", None)
    return {"float32_matmul_precision": precision, "cudnn_allow_tf32": str(tf32)}


def product_bfloat16(x: torch.Tensor, kernel: torch.Tensor) -> torch.Tensor:
    """``x @ kernel`` of the operands' nearest bfloat16 numbers, summed in float32."""
    found = torch.ops.multippo.bfloat16_product(x.reshape(-1, x.shape[-1]), kernel)
    return found.reshape(*x.shape[:-1], kernel.shape[1])


def linear_bfloat16(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``functional.linear`` by ``product_bfloat16``; the bias is added in float32."""
    y = product_bfloat16(x, weight.T)
    return y if bias is None else y + bias


def convolve_bfloat16(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: tuple[int, ...]
) -> torch.Tensor:
    """``conv2d`` of the operands' nearest bfloat16 numbers, summed in float32; the bias is added in float32."""
    y = torch.ops.multippo.bfloat16_convolution(x, weight, list(stride))
    return y if bias is None else y + bias[:, None, None]


def _rounded(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.bfloat16).to(torch.float32)


def _multiply(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    if a.is_cuda and "dtype" in torch.ops.aten.mm.overloads():
        return torch.mm(a.to(torch.bfloat16), b.to(torch.bfloat16), out_dtype=torch.float32)
    with one_precision(a.device, "high"):  # TF32, in which products of bfloat16 numbers are exact
        return _rounded(a) @ _rounded(b)


def _convolve(x: torch.Tensor, weight: torch.Tensor, stride: list[int]) -> torch.Tensor:
    with one_precision(x.device, "high"):
        return functional.conv2d(_rounded(x), _rounded(weight), None, tuple(stride)).contiguous()


def _convolve_backward(
    grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, stride: list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    arrays = (_rounded(grad), _rounded(x), _rounded(weight))
    whole: Any = (None, stride, [0, 0], [1, 1], False, [0, 0], 1, [True, True, False])  # no bias, padding or groups
    with one_precision(x.device, "high"):
        to_x, to_weight, _ = torch.ops.aten.convolution_backward(*arrays, *whole)
    return to_x.contiguous(), to_weight.contiguous()


def _differentiate_product(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    a, b = ctx.saved_tensors
    multiply = torch.ops.multippo.bfloat16_product
    return multiply(grad, b.T), multiply(a.T, grad)


def _differentiate_convolution(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, None]:
    return *torch.ops.multippo.bfloat16_convolution_backward(grad, *ctx.saved_tensors, *ctx.stride), None


def _save(ctx: Any, inputs: Any, output: Any) -> None:
    del output
    ctx.save_for_backward(*inputs[:2])
    ctx.stride = inputs[2:]  # a product has none


def _define(name: str, schema: str, run: Callable[..., Any], shapes: Callable[..., Any]) -> None:
    torch.library.define(f"multippo::{name}", schema)
    torch.library.impl(f"multippo::{name}", "CompositeExplicitAutograd")(run)
    torch.library.register_fake(f"multippo::{name}")(shapes)


_IMAGES = "Tensor x, Tensor weight, int[] stride"
_define("bfloat16_product", "(Tensor a, Tensor b) -> Tensor", _multiply, torch.mm)
_define("bfloat16_convolution", f"({_IMAGES}) -> Tensor", _convolve, _convolve)
_define(
    "bfloat16_convolution_backward",
    f"(Tensor grad, {_IMAGES}) -> (Tensor, Tensor)",
    _convolve_backward,
    lambda grad, x, weight, stride: (x.new_empty(x.shape), weight.new_empty(weight.shape)),
)
torch.library.register_autograd("multippo::bfloat16_product", _differentiate_product, setup_context=_save)
torch.library.register_autograd("multippo::bfloat16_convolution", _differentiate_convolution, setup_context=_save)
