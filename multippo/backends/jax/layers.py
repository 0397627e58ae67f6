"""The layers flax ships, made from given arrays, and their portable names and layouts."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.core import Tracer

from multippo.backends.api import Engine

ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "relu": jax.nn.relu,
    "tanh": jnp.tanh,
    "sigmoid": jax.nn.sigmoid,
    "swish": jax.nn.swish,
    "silu": jax.nn.silu,
    "gelu": lambda x: jax.nn.gelu(x, approximate=False),
    "elu": jax.nn.elu,
    "leaky_relu": lambda x: jnp.where(x > 0, x, 0.01 * x),  # jax.nn's has slope 1 at 0, torch's 0.01
    "softplus": jax.nn.softplus,
    "identity": lambda x: x,
}

# JAX's default on GPUs and TPUs rounds the operands of float32 products to ten bits or to seven. Here they are whole,
# unless the user has set ``jax_default_matmul_precision``. A bfloat16 product rounds its operands to bfloat16, whose
# products are exact in float32, and sums in float32; so does its backward pass. On the CPU the rounded numbers are
# multiplied in float32, which gives the same up to the order of summation, and takes as long as float32.


def platform() -> str:
    """Kind of processor that computes: "cpu", "gpu" or "tpu"."""
    device: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
    if device is None:
        return jax.default_backend()
    return device.partition(":")[0] if isinstance(device, str) else device.platform


def _full() -> Any:
    chosen: Any = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
    # The CPU has one precision, so its programmes do not depend on the setting.
    return None if chosen is not None or platform() == "cpu" else jax.lax.Precision.HIGHEST


def product(x: Any, kernel: Any) -> Any:
    """``x @ kernel``, ``[..., in]`` and ``[in, out]``."""
    if platform() == "cpu":
        dtype = jnp.result_type(x, kernel)
        return _product_on_cpu(x.astype(dtype), kernel.astype(dtype))
    return jnp.matmul(x, kernel, precision=_full())


@jax.custom_jvp
def _product_on_cpu(x: Any, kernel: Any) -> Any:
    """``product`` whose rows come out the same whatever the batch, with a fast gradient of the kernel.

    XLA's CPU backend takes another summation order for products with few columns as the number of rows changes, so
    that an action's likelihood in a rollout and in replay would differ in the last bits, and by more after a division
    by a small standard deviation. With columns in multiples of 16 the order is one, and with rows in multiples of 8
    that of a product with a single column, which is the quicker way for a few (measured for up to 512 inputs).
    """
    size, columns = kernel.shape
    if columns <= _FEW:
        rows = math.prod(x.shape[:-1])
        flat = jnp.pad(x.reshape(rows, size), ((0, -rows % 8), (0, 0)))
        y = jnp.stack([jnp.matmul(flat, kernel[:, i]) for i in range(columns)], axis=-1)
        return y[:rows].reshape(*x.shape[:-1], columns)
    if missing := -columns % 16:
        kernel = jnp.pad(kernel, ((0, 0), (0, missing)))
    return jnp.matmul(x, kernel)[..., :columns]


@_product_on_cpu.defjvp
def _(primals: Any, tangents: Any) -> tuple[Any, Any]:
    (x, kernel), (dx, dkernel) = primals, tangents
    return _product_on_cpu(x, kernel), jnp.matmul(dx, kernel) + _by_kernel(x, dkernel)


_FEW = 4


def _by_kernel(x: Any, dkernel: Any) -> Any:
    """``x @ dkernel`` in a form whose transpose, the gradient of the kernel ``x.T @ grad``, is fast on the CPU.

    XLA's own form, which sums over the rows of both operands, takes 1.6 times as long for 64 columns, and 8 times for
    one or two.
    """
    size, columns = dkernel.shape
    if columns <= _FEW:
        return jnp.stack([jnp.matmul(x, dkernel[:, i]) for i in range(columns)], axis=-1)
    if size <= _FEW:
        return jnp.matmul(x, dkernel)
    # Behind the barrier XLA does not see that the columns are rows.
    rows = jax.lax.optimization_barrier(x.reshape(-1, size).T)
    return jax.lax.dot_general(rows, dkernel, (((0,), (0,)), ((), ()))).reshape(*x.shape[:-1], columns)


def product_bfloat16(x: Any, kernel: Any) -> Any:
    """``product`` of the operands' nearest bfloat16 numbers, summed in float32."""
    return _product(x, kernel)  # wrapped, since modules hold, copy and pickle plain functions only


@jax.custom_vjp
def _product(x: Any, kernel: Any) -> Any:
    if platform() == "cpu":
        return _product_on_cpu(_rounded(x), _rounded(kernel))
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
    # XLA may leave out a conversion there and back.
    return jax.lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)


def dot(lhs: Any, rhs: Any, *_: Any, **__: Any) -> Any:
    """``product`` as ``nnx.Linear`` calls it: the last axis of one, the first of the other."""
    return product(lhs, rhs)


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


class LSTMCore(nnx.OptimizedLSTMCell):
    """``nnx.OptimizedLSTMCell`` with the entries the neutral layer calls."""

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type."""
        return jnp.zeros((batch_size, self.hidden_features), self.dense_h.kernel[...].dtype)

    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """Takes one step: ``[B, in]``, ``[B, H]``, ``[B, H]`` to the new ``h`` and ``c``."""
        (c, h), _ = self((c, h), x)
        return h, c

    def unroll(self, xs: Any, h: Any, c: Any, done: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any]:
        """Takes T steps, reset to ``(h0, c0)`` after each step where ``done`` holds; the input product is one call."""
        projected = self.dense_i(xs.reshape(-1, xs.shape[-1])).reshape(*xs.shape[:2], -1)
        dense: Any = self.dense_h
        return _unroll_lstm(dense.dot_general, dense.kernel[...], dense.bias[...], projected, h, c, done, h0, c0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _unroll_lstm(multiply: Any, kernel: Any, bias: Any, projected: Any, h: Any, c: Any, *reset: Any) -> Any:
    """LSTM over T steps, with a gradient that multiplies by the kernel's operand once, not in every step.

    Args:
        multiply: ``x @ kernel``, as ``nnx.Linear`` calls it.
        kernel: Recurrent kernel ``[H, 4 H]``.
        bias: ``[4 H]``.
        projected: Input product of each step, ``[T, B, 4 H]``.
        h: ``[B, H]``.
        c: ``[B, H]``.
        reset: ``done`` ``[T, B]``, and ``h0`` and ``c0`` ``[B, H]`` after it.

    Returns:
        Outputs ``[T, B, H]``, and the carry ``h`` and ``c`` after the last step.
    """
    return _lstm_forward(multiply, kernel, bias, projected, h, c, *reset)[0]


def _lstm_forward(
    multiply: Any, kernel: Any, bias: Any, projected: Any, h: Any, c: Any, done: Any, h0: Any, c0: Any
) -> Any:
    def body(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
        h, c = carry
        x, done_t = inputs
        gates = x + (multiply(h, kernel, (((1,), (0,)), ((), ()))) + bias)
        i, f, g, o = jnp.split(gates, 4, axis=-1)
        i, f, g, o = jax.nn.sigmoid(i), jax.nn.sigmoid(f), jnp.tanh(g), jax.nn.sigmoid(o)
        c_new = f * c + i * g
        squashed = jnp.tanh(c_new)
        h_new = o * squashed
        reset = done_t[:, None]
        return (jnp.where(reset, h0, h_new), jnp.where(reset, c0, c_new)), (h_new, (h, c, i, f, g, o, squashed))

    (h, c), (hs, kept) = jax.lax.scan(body, (h, c), (projected, done))
    return (hs, h, c), (kernel, kept, done)


def _lstm_backward(multiply: Any, residuals: Any, grads: Any) -> Any:
    kernel, kept, done = residuals
    d_hs, d_h, d_c = grads

    def back(h: Any, kernel: Any, grad: Any) -> Any:
        return jax.vjp(lambda h, kernel: multiply(h, kernel, (((1,), (0,)), ((), ()))), h, kernel)[1](grad)

    def body(carry: Any, inputs: Any) -> tuple[Any, Any]:
        d_h, d_c, d_h0, d_c0 = carry
        d_out, (h, c, i, f, g, o, squashed), done_t = inputs
        reset, zero = done_t[:, None], jnp.zeros_like(d_h)
        d_h0, d_c0 = d_h0 + jnp.where(reset, d_h, zero), d_c0 + jnp.where(reset, d_c, zero)
        d_h = jnp.where(reset, zero, d_h) + d_out
        d_c = jnp.where(reset, zero, d_c) + d_h * o * (1.0 - squashed**2)
        d_i, d_f, d_g = d_c * g * i * (1.0 - i), d_c * c * f * (1.0 - f), d_c * i * (1.0 - g**2)
        d_gates = jnp.concatenate([d_i, d_f, d_g, d_h * squashed * o * (1.0 - o)], axis=-1)
        return (back(h, kernel, d_gates)[0], d_c * f, d_h0, d_c0), d_gates

    start = d_h, d_c, jnp.zeros_like(d_h), jnp.zeros_like(d_c)
    (d_h, d_c, *d_reset), d_gates = jax.lax.scan(body, start, (d_hs, kept, done), reverse=True)
    rows = d_gates.reshape(-1, d_gates.shape[-1])
    d_kernel = back(kept[0].reshape(-1, kernel.shape[0]), kernel, rows)[1]
    return d_kernel, rows.sum(axis=0), d_gates, d_h, d_c, None, *d_reset


_unroll_lstm.defvjp(_lstm_forward, _lstm_backward)


class GRUCore(nnx.GRUCell):
    """``nnx.GRUCell`` with the recurrent bias of the candidate, which it lacks and cuDNN has."""

    def __init__(self, recurrent_bias: np.ndarray, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recurrent_bias = nnx.Param(jnp.array(recurrent_bias, kwargs["param_dtype"]))

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type."""
        return jnp.zeros((batch_size, self.hidden_features), self.dense_h.kernel[...].dtype)

    def __call__(self, carry: Any, inputs: Any) -> tuple[Any, Any]:
        """Takes one step in the form of NNX: returns the new carry, twice."""
        h = self.step(inputs, carry)
        return h, h

    def step(self, x: Any, h: Any) -> Any:
        """Takes one step: ``[B, in]`` and ``[B, H]`` to the new ``h``."""
        return self._gates(self.dense_i(x), h)

    def unroll(self, xs: Any, h: Any, done: Any, h0: Any) -> tuple[Any, Any]:
        """Takes T steps, reset to ``h0`` after each step where ``done`` holds; the input product is one call."""
        projected = self.dense_i(xs.reshape(-1, xs.shape[-1])).reshape(*xs.shape[:2], -1)

        def body(h: Any, inputs: tuple[Any, Any]) -> tuple[Any, Any]:
            a, done_t = inputs
            h = self._gates(a, h)
            return jnp.where(done_t[:, None], h0, h), h

        h, hs = jax.lax.scan(body, h, (projected, done))
        return hs, h

    def _gates(self, a: Any, h: Any) -> Any:
        a_r, a_z, a_n = jnp.split(a, 3, axis=-1)
        b_r, b_z, b_n = jnp.split(self.dense_h(h), 3, axis=-1)
        z = jax.nn.sigmoid(a_z + b_z)
        n = jnp.tanh(a_n + jax.nn.sigmoid(a_r + b_r) * (b_n + self.recurrent_bias[...]))
        return (1.0 - z) * n + z * h


_OF_LSTM = {"dense_i.kernel": "input_kernel", "dense_h.kernel": "recurrent_kernel", "dense_h.bias": "bias"}

PORTABLE_NAMES: dict[type, dict[str, str]] = {
    nnx.OptimizedLSTMCell: _OF_LSTM,
    LSTMCore: _OF_LSTM,
    GRUCore: {"dense_i.kernel": "input_kernel", "dense_i.bias": "bias", "dense_h.kernel": "recurrent_kernel"},
}
"""Portable names of native attribute paths below a wrapped layer, where they differ; layouts are the same."""


class _NoKeys:
    """Stand-in for ``nnx.Rngs`` where the initial value is given, which saves compiling a key split."""

    def params(self) -> None:
        return None


def _given(array: Any) -> Callable[..., Any]:
    return lambda key, shape, dtype: from_numpy(np.asarray(array, dtype))


def from_numpy(array: np.ndarray) -> jax.Array:
    """A copy of an array, which ``jnp.array`` would compile for each shape.

    On the CPU JAX may alias NumPy's memory, even with ``may_alias=False``; an environment would overwrite it.
    """
    return jax.device_put(np.array(array))


class NativeLayers(Engine):
    """Part of the engine that makes layers from given arrays."""

    activations = ACTIVATIONS
    float_dtype: Any = jnp.float32  # pyright: ignore[reportIncompatibleMethodOverride]
    device: Any
    _bfloat16 = False

    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        given = self._given(kernel=kernel, bias=bias)
        return self._finished(nnx.Linear(*kernel.shape, use_bias=bias is not None, **given))

    def lstm(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> Any:
        given = self._given(kernel=input_kernel, recurrent_kernel=recurrent_kernel, bias=bias)
        return self._finished(LSTMCore(input_kernel.shape[0], recurrent_kernel.shape[0], **given))

    def gru(
        self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray
    ) -> Any:
        given = self._given(kernel=input_kernel, recurrent_kernel=recurrent_kernel, bias=bias)
        return self._finished(GRUCore(recurrent_bias, input_kernel.shape[0], recurrent_kernel.shape[0], **given))

    def layer_norm(self, features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> Any:
        given = self._given(scale=scale, bias=bias)
        given |= {"use_scale": scale is not None, "use_bias": bias is not None}
        # The fast variance, E[x^2] - E[x]^2, loses the digits of a mean far from 0.
        return self._placed(nnx.LayerNorm(features, epsilon=epsilon, use_fast_variance=False, **given))

    def conv(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> Any:
        given = self._given(kernel=kernel, bias=bias)
        around = padding.upper() if isinstance(padding, str) else [(size, size) for size in padding]
        options: Any = {"strides": stride, "padding": around, "use_bias": bias is not None}
        return self._finished(nnx.Conv(*kernel.shape[2:], kernel_size=kernel.shape[:2], **options, **given))

    def _given(self, **arrays: np.ndarray | None) -> dict[str, Any]:
        """Arguments by which a layer of flax takes its arrays instead of drawing them."""
        initial = {f"{name}_init": _given(array) for name, array in arrays.items()}
        return {**initial, "param_dtype": self.float_dtype, "rngs": _NoKeys()}

    def _finished(self, core: Any) -> Any:
        """``core`` with products in full float32, or with operands in bfloat16."""
        if isinstance(core, nnx.Conv):
            core.conv_general_dilated = convolution_bfloat16 if self._bfloat16 else convolution
        else:
            for dense in [core] if isinstance(core, nnx.Linear) else [core.dense_i, core.dense_h]:
                dense.dot_general = dot_bfloat16 if self._bfloat16 else dot
        return self._placed(core)

    def lift(self, module: Any) -> nnx.Module:
        if not isinstance(module, nnx.Module):
            raise TypeError(
                f"Lift got a {type(module).__module__}.{type(module).__name__}; on the engine jax it takes a "
                "flax.nnx.Module, or a function. Make module and Lift under one multippo.use_backend(...)."
            )
        for path, value in nnx.iter_graph(module):
            if isinstance(value, nnx.BatchStat | nnx.Cache | nnx.RngState):
                where = ".".join(map(str, path))
                raise TypeError(
                    f"Lift got a {type(module).__name__} with a state of its own, {where} ({type(value).__name__}), "
                    "which a call would write; it takes stateless modules. multippo has Dropout, LayerNorm and "
                    "Normalizer."
                )
        return self._placed(module)

    def _placed(self, module: Any) -> Any:
        if self.device is not None:
            nnx.update(module, jax.tree.map(self._place, nnx.state(module)))
        return module

    def _place(self, array: Any) -> Any:
        """Binds an array to the engine's device, if one was chosen, on which computations from the array then stay."""
        if self.device is None or isinstance(array, Tracer):
            return array
        return jax.device_put(array, self.device)
