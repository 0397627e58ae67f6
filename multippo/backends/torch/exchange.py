"""Arrays between torch's networks and NumPy, or JAX's environments, without a detour over the host."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """A tensor on the host; one of bfloat16, which NumPy lacks, as float32, which holds each of its numbers."""
    host = x.detach().cpu()
    return host.float().numpy() if host.dtype == torch.bfloat16 else host.numpy()


def from_jax(x: Any, device: torch.device) -> torch.Tensor:
    """A JAX array, or a NumPy one, as a tensor on ``device`` that may be written to: JAX's own must not change."""
    platform = getattr(next(iter(x.devices())), "platform", "cpu") if hasattr(x, "devices") else "cpu"
    if platform != "cpu" and device.type == "cpu":
        # This torch need not know the other device.
        return torch.tensor(np.asarray(x))
    return torch.from_dlpack(x).to(device, copy=True)


def to_jax(x: torch.Tensor) -> Any:
    """A tensor as a JAX array where JAX computes by default, as environments do."""
    import jax
    import jax.dlpack

    target: Any = jax.config.jax_default_device or jax.devices()[0]  # pyright: ignore[reportAttributeAccessIssue]
    if x.is_cuda and target.platform != "gpu":
        x = x.cpu()
    array: Any = jax.dlpack.from_dlpack(x.detach().contiguous())
    # An array taken over stays with its device, and would draw the environment's step there.
    return array if array.devices() == {target} else jax.device_put(array, target)
