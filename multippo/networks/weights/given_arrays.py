"""Arrays as users give them, whatever library made them, checked and made NumPy's before any is written."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["fitted", "numbers", "without_extensions"]

_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "biuf", "c": "biufc"}
"""For each kind of the network's own arrays (NumPy's letters), the kinds that may be written into it."""
_MENDS = {
    "b": "truth values, as by array.astype(bool)",
    "i": "integers, as by array.astype(int)",
    "u": "integers, as by array.astype(int)",
    "f": "real numbers, as by array.real",
}


def numbers(name: str, value: Any) -> np.ndarray:
    """An array of numbers as NumPy's.

    Args:
        name: What an error calls it.
        value: An array of any library and on any device, a number, or nested lists of numbers.

    Returns:
        The same numbers; float16, and kinds that NumPy itself does not know (bfloat16, 8-bit floats, 4-bit integers),
        become float32, which holds each of them.

    Raises:
        TypeError: If it is no array of numbers, or one that can't be read: of ragged lists, sparse, quantised, without
            data.
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
    array = without_extensions(array)
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


def without_extensions(array: np.ndarray) -> np.ndarray:
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
