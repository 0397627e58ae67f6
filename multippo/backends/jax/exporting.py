"""Programmes of JAX that run without multippo."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.export
import jax.numpy as jnp

from multippo.trees import tree_map


class _Namespace:
    """``jax.numpy`` with the error function, in 32 bits unless JAX is in its 64-bit mode."""

    erf = staticmethod(jax.scipy.special.erf)

    def __getattr__(self, name: str) -> Any:
        return getattr(jnp, name)

    @staticmethod
    def astype(x: Any, dtype: Any) -> Any:
        return x.astype(jax.dtypes.canonicalize_dtype(dtype))


def save_programme(make: Callable[[Any], Callable[..., Any]], args: tuple[Any, ...], path: Path) -> Any:
    """See ``Engine.save_programme``."""
    args, (batch,) = tree_map(jnp.asarray, args), jax.export.symbolic_shape("batch")
    shapes = tree_map(lambda x: jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype), args)
    exported = jax.export.export(jax.jit(make(_Namespace())), platforms=("cpu", "cuda", "rocm", "tpu"))(*shapes)
    path.write_bytes(exported.serialize())
    return exported.call(*args)
