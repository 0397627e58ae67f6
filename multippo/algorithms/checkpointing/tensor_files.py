"""Named arrays in safetensors files, read only where name, shape and kind are the expected ones.

Kinds of numbers that NumPy itself does not know (bfloat16, 8-bit floats) are stored as float32, which holds each of
these numbers exactly; readers cast to the type of their own array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, deserialize
from safetensors.numpy import save

from multippo.errors import DamagedCheckpointError, UnexpectedFileError
from multippo.files import create, open_to_read, parse_json, short

_STORED = {
    "BOOL": "bool",
    **{f"{kind[0].upper()}{size}": f"{kind}{size}" for kind in ("int", "uint") for size in (8, 16, 32, 64)},
    **{f"F{size}": f"float{size}" for size in (16, 32, 64)},
}
"""Names of NumPy's kinds of numbers by those of safetensors."""
_KINDS = {"b": "truth values", "i": "integers", "u": "integers", "f": "floats", "V": "floats"}
"""Kinds of numbers by NumPy's letters; other packages' types of floats have the letter for raw bytes."""
_MOST_SHOWN = 100


class ArrayType(NamedTuple):
    """Shape and type of an array that is yet to be read."""

    shape: tuple[int, ...]
    dtype: Any


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes arrays of any strides, number of axes and byte order.

    Returns:
        The file's SHA-256, in hexadecimal digits.

    Raises:
        TypeError: If an array does not hold numbers or truth values.
        OSError: If the disk is full, read-only, ….
    """
    # save_file would make files that only their owner may read.
    content = save({name: _storable(name, array) for name, array in arrays.items()})
    with create(path) as file:
        file.write(content)
    return hashlib.sha256(content).hexdigest()


def read_tensors(
    path: Path, like: Mapping[str, Any] | None = None, *, what: str = "array", sha256: str | None = None
) -> dict[str, np.ndarray]:
    """Reads the arrays of a file, by name.

    Args:
        path: The file.
        like: Example of the expected shape and type (or None for any) by the name of every array; an array is cast to
            that type within its kind. None as a whole takes all arrays as they are.
        what: Word for an array in errors.
        sha256: Return value of ``write_tensors``; None if it is not known.

    Raises:
        ValueError: If a name is missing or left over, or a shape differs.
        DamagedCheckpointError: If the file is not safetensors, not the one written, or has another kind of numbers.
        FileNotFoundError: If the file is missing.
    """
    try:
        with open_to_read(path) as file:
            content = file.read()
    except (UnexpectedFileError, MemoryError) as error:
        raise DamagedCheckpointError(str(error) or f"{path} is larger than the memory.") from error
    if sha256 is not None and hashlib.sha256(content).hexdigest() != sha256:
        raise DamagedCheckpointError(
            f"{path} is damaged. Its SHA-256 is not the one noted when it was saved: copy the checkpoint again, or "
            "take an earlier one."
        )
    try:
        entries = deserialize(content)
        # Of two arrays with one name safetensors takes the last; parse_json raises.
        parse_json(content[8 : 8 + int.from_bytes(content[:8], "little")])
    except (SafetensorError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} is not a safetensors file: {error}.") from error
    found = dict(sorted(entries, key=lambda entry: entry[0]))
    like = dict.fromkeys(found) if like is None else like
    if found.keys() != like.keys():
        raise ValueError(
            f"{path} does not fit: {what}s missing in it: {_some(like.keys() - found)}; left over in it: "
            f"{_some(found.keys() - like)}. Load it into what it was saved from: the same network, environment and "
            "sizes."
        )
    return {name: _array(path, f"{what} {short(name)}", entry, like[name]) for name, entry in found.items()}


def _some(names: set[str], most: int = 8) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(name[:_MOST_SHOWN] for name in sorted(names)[:most]) + more or "none"


def _array(path: Path, what: str, entry: Mapping[str, Any], like: Any) -> np.ndarray:
    shape, stored = tuple(entry["shape"]), _STORED.get(entry["dtype"])
    if like is not None and shape != tuple(like.shape):
        raise ValueError(f"The {what} has shape {short(shape)} in {path}; expected {tuple(like.shape)}.")
    if stored is None:
        raise DamagedCheckpointError(f"The {what} in {path} is of {entry['dtype']}, which no checkpoint has.")
    array = np.frombuffer(entry["data"], stored).reshape(shape)
    if like is None:
        return array
    dtype = np.dtype(like.dtype)
    if _KINDS[array.dtype.kind] != _KINDS.get(dtype.kind):
        raise DamagedCheckpointError(f"The {what} in {path} is of {array.dtype}; expected {dtype}.")
    if dtype.kind in "iu" and array.size:
        limits, least, most = np.iinfo(dtype), int(array.min()), int(array.max())
        if least < limits.min or most > limits.max:
            raise DamagedCheckpointError(
                f"The {what} in {path} holds integers from {least} to {most}; expected {limits.min} to {limits.max}."
            )
    with np.errstate(over="ignore"):  # numbers too large for float32 become infinite, as in any cast
        return array.astype(dtype, copy=False)


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("=")
    if dtype.name not in _STORED.values():
        if dtype.kind in "OUSMm" or not np.can_cast(dtype, np.float32):
            raise TypeError(f"{name!r} of type {dtype} can't be stored: expected numbers or truth values.")
        dtype = np.dtype(np.float32)
    # ascontiguousarray would turn a number into a list of one.
    return np.asarray(array.astype(dtype, copy=False), order="C")
