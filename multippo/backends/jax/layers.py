"""The layers flax ships, made from given arrays, and their portable names and layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from multippo.backends.jax import products

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

PORTABLE_NAMES: dict[type, dict[str, str]] = {
    nnx.OptimizedLSTMCell: {
        "dense_i.kernel": "input_kernel",
        "dense_h.kernel": "recurrent_kernel",
        "dense_h.bias": "bias",
    },
}
"""Native attribute paths below a wrapped layer that are called otherwise in portable form; layouts are the same."""


class _NoKeys:
    """Stands in for ``nnx.Rngs`` where the initial value is given, and saves compiling a key split."""

    def params(self) -> None:
        return None


def _given(array: np.ndarray) -> Callable[..., Any]:
    return lambda key, shape, dtype: jnp.array(array, dtype)


class LinearCore(nnx.Linear):
    """``nnx.Linear`` whose rows come out the same whatever the batch, on the CPU.

    XLA's CPU backend takes another summation order for products with few columns as the number of rows changes, so
    that an action's likelihood in a rollout and in replay would differ in the last bits, and by more after a division
    by a small standard deviation. With columns in multiples of 16 the order is one (measured for up to 512 inputs).
    """

    def __call__(self, inputs: Any, out_sharding: Any = None) -> Any:
        """``[..., in]`` to ``[..., out]``."""
        missing = -self.out_features % _COLUMNS
        if not missing or products.platform() != "cpu":
            return super().__call__(inputs, out_sharding)
        inputs, kernel, bias = self.promote_dtype((inputs, self.kernel[...], self._bias()), dtype=self.dtype)
        kernel = jnp.pad(kernel, ((0, 0), (0, missing)))
        y = self.dot_general(inputs, kernel, (((inputs.ndim - 1,), (0,)), ((), ())))[..., : self.out_features]
        return y if bias is None else y + bias

    def _bias(self) -> Any:
        return None if self.bias is None else self.bias[...]


_COLUMNS = 16


def linear(kernel: np.ndarray, bias: np.ndarray | None, dtype: Any) -> LinearCore:
    """``nnx.Linear`` with the given kernel ``[in, out]`` and bias ``[out]``."""
    return LinearCore(
        *kernel.shape,
        use_bias=bias is not None,
        kernel_init=_given(kernel),
        bias_init=_given(bias if bias is not None else np.zeros(0)),
        param_dtype=dtype,
        rngs=_NoKeys(),  # pyright: ignore[reportArgumentType]
    )


class LSTMCore(nnx.OptimizedLSTMCell):
    """``nnx.OptimizedLSTMCell`` with the entries the neutral layer calls."""

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type."""
        return jnp.zeros((batch_size, self.hidden_features), self.dense_h.kernel[...].dtype)

    def step(self, x: Any, h: Any, c: Any) -> tuple[Any, Any]:
        """One step: ``[B, in]``, ``[B, H]``, ``[B, H]`` to the new ``h`` and ``c``."""
        (c, h), _ = self((c, h), x)
        return h, c

    def unroll(self, xs: Any, h: Any, c: Any, done: Any, h0: Any, c0: Any) -> tuple[Any, Any, Any]:
        """T steps, reset to ``(h0, c0)`` after each step where ``done`` holds; the input product is one call."""
        time, batch = xs.shape[:2]
        projected = self.dense_i(xs.reshape(time * batch, -1)).reshape(time, batch, -1)

        def body(carry: tuple[Any, Any], inputs: tuple[Any, Any]) -> tuple[tuple[Any, Any], Any]:
            h, c = carry
            z, done_t = inputs
            i, f, g, o = jnp.split(z + self.dense_h(h), 4, axis=-1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            reset = done_t[:, None]
            return (jnp.where(reset, h0, h), jnp.where(reset, c0, c)), h

        (h, c), hs = jax.lax.scan(body, (h, c), (projected, done))
        return hs, h, c


PORTABLE_NAMES[LSTMCore] = PORTABLE_NAMES[nnx.OptimizedLSTMCell]


def lstm(input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, dtype: Any) -> LSTMCore:
    """``nnx.OptimizedLSTMCell`` with the given kernels ``[in, 4H]``, ``[H, 4H]`` and bias ``[4H]``."""
    return LSTMCore(
        input_kernel.shape[0],
        recurrent_kernel.shape[0],
        kernel_init=_given(input_kernel),
        recurrent_kernel_init=_given(recurrent_kernel),
        bias_init=_given(bias),
        param_dtype=dtype,
        rngs=_NoKeys(),  # pyright: ignore[reportArgumentType]
    )


class GRUCore(nnx.GRUCell):
    """``nnx.GRUCell`` with the recurrent bias of the candidate, which it lacks and cuDNN has."""

    def __init__(self, recurrent_bias: np.ndarray, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.recurrent_bias = nnx.Param(jnp.array(recurrent_bias, kwargs["param_dtype"]))

    def carry(self, batch_size: int) -> Any:
        """Zeros ``[B, H]`` of the weights' type."""
        return jnp.zeros((batch_size, self.hidden_features), self.dense_h.kernel[...].dtype)

    def __call__(self, carry: Any, inputs: Any) -> tuple[Any, Any]:
        """One step as NNX writes it: the new carry, twice."""
        h = self.step(inputs, carry)
        return h, h

    def step(self, x: Any, h: Any) -> Any:
        """One step: ``[B, in]`` and ``[B, H]`` to the new ``h``."""
        return self._gates(self.dense_i(x), h)

    def unroll(self, xs: Any, h: Any, done: Any, h0: Any) -> tuple[Any, Any]:
        """T steps, reset to ``h0`` after each step where ``done`` holds; the input product is one call."""
        time, batch = xs.shape[:2]
        projected = self.dense_i(xs.reshape(time * batch, -1)).reshape(time, batch, -1)

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


PORTABLE_NAMES[GRUCore] = {
    "dense_i.kernel": "input_kernel",
    "dense_i.bias": "bias",
    "dense_h.kernel": "recurrent_kernel",
}


def gru(
    input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray, dtype: Any
) -> GRUCore:
    """``GRUCore`` with kernels ``[in, 3H]``, ``[H, 3H]``, bias ``[3H]`` and the candidate's recurrent bias ``[H]``."""
    return GRUCore(
        recurrent_bias,
        input_kernel.shape[0],
        recurrent_kernel.shape[0],
        kernel_init=_given(input_kernel),
        recurrent_kernel_init=_given(recurrent_kernel),
        bias_init=_given(bias),
        param_dtype=dtype,
        rngs=_NoKeys(),
    )


def layer_norm(
    features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float, dtype: Any
) -> nnx.LayerNorm:
    """``nnx.LayerNorm`` with the given scale and bias."""
    return nnx.LayerNorm(
        features,
        epsilon=epsilon,
        use_scale=scale is not None,
        use_bias=bias is not None,
        scale_init=_given(np.zeros(0) if scale is None else scale),
        bias_init=_given(np.zeros(0) if bias is None else bias),
        # The fast one, E[x^2] - E[x]^2, loses the digits of a mean far from 0.
        use_fast_variance=False,
        param_dtype=dtype,
        rngs=_NoKeys(),  # pyright: ignore[reportArgumentType]
    )


def conv(
    kernel: np.ndarray,
    bias: np.ndarray | None,
    stride: tuple[int, int],
    padding: str | tuple[int, int],
    dtype: Any,
) -> nnx.Conv:
    """``nnx.Conv`` with the given kernel ``[height, width, in, out]`` and bias ``[out]``."""
    return nnx.Conv(
        *kernel.shape[2:],
        kernel_size=kernel.shape[:2],
        strides=stride,
        padding=padding.upper() if isinstance(padding, str) else [(size, size) for size in padding],
        use_bias=bias is not None,
        kernel_init=_given(kernel),
        bias_init=_given(np.zeros(0) if bias is None else bias),
        param_dtype=dtype,
        rngs=_NoKeys(),  # pyright: ignore[reportArgumentType]
    )


def set_products(core: Any, bfloat16: bool) -> Any:
    """``core``, one of the layers above, with products in full float32, or with operands in bfloat16."""
    if isinstance(core, nnx.Conv):
        core.conv_general_dilated = products.convolution_bfloat16 if bfloat16 else products.convolution
        return core
    for dense in [core] if isinstance(core, nnx.Linear) else [core.dense_i, core.dense_h]:
        dense.dot_general = products.dot_bfloat16 if bfloat16 else products.dot
    return core


_STATES = (nnx.BatchStat, nnx.Cache, nnx.RngState)


def lift(module: Any) -> nnx.Module:
    """``module``, if it is an ``nnx.Module`` that keeps no state."""
    if not isinstance(module, nnx.Module):
        raise TypeError(
            f"Lift got a {type(module).__module__}.{type(module).__name__}; on the engine jax it takes a "
            "flax.nnx.Module, or a function. Make module and Lift under one multippo.use_backend(...)."
        )
    for path, value in nnx.iter_graph(module):
        if isinstance(value, _STATES):
            where = ".".join(map(str, path))
            raise TypeError(
                f"Lift got a {type(module).__name__} with a state of its own, {where} ({type(value).__name__}), which "
                "a call would write; it takes stateless modules. multippo has Dropout, LayerNorm and Normalizer."
            )
    return module
