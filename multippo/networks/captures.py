"""What functions know beside their arguments: modules and variables in closures, defaults, globals and bound objects.

Frameworks look for weights among a module's attributes. A layer that only a function knows is in none of them.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from multippo.networks.types import StatefulModule
from multippo.networks.variables import Param, Variable

__all__ = ["captures_of", "is_tracked"]

_DEPTH, _MOST = 8, 100
"""How many functions, containers and objects inside one another are gone through, and how many entries of one."""

_LIBRARIES = ("multippo", "flax", "jax", "jaxlib", "torch", "numpy", "gymnasium", "optax", "builtins", "collections")
"""Whose objects are gone through only where a function knows them, or where they are called."""

_NATIVE = {
    "Module": ("torch", "flax.nnx", "multippo.backends"),
    "Parameter": ("torch",),
    "Variable": ("flax.nnx",),
}
"""Native classes that hold weights, with the packages that they are of."""


def is_tracked(item: Any) -> bool:
    """Whether it is a StatefulModule, a Param or Variable, or some framework's module or parameter."""
    if isinstance(item, type):
        return False
    if isinstance(item, StatefulModule | Param | Variable):
        return True
    return any(base.__module__.startswith(_NATIVE.get(base.__name__, ("\0",))) for base in type(item).__mro__)


def captures_of(value: Any, known_as: str = "") -> Iterator[tuple[str, Any]]:
    """The modules and variables that functions in an attribute know, used or not, each with the name it goes by there.

    Functions are those of Python, partial ones, bound methods, wrapped ones (``__wrapped__``) and objects of classes
    that are no modules, in lists, tuples and dicts too. A module in an attribute itself, or in a list in it, is none.
    """
    return _within(known_as, value, {}, 0)


def _within(known_as: str, value: Any, seen: dict[int, Any], depth: int) -> Iterator[tuple[str, Any]]:
    """``known_as`` is "" until a function has been entered."""
    if value is None or isinstance(value, int | float | str | bytes | type | ModuleType):
        return
    if is_tracked(value):
        if known_as:
            yield known_as, value
        return
    if id(value) in seen or depth > _DEPTH:
        return
    seen[id(value)] = value
    for name, below in _below(known_as, value):
        yield from _within(name, below, seen, depth + 1)


def _below(known_as: str, value: Any) -> Iterator[tuple[str, Any]]:
    """What can be reached from a value by one step, with its name there."""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        if len(value) <= _MOST:
            # No framework looks into sets.
            name = known_as or "an element" if isinstance(value, set | frozenset) else known_as
            yield from ((name, item) for item in (value.values() if isinstance(value, Mapping) else value))
    elif isinstance(value, functools.partial):
        names = value.func.__code__.co_varnames if isinstance(value.func, FunctionType) else ()
        yield known_as, value.func
        for position, item in enumerate(value.args):
            yield names[position] if position < len(names) else f"argument {position}", item
        yield from value.keywords.items()
    elif isinstance(value, MethodType):
        yield known_as, value.__func__
        yield "self", value.__self__
    elif isinstance(value, FunctionType):
        yield from _known_to(value)
    elif known_as or callable(value) or type(value).__module__.partition(".")[0] not in _LIBRARIES:
        held = getattr(value, "__dict__", None)
        if isinstance(held, dict) and len(held) <= _MOST:
            yield from ((f"{known_as}.{name}".lstrip("."), item) for name, item in held.items())


def _known_to(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function may know beside its arguments, by name."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    yield from ((name, item) for name, item in vars(function).items() if name == "__wrapped__")
    for name in _names_in(code):
        # Only what is tracked itself: other functions of the file are not this one's.
        if is_tracked(item := function.__globals__.get(name)) or isinstance(item, dict | list | tuple | set):
            yield name, item


def _names_in(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
