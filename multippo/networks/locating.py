"""Where in a network something is, or went wrong: a module's path, and an error's message that begins with it."""

from __future__ import annotations

import dis
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from multippo.networks.types import StatefulModule

__all__ = [
    "all_modules",
    "is_the_librarys",
    "locate",
    "located_call",
    "message_of",
    "path_of",
    "thrower",
    "where_it_failed",
]

_MARK = "_multippo_path"
"""Attribute of an exception: the path that its message begins with."""


def all_modules(module: Any) -> Iterator[Any]:
    """A bound module and everything below it, native modules included."""
    engine = module.engine

    def walk(node: Any) -> Iterator[Any]:
        yield node
        for _, child in engine.children(node):
            yield from walk(child)

    return walk(module)


def path_of(network: Any, module: Any) -> str | None:
    """Where ``module`` is in ``network``, such as ``Sequential.layers[1].action``; None if it is not."""
    if network is module:
        return type(network).__name__
    for name, child in network.engine.children(network):
        if not isinstance(child, StatefulModule):
            continue
        inner = path_of(child, module)
        if inner is not None:
            return type(network).__name__ + _step(name) + inner[len(type(child).__name__) :]
    return None


def where_it_failed(network: Any, error: BaseException) -> str:
    """The path in the network of the innermost module in an error's traceback.

    Of a module in several places it is that from which it was called, where a container called it; of one in several
    places of one list or dict of a user's own module, all of these.
    """
    paths, innermost, key = [type(network).__name__], network, None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        candidate = frame.f_locals.get("self")
        if not isinstance(candidate, StatefulModule):
            continue
        if candidate is not innermost:
            steps = _steps(innermost, candidate, key)
            innermost = candidate
            # What is held by no attribute has no path; the last one that has is the place then.
            elsewhere = path_of(network, candidate) if not steps else None
            paths = [elsewhere] if elsewhere else [path + step for path in paths for step in steps or ("",)]
        # Parent's function that runs one child, from where its own frame has that child's key.
        key = frame.f_locals.get("key") if "child_input" in frame.f_locals else None
    return " and ".join(paths)


def _steps(parent: Any, child: Any, key: Any) -> list[str]:
    """How to go from a module to one that it holds itself: to the place of a key, or to all places in one attribute."""
    names = [name for name, held in parent.engine.children(parent) if held is child]
    of_key = [name for name in names if key is not None and str(key) in (name, name.partition(".")[2])]
    if of_key:
        return [_step(of_key[0])]
    attributes = [name.partition(".")[0] for name in names]
    return [_step(name) for name, attribute in zip(names, attributes, strict=True) if attribute == attributes[0]]


def _step(name: str) -> str:
    """A child's name as Python writes it: ``.layers[0]``, ``.components['left arm']``, ``.body``."""
    attribute, _, index = name.partition(".")
    return f".{attribute}[{index if index.isdigit() else repr(index)}]" if index else f".{attribute}"


def is_the_librarys(kind: type) -> bool:
    """Whether it is a class of this library, bound or not, and none of a user's, though it may be derived from one."""
    return kind.__module__.partition(".")[0] == "multippo"


def thrower(error: BaseException) -> str | None:
    """The module whose ``raise`` statement threw an error; None where none did, as in what is compiled."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        return None
    return str(innermost.tb_frame.f_globals.get("__name__"))


def locate(network: Any, error: Exception) -> None:
    """Puts the path of the module that failed in front of an error's message.

    Called by every module that runs others, from the inside out; each puts the path from itself in the place of the
    one that was there. Of an error whose message is no plain text it becomes a note.

    Args:
        network: A bound module on the way of the error.
        error: What has been raised below it.
    """
    path, before = where_it_failed(network, error), vars(error).get(_MARK)
    if before is None and path == type(network).__name__:
        return  # its own message says who it is
    vars(error)[_MARK] = path
    if type(error).__str__ is BaseException.__str__ and len(error.args) == 1 and isinstance(error.args[0], str):
        error.args = (f"{path}: {_without(before, error.args[0])}",)
        return
    notes: list[str] = vars(error).setdefault("__notes__", [])
    notes[:] = [*(note for note in notes if note != f"In {before}."), f"In {path}."]


def message_of(error: BaseException) -> str:
    """What an error says, without the path in front, on one line."""
    return " ".join(_without(vars(error).get(_MARK), str(error)).split())


def _without(path: str | None, message: str) -> str:
    return message if path is None else message.removeprefix(f"{path}: ")


def located_call(neutral: Any) -> Callable[..., Any]:
    """The ``__call__`` that a class of the user's is bound with: errors from below it say where they arose.

    The library's own classes need none: those that run others locate errors where they do.
    """
    call = neutral.__call__
    if is_the_librarys(neutral):
        return call

    @functools.wraps(call)
    def located(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except Exception as error:
            locate(self, error)
            raise

    return located
