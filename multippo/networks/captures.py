"""What functions capture: the modules and variables in their closures, defaults, globals and bound objects.

Frameworks look for weights among a module's attributes. A layer that only a function knows is in none of them, so it is
looked for here, in the functions that a module holds.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any, NamedTuple

from multippo.networks.types import StatefulModule
from multippo.networks.variables import Param, Variable

__all__ = ["Capture", "captures_of", "is_tracked", "names_read"]

_DEPTH = 12
"""How many functions, containers and objects inside one another are looked through."""

_NATIVE = {
    "Module": ("torch", "flax.nnx", "multippo.backends"),
    "Parameter": ("torch",),
    "Variable": ("flax.nnx",),
}
"""Native classes that hold weights, with the packages that they are of."""


class Capture(NamedTuple):
    """A module or variable that a function captures.

    Attributes:
        variable: By which name, or as what, the function knows it.
        item: What it is.
        code: The code that reads it by this name; None where it is read in ways that can't be told.
    """

    variable: str
    item: Any
    code: CodeType | None


class _Reader(NamedTuple):
    """The code that knows something, and by which name of its own."""

    variable: str
    code: CodeType | None


_UNKNOWN = _Reader("", None)


def is_tracked(item: Any) -> bool:
    """Whether it is a StatefulModule, a Param or Variable, or some framework's module or parameter."""
    if isinstance(item, type):
        return False
    if isinstance(item, StatefulModule | Param | Variable):
        return True
    return any(base.__module__.startswith(_NATIVE.get(base.__name__, ("\0",))) for base in type(item).__mro__)


def captures_of(value: Any) -> Iterator[Capture]:
    """All that the functions in an attribute capture; nothing of an attribute that is or holds modules itself.

    Functions are those of Python, partial ones, bound methods, wrapped ones (``__wrapped__``) and callable objects, in
    lists, tuples and dicts too. Of an object they capture, the attributes that they read are looked at.

    Args:
        value: Of the attribute.
    """
    return _within("", value, _UNKNOWN, {}, 0)


def _within(known_as: str, value: Any, reader: _Reader, seen: dict[int, Any], depth: int) -> Iterator[Capture]:
    """Captures below a value; ``known_as`` is "" until a function has been entered."""
    if value is None or isinstance(value, int | float | str | bytes | type):
        return
    if is_tracked(value):
        if known_as:
            yield Capture(known_as, value, reader.code)
        return
    if id(value) in seen or depth > _DEPTH:
        return
    seen[id(value)] = value
    for name, below, its_reader in _below(known_as, value, reader):
        yield from _within(name, below, its_reader, seen, depth + 1)


def _below(known_as: str, value: Any, reader: _Reader) -> Iterator[tuple[str, Any, _Reader]]:
    """What can be reached from a value by one step, with the name and the code that it is known by there."""
    if isinstance(value, dict | list | tuple | set | frozenset):
        for item in [*value.values()] if isinstance(value, dict) else value:
            yield known_as, item, _UNKNOWN
    elif isinstance(value, functools.partial):
        yield known_as, value.func, _UNKNOWN
        names = value.func.__code__.co_varnames if isinstance(value.func, FunctionType) else ()
        for position, item in enumerate(value.args):
            name = names[position] if position < len(names) else f"argument {position}"
            yield name, item, _Reader(name, value.func.__code__) if name in names else _UNKNOWN
        for name, item in value.keywords.items():
            yield name, item, _Reader(name, value.func.__code__) if name in names else _UNKNOWN
    elif isinstance(value, MethodType):
        yield known_as, value.__func__, _UNKNOWN
        code = getattr(value.__func__, "__code__", None)
        own = _Reader(code.co_varnames[0], code) if code is not None and code.co_varnames else _UNKNOWN
        yield own.variable or "__self__", value.__self__, own
    elif isinstance(value, FunctionType):
        for name, item in _known_to(value):
            yield name, item, _Reader(name, value.__code__)
    else:
        yield from _of_object(known_as, value, reader)


def _known_to(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """What a function knows beside its arguments, by name."""
    code = function.__code__
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    defaults = function.__defaults__ or ()
    yield from zip(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount], defaults, strict=True)
    yield from (function.__kwdefaults__ or {}).items()
    for name in _globals_of(code):
        # Only what is tracked itself: other functions of the file are not this one's.
        if is_tracked(item := function.__globals__.get(name)):
            yield name, item


def _globals_of(code: CodeType) -> set[str]:
    names = {i.argval for i in dis.get_instructions(code) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME")}
    return names.union(*(_globals_of(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _of_object(known_as: str, value: Any, reader: _Reader) -> Iterator[tuple[str, Any, _Reader]]:
    """Those attributes of an object that its reader reads, and those by which it is called."""
    held = getattr(value, "__dict__", None)
    if not isinstance(held, dict):
        return
    # A compiled function is the one that it was made of.
    if "__wrapped__" in held:
        yield known_as, held["__wrapped__"], _UNKNOWN
    names: set[str] = set()
    if reader.code is not None:
        names.update(names_read(reader.code, reader.variable, type(value)))
    call = inspect.getattr_static(type(value), "__call__", None)
    if isinstance(call, FunctionType) and call.__code__.co_varnames:
        names.update(names_read(call.__code__, call.__code__.co_varnames[0], type(value)))
    for name in names & held.keys():
        yield f"{known_as}.{name}".lstrip("."), held[name], _UNKNOWN


def names_read(
    code: CodeType, variable: str, kind: type, seen: set[tuple[CodeType, str]] | None = None
) -> Iterator[str]:
    """Which attributes of a variable some code reads, by way of the variable's methods as well.

    Args:
        code: Of a function.
        variable: A name in it.
        kind: The class of what it is.
        seen: Where it has been looked already.

    Yields:
        Names of attributes; "" where the variable itself is called, or handed on.
    """
    seen = set() if seen is None else seen
    if (code, variable) in seen:
        return
    seen.add((code, variable))
    instructions = [i for i in dis.get_instructions(code) if i.opname not in ("EXTENDED_ARG", "CACHE")]
    for here, after in itertools.pairwise(instructions):
        loaded = _loaded(here, code)
        if variable not in loaded or after.opname == "STORE_ATTR":
            continue
        if loaded[-1] != variable or after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
            yield ""
            continue
        method = inspect.getattr_static(kind, after.argval, None)
        method = method.fget if isinstance(method, property) else method
        if isinstance(method, FunctionType) and method.__code__.co_varnames:
            yield from names_read(method.__code__, method.__code__.co_varnames[0], kind, seen)
        else:
            yield after.argval
    for inner in code.co_consts:
        if isinstance(inner, CodeType) and variable in inner.co_freevars:
            yield from names_read(inner, variable, kind, seen)


def _loaded(instruction: dis.Instruction, code: CodeType) -> tuple[str, ...]:
    """The variables that an instruction puts on the stack."""
    name, argument = instruction.opname, instruction.argval
    if name in ("LOAD_DEREF", "LOAD_GLOBAL", "LOAD_NAME"):
        return (argument,)
    if name.startswith("LOAD_FAST") and name != "LOAD_FAST_AND_CLEAR":
        found = argument if isinstance(argument, tuple) else (argument,)
        # Cells themselves, for the closure of an inner function, are loaded like this in some versions of Python.
        return tuple(one for one in found if one not in (*code.co_cellvars, *code.co_freevars))
    return ()
