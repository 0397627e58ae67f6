"""The devices that JAX sees, by the names that both engines use."""

from __future__ import annotations

import contextlib
from typing import Any

import jax


def name_of(device: Any) -> str:
    """Such as "cuda:0"; JAX calls GPUs of all makers "gpu"."""
    kind = device.platform
    if kind == "gpu":
        kind = "rocm" if "rocm" in str(device.client.platform_version).lower() else "cuda"
    return f"{kind}:{device.id}"


def found() -> dict[str, Any]:
    """The devices of this process, JAX's default first, and the processor, which is there beside any other."""
    devices: list[Any] = list(jax.local_devices())
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave it out
        devices += [device for device in jax.local_devices(backend="cpu") if device not in devices]
    return {name_of(device): device for device in devices}
