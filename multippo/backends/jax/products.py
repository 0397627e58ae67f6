"""Matrix products: in full float32 also where a processor would rather not, and with bfloat16 operands.

JAX's default on GPUs and TPUs rounds the operands of float32 products to ten bits or to seven. Here they are whole,
unless the user has set ``jax_default_matmul_precision``.

A bfloat16 product rounds its operands to bfloat16, whose products are exact in float32, and sums in float32; so does
its backward pass. On the CPU the rounded numbers are multiplied in float32, which gives the same up to the order of
summation, and takes as long as float32.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def platform() -> str:
    """The kind of processor that computations go to: "cpu", "gpu" or "tpu"."""
    device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None:
        return jax.default_backend()
    return device.partition(":")[0] if isinstance(device, str) else device.platform


def _full() -> Any:
    chosen: Any = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    # Nothing to say on the CPU, and so nothing that could be compiled otherwise.
    return None if chosen is not None or platform() == "cpu" else jax.lax.Precision.HIGHEST


def product(x: Any, kernel: Any) -> Any:
    """``x @ kernel``, ``[..., in]`` and ``[in, out]``."""
    return jnp.matmul(x, kernel, precision=_full())


def product_bfloat16(x: Any, kernel: Any) -> Any:
    """``product`` of the operands' nearest bfloat16 numbers, summed in float32."""
    return _product(x, kernel)  # a plain function, which modules can hold, copy and pickle


@jax.custom_vjp
def _product(x: Any, kernel: Any) -> Any:
    return _contract(x, kernel, ((x.ndim - 1,), (0,)))


def _forward(x: Any, kernel: Any) -> tuple[Any, Any]:
    return _product(x, kernel), (x, kernel)


def _backward(kept: tuple[Any, Any], grad: Any) -> tuple[Any, Any]:
    x, kernel = kept
    rows = tuple(range(x.ndim - 1))
    return _contract(grad, kernel, ((grad.ndim - 1,), (1,))), _contract(x, grad, (rows, rows))


_product.defvjp(_forward, _backward)


def _contract(a: Any, b: Any, axes: Any) -> Any:
    a, b = _rounded(a), _rounded(b)
    if platform() == "cpu":
        return jax.lax.dot_general(a, b, (axes, ((), ())))
    a, b = a.astype(jnp.bfloat16), b.astype(jnp.bfloat16)
    return jax.lax.dot_general(a, b, (axes, ((), ())), preferred_element_type=jnp.float32)


def _rounded(x: Any) -> Any:
    # Not a conversion there and back, which XLA may leave out.
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def dot(lhs: Any, rhs: Any, dimension_numbers: Any, precision: Any = None, **options: Any) -> Any:
    """``lax.dot_general``, for ``nnx.Linear``."""
    return jax.lax.dot_general(lhs, rhs, dimension_numbers, precision=precision or _full(), **options)


def dot_bfloat16(lhs: Any, rhs: Any, *_: Any, **__: Any) -> Any:
    """``product_bfloat16`` as ``nnx.Linear`` calls it: the last axis of one, the first of the other."""
    return product_bfloat16(lhs, rhs)


def convolution(lhs: Any, rhs: Any, *args: Any, precision: Any = None, **options: Any) -> Any:
    """``lax.conv_general_dilated``, for ``nnx.Conv``."""
    return jax.lax.conv_general_dilated(lhs, rhs, *args, precision=precision or _full(), **options)


def convolution_bfloat16(lhs: Any, rhs: Any, *args: Any, precision: Any = None, **options: Any) -> Any:
    """``convolution`` of the operands' nearest bfloat16 numbers, summed in float32."""
    del precision

    def exact(lhs: Any, rhs: Any) -> Any:
        # Rounded numbers are products of the reduced kind already, which is exact for them and the fastest.
        return jax.lax.conv_general_dilated(lhs, rhs, *args, precision=jax.lax.Precision.DEFAULT, **options)

    @jax.custom_vjp
    def run(lhs: Any, rhs: Any) -> Any:
        return exact(_rounded(lhs), _rounded(rhs))

    def forward(lhs: Any, rhs: Any) -> tuple[Any, Any]:
        return run(lhs, rhs), (lhs, rhs)

    def backward(kept: tuple[Any, Any], grad: Any) -> Any:
        return jax.vjp(exact, *(_rounded(x) for x in kept))[1](_rounded(grad))

    run.defvjp(forward, backward)
    return run(lhs, rhs)
