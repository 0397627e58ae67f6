"""Files that torch has saved, read without running code that they hold."""

from __future__ import annotations

import pickle
from typing import Any

from multippo.errors import needing


def read_torch_file(file: Any) -> Any:
    """Reads what ``torch.save`` wrote, with all arrays on the CPU.

    Args:
        file: Path, or a binary file.

    Raises:
        ValueError: If the file holds anything but arrays, numbers, text, and lists and dicts of them.
        ImportError: If torch is not installed.
    """
    with needing("torch", "Reading torch's files"):
        import torch
    try:
        return torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise ValueError(
            "The file holds other things than arrays and numbers, and is not read, since reading them would run code "
            f"from the file ({str(error).splitlines()[0]})."
        ) from error
