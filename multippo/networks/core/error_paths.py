"""Places in a network: paths of modules, and errors with a note of the module in which they arose."""

from __future__ import annotations

import dis
import functools
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multippo.arguments import describe, is_the_librarys, unwrapped
from multippo.errors import PLACE, place_of
from multippo.networks.types import StatefulModule
from multippo.trees import named_leaves


def all_modules(module: Any) -> Iterator[Any]:
    """A bound module and all modules below, native ones included."""
    return (held for _, held in paths_of(module))


def refuse_other_module(taker: str, module: Any, role: str = "", hint: str = "") -> None:
    """Raises a TypeError unless a module is a StatefulModule.

    Args:
        taker: Name of the function that got the module.
        module: Argument of the function.
        role: Name of the argument, if the function has several.
        hint: Sentence for the end of the error, after a space.
    """
    if not isinstance(module, StatefulModule):
        argument = role and f" as its {role}"
        raise TypeError(f"{taker} got a {type(module).__name__}{argument}; expected a StatefulModule.{hint}")


def paths_of(network: Any) -> Iterator[tuple[str, Any]]:
    """Every module of a network once, native ones included, with its path, such as ``Sequential.layers[1].action``."""
    engine, seen, ahead = network.engine, set[int](), [(type(network).__name__, network)]
    while ahead:
        path, module = ahead.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield path, module
            ahead += reversed([(path + step_to(name), child) for name, child in engine.children(module)])


def path_of(network: Any, module: Any) -> str | None:
    """The path of a module in a network, or None if the network does not hold the module."""
    return next((path for path, held in paths_of(network) if held is module), None)


def step_to(name: str) -> str:
    """A child's name as Python writes it: ``.layers[0]``, ``.components['left arm']``, ``.body``."""
    attribute, _, index = name.partition(".")
    return f".{attribute}[{index if index.isdigit() else repr(index)}]" if index else f".{attribute}"


def where_it_failed(network: Any, error: BaseException) -> str:
    """The path in the network of the innermost module in an error's traceback.

    A module in several places gets the path by which a container called it; a module in several places of one list or
    dict of a user's own module gets all of these paths.
    """
    paths, innermost, key = [type(network).__name__], network, None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        held = frame.f_locals.get("self")
        if isinstance(held, StatefulModule) and held is not innermost:
            steps = _steps(innermost, held, key)
            innermost = held
            # A module that no attribute holds has no path; the place is then that of the last module that has one.
            elsewhere = path_of(network, held) if not steps else None
            paths = [elsewhere] if elsewhere else [path + step for path in paths for step in steps or ("",)]
            key = None
        # A container's ``Pass`` knows the key of the child that runs.
        key = frame.f_locals["key"] if "child_input" in frame.f_locals else key
    if key is not None:  # the container raised about a child's output
        container: Any = innermost
        paths = [path + _steps(container, container.children_by_key[key], key)[0] for path in paths]
    return " and ".join(paths)


def _steps(parent: Any, child: Any, key: Any) -> list[str]:
    """Ways from a module to a child: to the place of a key, or to all places in one attribute."""
    names = [name for name, held in parent.engine.children(parent) if held is child]
    of_key = [name for name in names if key is not None and str(key) in (name, name.partition(".")[2])]
    same = [name for name in names if name.partition(".")[0] == names[0].partition(".")[0]]
    return [step_to(name) for name in of_key[:1] or same]


def note_place(network: Any, error: Exception) -> None:
    """Adds a note of the place where an error arose, as a path from a module that ran others.

    Calls go from the inside out: each module's note takes the place of that from the module below.
    """
    place = where_it_failed(network, error)
    if place_of(error) or place != type(network).__name__:  # else the error's own message names the module
        error.__notes__ = [note for note in getattr(error, "__notes__", []) if not note.startswith(PLACE)]
        error.add_note(f"{PLACE}{place}.")


def message_of(error: BaseException) -> str:
    """An error's message on one line."""
    return " ".join(str(error).split())


def located_call(neutral: Any) -> Callable[..., Any]:
    """``__call__`` for the bound class of a user's class, which adds a note of the place to errors from below."""
    call = neutral.__call__
    if is_the_librarys(neutral):  # whose containers add notes themselves
        return call

    @functools.wraps(call)
    def located(self: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return call(self, *args, **kwargs)
        except Exception as error:
            note_place(self, error)
            raise

    return located


def thrower(error: BaseException) -> str | None:
    """Name of the module whose ``raise`` statement raised the error; None if compiled code did."""
    innermost = error.__traceback__
    while innermost is not None and innermost.tb_next is not None:
        innermost = innermost.tb_next
    if innermost is None or innermost.tb_frame.f_code.co_code[innermost.tb_lasti] != dis.opmap["RAISE_VARARGS"]:
        return None
    return str(innermost.tb_frame.f_globals.get("__name__"))


_OF_INPUTS = (
    AssertionError,
    AttributeError,
    IndexError,
    KeyError,
    RuntimeError,
    TypeError,
    ValueError,
    np.exceptions.AxisError,
)
"""Errors that frameworks raise for inputs that do not fit; derived classes have other causes."""

_FRAMEWORKS = ("torch", "jax", "jaxlib", "flax", "numpy", "array_api_compat", "array_api_extra")


def call_foreign(kind: str, function: Callable[[Any], Any], x: Any) -> Any:
    """Returns ``function(x)``; an error about the input names the layer and the input.

    Args:
        kind: Name of the calling layer, for the error.
        function: Native module, or a function.
        x: Tree of arrays.

    Raises:
        ValueError: In place of an error that a framework raises for an input that does not fit.
    """
    try:
        return function(x)
    except Exception as error:
        if type(error) not in _OF_INPUTS or (thrower(error) or "numpy").partition(".")[0] not in _FRAMEWORKS:
            raise
        inner, received = unwrapped(function), describe(x)
        if isinstance(x, dict | tuple | list):
            shapes = {name: tuple(getattr(leaf, "shape", ())) for name, leaf in named_leaves(x)}
            received = f"arrays of shapes {shapes}"
        said = f"no entry {error}" if isinstance(error, KeyError) else message_of(error).removesuffix(".")
        name = getattr(inner, "__name__", type(inner).__name__)
        raise ValueError(f"{kind}({name}) failed on {received}: {said or type(error).__name__}.") from error
