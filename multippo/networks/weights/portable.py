"""Weights as NumPy arrays under names and in layouts that every engine shares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from multippo.networks.types import StatefulModule
from multippo.networks.weights.given_arrays import fitted, numbers, without_extensions

__all__ = ["load_portable", "portable_split", "to_portable"]


def to_portable(module: Any) -> dict[str, np.ndarray]:
    """Every ``Param`` and ``Variable`` of a module, and the weights of the native layers it wraps.

    Args:
        module: A StatefulModule on any engine.

    Returns:
        Arrays by dotted path, sorted; a dense kernel is ``[in, out]``, a convolution's ``[height, width, in, out]``;
        an LSTM's gates are i, f, g, o with one bias, a GRU's r, z, n.

    Raises:
        TypeError: If ``module`` is not a StatefulModule.
        ValueError: If two arrays have one name, since a key holds a dot.
    """
    refuse_other_module("to_portable", module)
    return {name: _as_kept(leaf.read()) for name, leaf in module.engine.leaves(module).items()}


def portable_split(module: Any, params: Any, variables: Any) -> dict[str, np.ndarray]:
    """Portable form of other arrays of a module's structure; the module lends their names and layouts.

    Args:
        module: A StatefulModule, which is read and not written to: it may be in training meanwhile.
        params: As ``engine.split`` returns them.
        variables: Likewise.
    """
    held = module.engine.native_arrays(params, variables)
    leaves = module.engine.leaves(module).items()
    return {name: _as_kept(np.array(leaf.to_portable(held[leaf.native_path]), order="C")) for name, leaf in leaves}


def refuse_other_module(what: str, module: Any) -> None:
    """Raises a TypeError unless ``module`` is a StatefulModule; ``what`` names the function that got it."""
    if not isinstance(module, StatefulModule):
        raise TypeError(f"{what} got a {type(module).__name__}; expected a StatefulModule.")


def refuse_other_state(what: str, state: Any, expected: str) -> None:
    """Raises a TypeError unless ``state`` is a mapping; ``what`` names the function that got it."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{what} got a {type(state).__name__}; expected {expected}.")


def _as_kept(value: np.ndarray) -> np.ndarray:
    # uint32 words (random keys) and int64 ones are the same numbers, bfloat16 those of float32 that torch's are read
    # as; one type makes files equal.
    return value.astype(np.int64) if value.dtype == np.uint32 else without_extensions(value)


def load_portable(module: Any, arrays: Mapping[str, Any]) -> None:
    """Writes arrays from ``to_portable`` into a module of the same structure, on any engine.

    Args:
        module: A StatefulModule.
        arrays: Array by name. Floating-point types are cast to the module's; counters and keys take integers alone.

    Raises:
        ValueError: If a name is missing or left over, a shape differs, or an integer is out of range.
        TypeError: If ``module`` is not a StatefulModule, or an array holds numbers that the network's can't.
            Nothing is written after any error.
    """
    refuse_other_module("load_portable", module)
    refuse_other_state("load_portable", arrays, "the arrays by name that to_portable returns")
    leaves = module.engine.leaves(module)
    missing, extra = sorted(set(leaves) - set(arrays)), sorted(set(arrays) - set(leaves), key=str)
    if missing or extra:
        raise ValueError(
            f"The weights do not fit this {type(module).__name__}: missing {missing or 'none'}, left over "
            f"{extra or 'none'}. Load them into a network built the same way."
        )
    # All of them before the first is written.
    values = {name: fitted(name, numbers(name, arrays[name]), leaf.read()) for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        leaf.write(values[name])
