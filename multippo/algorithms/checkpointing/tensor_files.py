"""Named arrays in safetensors files, read only where name and shape are the expected ones.

Kinds of numbers that NumPy itself does not know (bfloat16, 8-bit floats) are stored as float32, which holds each of
their values exactly; whoever reads them casts to the type of its own array.
"""

from __future__ import annotations

import hashlib
import json
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multippo.errors import DamagedCheckpointError

__all__ = ["check_regular", "check_sha256", "read_tensors", "tensor_shapes", "unique", "write_tensors"]

_STORED = frozenset(
    ("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64")
)
_CHANGED = "Its SHA-256 is not the one noted when it was saved: copy the checkpoint again, or take an earlier one."


def write_tensors(path: Path, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes arrays, whatever their strides, number of axes or byte order.

    Returns:
        The file's SHA-256, in hexadecimal digits.

    Raises:
        TypeError: If one holds no numbers.
    """
    from safetensors.numpy import save

    # Not save_file, which makes a file that nobody but its owner may read.
    content = save({name: _storable(name, array) for name, array in arrays.items()})
    path.write_bytes(content)
    return hashlib.sha256(content).hexdigest()


def tensor_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Name and shape of every array in a file, read from its head alone.

    Raises:
        DamagedCheckpointError: If it is no safetensors file.
        FileNotFoundError: If it is missing.
    """
    from safetensors import SafetensorError, safe_open

    check_regular(path)
    try:
        with safe_open(str(path), framework="np") as file:
            found = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
        with path.open("rb") as raw:  # whose head is sound by now, but for names that stand in it twice
            json.loads(raw.read(int.from_bytes(raw.read(8), "little")), object_pairs_hook=unique)
    except (SafetensorError, ValueError) as error:
        raise DamagedCheckpointError(f"{path} is no safetensors file: {error}.") from error
    return found


def read_tensors(
    path: Path,
    expected: Mapping[str, tuple[int, ...] | None] | None = None,
    *,
    what: str = "array",
    sha256: str | None = None,
) -> dict[str, np.ndarray]:
    """Reads arrays.

    Args:
        path: The file.
        expected: Shape of every array by name (None for any), checked before anything else is read; None as a whole
            takes what there is.
        what: What error messages call an array.
        sha256: What ``write_tensors`` returned; None if nobody knows.

    Raises:
        ValueError: If a name is missing or left over, or a shape differs.
        DamagedCheckpointError: If it is no safetensors file, or another than the one written.
        FileNotFoundError: If it is missing.
    """
    from safetensors import SafetensorError, safe_open

    found = tensor_shapes(path)
    try:
        if expected is not None:
            _compare(path, found, expected, what)
    except ValueError as error:
        if sha256 is not None and _sha256(path) != sha256:
            raise DamagedCheckpointError(f"{error} {_CHANGED}") from error
        raise
    check_sha256(path, sha256)
    try:
        with safe_open(str(path), framework="np") as file:
            return {name: file.get_tensor(name) for name in found}
    except (SafetensorError, TypeError) as error:
        raise DamagedCheckpointError(f"{path} can't be read: {error}.") from error


def unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON with these members: an ``object_pairs_hook``.

    Raises:
        ValueError: If a name stands twice in it, of which readers take one or the other.
    """
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in found if names.count(name) > 1)
        raise ValueError(f"it names {twice!r} twice")
    return found


def check_sha256(path: Path, sha256: str | None) -> None:
    """Compares a file with the SHA-256 it had when it was written, if that is known.

    Raises:
        DamagedCheckpointError: If it is another file.
        FileNotFoundError: If it is missing.
    """
    check_regular(path)
    if sha256 is not None and _sha256(path) != sha256:
        raise DamagedCheckpointError(f"{path} is damaged. {_CHANGED}")


def check_regular(path: Path) -> None:
    """Refuses a link, which could lead anywhere, and whatever else is no plain file.

    Raises:
        DamagedCheckpointError: If ``path`` is one.
        FileNotFoundError: If it is missing.
    """
    if not stat.S_ISREG(path.lstat().st_mode):
        raise DamagedCheckpointError(f"{path} is a link or no file; a checkpoint holds plain files only.")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _compare(
    path: Path, found: Mapping[str, tuple[int, ...]], expected: Mapping[str, tuple[int, ...] | None], what: str
) -> None:
    missing, extra = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    if missing or extra:
        raise ValueError(
            f"{path} does not fit: {what}s missing in it: {_some(missing)}; left over in it: {_some(extra)}. "
            "Load it into what it was saved from: the same network, environment and sizes."
        )
    for name, shape in expected.items():
        if shape is not None and found[name] != shape:
            raise ValueError(f"The {what} {name!r} has shape {found[name]} in {path}; expected {shape}.")


def _some(names: list[str], most: int = 8) -> str:
    if not names:
        return "none"
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _storable(name: str, array: np.ndarray) -> np.ndarray:
    array = np.asarray(array)
    dtype = array.dtype.newbyteorder("=")
    if dtype.name not in _STORED:
        if dtype.kind in "OUSMm" or not np.can_cast(dtype, np.float32):
            raise TypeError(f"{name!r} of type {dtype} can't be stored: expected numbers or truth values.")
        dtype = np.dtype(np.float32)
    # Not ascontiguousarray, which turns a number into a list of one.
    return np.asarray(array.astype(dtype, copy=False), order="C")
