"""Weights as NumPy arrays under names and in layouts that every engine shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["load_portable", "to_portable"]


def to_portable(module: Any) -> dict[str, np.ndarray]:
    """Every ``Param`` and ``Variable`` of a module, and the weights of the native layers it wraps.

    Args:
        module: A StatefulModule on any engine.

    Returns:
        Arrays by dotted path, sorted; a dense kernel is ``[in, out]``, a convolution's ``[height, width, in, out]``;
        an LSTM's gates are i, f, g, o with one bias, a GRU's r, z, n.
    """
    # uint32 words (random keys) and int64 ones are the same numbers; one type makes files equal.
    return {
        name: value.astype(np.int64) if value.dtype == np.uint32 else value
        for name, value in ((name, leaf.read()) for name, leaf in module.engine.leaves(module).items())
    }


def load_portable(module: Any, arrays: Mapping[str, Any]) -> None:
    """Writes arrays from ``to_portable`` into a module of the same structure, on any engine.

    Args:
        module: A StatefulModule.
        arrays: Array by name. Floating-point types are cast to the module's.

    Raises:
        ValueError: If a name is missing or left over, or a shape differs. Nothing is written then.
    """
    leaves = module.engine.leaves(module)
    missing, extra = sorted(set(leaves) - set(arrays)), sorted(set(arrays) - set(leaves))
    if missing or extra:
        raise ValueError(
            f"The weights do not fit this {type(module).__name__}: missing {missing or 'none'}, left over "
            f"{extra or 'none'}. Load them into a network built the same way."
        )
    values = {name: np.asarray(arrays[name]) for name in leaves}
    for name, leaf in leaves.items():
        expected = leaf.read().shape
        if values[name].shape != expected:
            raise ValueError(f"{name} has shape {values[name].shape} in the weights; the network expects {expected}.")
    for name, leaf in leaves.items():
        leaf.write(values[name])
