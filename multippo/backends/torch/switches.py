"""torch's ambient modes, as a run needs them; and its two switches for TF32, cuDNN's on by default, as one setting."""

from __future__ import annotations

import contextlib
from collections.abc import Generator

import torch

_MIXED = (
    "torch's TF32 switches were set for single operations (fp32_precision), which multippo.matmul_precision can't set "
    "and put back: use torch.set_float32_matmul_precision, or leave them to multippo."
)


def _read() -> tuple[str, bool] | None:
    """Precision of products and whether cuDNN may use TF32; None if the user has set single operations."""
    try:
        return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    except RuntimeError:
        return None


@contextlib.contextmanager
def set_switches(precision: str) -> Generator[None]:
    """Sets both, "highest" for full float32, and puts them back.

    Raises:
        ValueError: If the user has set single operations.
    """
    before = _read()
    if before is None:
        raise ValueError(_MIXED)
    torch.set_float32_matmul_precision(precision)
    torch.backends.cudnn.allow_tf32 = precision != "highest"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def one_precision(device: torch.device, precision: str | None = None) -> contextlib.AbstractContextManager[None]:
    """On CUDA, cuDNN's convolutions and recurrent kernels in the precision of all other products.

    Args:
        device: Where it is computed.
        precision: Of all products; None for that which ``torch.set_float32_matmul_precision`` has set.
    """
    before = _read() if device.type == "cuda" else None
    return contextlib.nullcontext() if before is None else set_switches(precision or before[0])


@contextlib.contextmanager
def own_modes(device: torch.device) -> Generator[None]:
    """Turns gradients on and autocast off, and makes ``device`` the default, whatever the process has set."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # gradients are on in it
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        # Left alone if it was never set, since under a default device every call of torch's takes longer.
        if torch.get_default_device() not in (torch.device("cpu"), device):
            stack.enter_context(device)
        yield


def describe_switches() -> dict[str, str]:
    """The settings as torch calls them."""
    before = _read()
    if before is None:
        return {"float32_matmul_precision": "set for single operations"}
    return {"float32_matmul_precision": before[0], "cudnn_allow_tf32": str(before[1])}
