"""The devices that torch sees, by the names that both engines use."""

from __future__ import annotations

import torch


def name_of(device: torch.device) -> str:
    """Such as "cuda:0"; torch itself gives the processor no number."""
    return f"{device.type}:{device.index or 0}"


def found() -> dict[str, torch.device]:
    """The devices of this process, GPUs first. A build of torch for AMD's calls them "cuda" as well."""
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return {name_of(device): device for device in (*devices, torch.device("cpu"))}
