"""Files and directories that appear whole or not at all, whenever the process or the machine stops."""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
from collections.abc import Generator
from pathlib import Path

__all__ = ["is_leftover", "remove_directory", "remove_leftovers", "replace_directory", "write_text"]

_SUFFIX = ".tmp"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h


@contextlib.contextmanager
def replace_directory(path: Path) -> Generator[Path]:
    """A new directory beside ``path`` to fill, which takes its place once it is complete and on the disk.

    On Linux an existing directory is exchanged with the new one in one step; elsewhere it is moved aside first.
    """
    path = Path(os.path.abspath(path))
    _make(path.parent)
    new = _temporary(path)
    new.mkdir()
    try:
        yield new
        for file in new.iterdir():
            _sync(file)
        _sync(new)
        if path.exists() and any(path.iterdir()):
            _exchange(new, path)
        else:
            new.rename(path)
        _sync(path.parent)
    finally:
        shutil.rmtree(new, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a file; whoever reads it sees the old text or the new one."""
    new = _temporary(path)
    try:
        new.write_text(text, "utf-8")
        _sync(new)
        new.replace(path)
        _sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def remove_directory(path: Path) -> None:
    """Removes a directory: whoever looks for it finds all of it or nothing, whenever the process is killed."""
    old = _temporary(path)
    path.rename(old)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """Whether something has a name that only what is not finished has."""
    return path.name.startswith(".") and path.name.endswith(_SUFFIX)


def remove_leftovers(directory: Path) -> None:
    """Removes what a killed process has not finished. Nothing else may be writing there."""
    for entry in filter(is_leftover, directory.iterdir() if directory.is_dir() else ()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _make(directory: Path) -> None:
    """Makes a directory, and those above it, that are still there after a power failure."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _temporary(path: Path) -> Path:
    return path.parent / f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}"


def _sync(path: Path) -> None:
    if os.name == "nt" and path.is_dir():  # Windows opens no directories
        return
    descriptor = os.open(path, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _exchange(new: Path, old: Path) -> None:
    """Puts ``new`` where ``old`` is, and leaves the old one under the new one's name or removes it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is not None:
        failed = rename(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
        if not failed:
            return
    aside = _temporary(old)
    old.rename(aside)
    new.rename(old)
    shutil.rmtree(aside, ignore_errors=True)
