"""Writing and reading of files, and of JSON.

Files and directories appear whole or not at all, whenever the process or the machine stops. Only regular files are
opened, up to a size, and links in their place are not followed, since a run's directory may come from anywhere. Links
in the path to a directory are followed.

JSON is read strictly, with limits, and checked against types: ``dict[str, float | None]``, or ``Annotated[int,
Limit(...)]`` for a narrower one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import math
import os
import secrets
import shutil
import stat
import types
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, BinaryIO, NamedTuple, Union, get_args, get_origin

from multippo.errors import UnexpectedFileError

LIMIT = 2**24
"""Largest size in bytes of a file of settings, a description and the like."""

_SUFFIX = ".tmp"
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2  # linux/fcntl.h, linux/fs.h
# The flags keep links closed, and keep the opening of a pipe from waiting for the process at its other end. Windows
# has neither flag, nor pipes among its files.
_NO_FOLLOW, _NO_WAIT = getattr(os, "O_NOFOLLOW", 0), getattr(os, "O_NONBLOCK", 0)
_DEEPEST = 100
_INTEGERS = range(-(2**63), 2**64)
_MOST_SHOWN = 200
_NAMES = {int: "an integer", float: "a number", str: "a string", bool: "true or false", type(None): "null"}


def read_bytes(path: Path, *, limit: int = LIMIT, follow: bool = False) -> bytes:
    """The content of a regular file.

    Args:
        path: Path of the file.
        limit: Largest size in bytes.
        follow: True if ``path`` may be a link: for a file that a user names, not for one in a run's directory.

    Raises:
        UnexpectedFileError: If there is something else than a regular file, or a larger one.
        OSError: If the file is missing or can't be read.
    """
    with open_to_read(path, follow=follow) as file:
        content = file.read(limit + 1)
    if len(content) > limit:
        raise UnexpectedFileError(f"{path} is too large: at most {limit:,} bytes are read.")
    return content


def read_text(path: Path, *, limit: int = LIMIT, follow: bool = False, errors: str = "strict") -> str:
    """The content of a regular file of UTF-8; see ``read_bytes``, and ``bytes.decode`` for ``errors``.

    Raises:
        UnexpectedFileError: If the file is not UTF-8, or as in ``read_bytes``.
        OSError: If the file is missing or can't be read.
    """
    try:
        return read_bytes(path, limit=limit, follow=follow).decode("utf-8", errors)
    except UnicodeDecodeError as error:
        raise UnexpectedFileError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start}).") from error


def open_to_read(path: Path, *, follow: bool = False) -> BinaryIO:
    """A regular file, open for reading; see ``read_bytes``."""
    return os.fdopen(_open(path, os.O_RDONLY | (0 if follow else _NO_FOLLOW)), "rb")


def open_to_append(path: Path) -> BinaryIO:
    """A regular file, made if it is missing, open for reading and for writing at its end."""
    return os.fdopen(_open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | _NO_FOLLOW), "a+b")


def create(path: Path) -> BinaryIO:
    """A new file, open for writing.

    Raises:
        FileExistsError: If anything is at the path, a link included.
    """
    return os.fdopen(_open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_FOLLOW), "wb")


def write_bytes(path: Path, content: bytes) -> None:
    """Writes a file, of which readers see the old content or the new one. A link in its place is replaced."""
    new = _temporary(path)
    try:
        with create(new) as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)
        _sync(path.parent)
    finally:
        new.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Writes text in UTF-8 as ``write_bytes`` does."""
    write_bytes(path, text.encode())


@contextlib.contextmanager
def replace_directory(path: Path) -> Generator[Path]:
    """A new directory beside ``path`` to fill, which replaces ``path`` once it is complete and on the disk.

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


def remove_directory(path: Path) -> None:
    """Removes a directory, of which others see all or nothing, whenever the process is killed."""
    old = _temporary(path)
    path.rename(old)
    _sync(path.parent)
    shutil.rmtree(old, ignore_errors=True)


def is_leftover(path: Path) -> bool:
    """True for a name that only unfinished files and directories have."""
    return path.name.startswith(".") and path.name.endswith(_SUFFIX)


def remove_leftovers(directory: Path) -> None:
    """Removes files that a killed process has not finished. No other process may be writing in the directory."""
    for entry in filter(is_leftover, directory.iterdir() if directory.is_dir() else ()):
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _open(path: Path, flags: int) -> int:
    try:
        descriptor = os.open(path, flags | _NO_WAIT, 0o666)
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise UnexpectedFileError(
            f"{path} is a link, and none is followed there: put the file itself in its place."
        ) from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UnexpectedFileError(f"{path} is a directory, a pipe or a device; expected a plain file there.")
    return descriptor


def _make(directory: Path) -> None:
    """Makes a directory, and those above, so that they outlast a power failure."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync(path.parent)


def _temporary(path: Path) -> Path:
    """A random unused name beside ``path``."""
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
    """Puts ``new`` where ``old`` is, and leaves the old directory under the new one's name or removes it."""
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None) if os.name == "posix" else None
    if rename is not None:
        failed = rename(_AT_FDCWD, os.fsencode(new), _AT_FDCWD, os.fsencode(old), _RENAME_EXCHANGE)
        if not failed:
            return
    aside = _temporary(old)
    old.rename(aside)
    new.rename(old)
    shutil.rmtree(aside, ignore_errors=True)


class Limit(NamedTuple):
    """A narrowing of a type, in ``Annotated[TYPE, Limit(...)]``.

    Attributes:
        holds: Function that is true of a value within the limit.
        words: Type in words, for errors.
    """

    holds: Callable[[Any], Any]
    words: str


FormatVersion = Annotated[int, Limit(lambda version: version >= 1, "an integer of at least 1")]


def read_json(path: Path, *, follow: bool = False) -> Any:
    """The value in a file of JSON.

    Args:
        path: Path of the file.
        follow: True if ``path`` may be a link; see ``read_bytes``.

    Raises:
        ValueError: If the content is not JSON as ``parse_json`` takes it, or the file not a regular one, or too large.
        OSError: If the file is missing or can't be read.
    """
    content = read_bytes(path, follow=follow)
    try:
        return parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}.") from error


def parse_json(text: str | bytes) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: If the text is not JSON, names a key twice in an object, is nested more than 100 deep, or has a
            number that is not finite or beyond 64 bits.

    >>> parse_json('{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: it names 'a' twice
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except RecursionError:
        raise ValueError(f"it is nested more than {_DEEPEST} deep") from None
    level: Iterable[Any] = [value]
    for _ in range(_DEEPEST):
        level = [item for node in level for item in _held(node)]
        if not level:
            return value
    raise ValueError(f"it is nested more than {_DEEPEST} deep")


def checked(value: Any, hint: Any, name: str) -> Any:
    """Returns a value of JSON after a check of its type.

    Args:
        value: Value from ``parse_json``.
        hint: Type of JSON (``int``, ``float``, which has the integers, ``str``, ``bool``, ``None``, ``list[X]``,
            ``dict[str, X]``), ``Any``, a union, or one with a ``Limit``. A truth value is not a number.
        name: Name of the value in errors.

    Raises:
        ValueError: If ``value`` is not of the type.

    >>> checked({"a": 1, "b": None}, dict[str, float | None], "line")
    {'a': 1, 'b': None}
    >>> checked(True, int, "step")
    Traceback (most recent call last):
    ValueError: step is True; expected an integer
    """
    if not _is(value, hint):
        raise ValueError(f"{name} is {short(value)}; expected {_words(hint)}")
    return value


def short(value: Any) -> str:
    """The ``repr`` of a value, cut off where it is longer than an error should be."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _unique(pairs: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = set[str]()
        twice = next(name for name, _ in pairs if name in names or names.add(name))
        raise ValueError(f"it names {short(twice)} twice")
    return found


def _held(node: Any) -> Iterable[Any]:
    """Entries of a node of a JSON tree; raises a ValueError for a number beyond 64 bits or not finite."""
    if isinstance(node, dict | list):
        return node.values() if isinstance(node, dict) else node
    if isinstance(node, float) and not math.isfinite(node):
        raise ValueError(f"{node} is not a number that JSON has")
    if isinstance(node, int) and node not in _INTEGERS:
        raise ValueError(f"{short(node)} does not fit in 64 bits")
    return ()


def _is(value: Any, hint: Any) -> bool:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _is(value, args[0]) and all(limit.holds(value) for limit in args[1:])
    if origin in (Union, types.UnionType):
        return any(_is(value, option) for option in args)
    if origin is dict:
        return isinstance(value, dict) and all(_is(item, args[1]) for item in value.values())
    if origin is list:
        return isinstance(value, list) and all(_is(item, args[0]) for item in value)
    return hint is Any or type(value) in ((int, float) if hint is float else (hint,))


def _words(hint: Any) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return args[1].words
    if origin in (Union, types.UnionType):
        return " or ".join(map(_words, args))
    if origin in (dict, list):
        every = "" if args[-1] is Any else f" in which everything is {_words(args[-1])}"
        return ("an object" if origin is dict else "a list") + every
    return _NAMES[hint]
