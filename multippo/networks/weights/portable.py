"""Weights as NumPy arrays under names and in layouts that every engine shares; and weights that are not trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from multippo.networks.core.error_paths import refuse_other_module

_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "biuf", "c": "biufc"}
"""For each kind of the network's own arrays (NumPy's letters), the kinds that may be written into it."""
_MENDS = {
    "b": "truth values, as by array.astype(bool)",
    "i": "integers, as by array.astype(int)",
    "u": "integers, as by array.astype(int)",
    "f": "real numbers, as by array.real",
}


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


def refuse_other_state(what: str, state: Any, expected: str) -> None:
    """Raises a TypeError unless ``state`` is a mapping; ``what`` names the function that got it."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{what} got a {type(state).__name__}; expected {expected}.")


def _as_kept(value: np.ndarray) -> np.ndarray:
    # uint32 words (random keys) and int64 ones are the same numbers, bfloat16 those of float32 that torch's are read
    # as; one type makes files equal.
    return value.astype(np.int64) if value.dtype == np.uint32 else _without_extensions(value)


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


def numbers(name: str, value: Any) -> np.ndarray:
    """An array of numbers as NumPy's.

    Args:
        name: What an error calls it.
        value: An array of any library and on any device, a number, or nested lists of numbers.

    Returns:
        The same numbers; float16, and kinds that NumPy itself does not know (bfloat16, 8-bit floats, 4-bit integers),
        become float32, which holds each of them.

    Raises:
        TypeError: If it is not an array of numbers, or one that can't be read: of ragged lists, sparse, quantised, or
            without data.
    """
    tensor = hasattr(value, "detach") and hasattr(value, "layout")
    if tensor:
        _refuse_odd_tensor(name, value)
    try:
        array = _from_tensor(value) if tensor else np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise TypeError(
            f"{name} is a {type(value).__name__} that can't be read as an array of numbers ({error}); expected one."
        ) from error
    array = _without_extensions(array)
    if array.dtype.kind not in "biufc":
        what = type(value).__name__ if array.dtype.kind == "O" and not array.ndim else str(array.dtype)
        raise TypeError(f"{name} holds {what}; expected an array of numbers.")
    # What is computed from half precision, such as the sum of two biases, is not to be rounded to it.
    return array.astype(np.float32) if array.dtype == np.float16 else array


def fitted(name: str, value: np.ndarray, own: np.ndarray) -> np.ndarray:
    """An array in the shape and type of the one it is to replace.

    Args:
        name: What an error calls it.
        value: As ``numbers`` returns it.
        own: The network's array.

    Raises:
        ValueError: If the shapes differ, or integers lie outside what the network's type holds.
        TypeError: If a counter or key is to become a number with a fraction, or a real number a complex one.
    """
    if value.shape != own.shape:
        raise ValueError(f"{name} has shape {value.shape} in the weights; the network expects {own.shape}.")
    own_kind = "f" if own.dtype.kind == "V" else own.dtype.kind
    # An empty list is one of float64, of which no number says otherwise.
    if value.size and value.dtype.kind not in _KINDS[own_kind]:
        raise TypeError(
            f"{name} holds {value.dtype} in the weights; the network expects {own.dtype}: give it {_MENDS[own_kind]}."
        )
    if value.size and own_kind in "iu":
        limits, least, most = np.iinfo(own.dtype), int(value.min()), int(value.max())
        if least < limits.min or most > limits.max:
            raise ValueError(
                f"{name} holds integers from {least} to {most} in the weights; the network expects {own.dtype}, from "
                f"{limits.min} to {limits.max}."
            )
    # What float32 can't hold becomes infinite, as in any cast.
    with np.errstate(over="ignore"):
        return value.astype(own.dtype)


def _without_extensions(array: np.ndarray) -> np.ndarray:
    """The array, or float32 numbers in place of a kind that NumPy does not know itself."""
    # Other packages' types have NumPy's letter for raw bytes, whose own type is np.void.
    extension = array.dtype.kind == "V" and array.dtype.type is not np.void
    return array.astype(np.float32) if extension else array


def _refuse_odd_tensor(name: str, tensor: Any) -> None:
    for trouble, is_so, mend in (
        (f"of layout {tensor.layout}", str(tensor.layout) != "torch.strided", "Pass tensor.to_dense()."),
        ("quantised", tensor.is_quantized, "Pass tensor.dequantize()."),
        ("on the device meta, without data", tensor.is_meta, "Load the weights of its module first."),
    ):
        if is_so:
            raise TypeError(f"{name} is a tensor {trouble}; expected a dense one of numbers. {mend}")


def _from_tensor(tensor: Any) -> np.ndarray:
    host = tensor.detach().cpu()
    # NumPy has no bfloat16; float32 holds each of its numbers.
    return (host.float() if host.dtype.is_floating_point and host.element_size() < 4 else host).numpy()


def freeze(module: Any) -> None:
    """Keeps a module's parameters as they are in training, until ``unfreeze``.

    Statistics are updated as before. A frozen network is saved and loaded as any other; one that is rebuilt to load it
    into has to be frozen again. On torch it is ``module.requires_grad_(False)``.

    Args:
        module: A StatefulModule, a whole network or a part of one.

    Raises:
        TypeError: If it is something else.

    Example:
        >>> import multippo as mp
        >>> layer = mp.Dense(2, 2, mp.Rngs(0))
        >>> mp.freeze(layer)
        >>> len(layer.engine.named_params(layer.engine.split(layer).params))
        0
    """
    refuse_other_module("freeze", module)
    module.engine.freeze(module, True)


def unfreeze(module: Any) -> None:
    """Trains a module's parameters again. In a run that goes on the optimiser's moments of them are zero at first.

    Args:
        module: A StatefulModule.

    Raises:
        TypeError: If it is something else.
    """
    refuse_other_module("unfreeze", module)
    module.engine.freeze(module, False)
