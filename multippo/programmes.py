"""Compiled functions, kept so that the second of two equal runs in one process compiles nothing.

A compiled method depends on its object: on a network's structure, on settings, on an environment. Objects that agree
in all of these share their programmes. An object is handed over in every call and looked up while a method of it is
compiled, so that the table keeps no environment, network or teacher alive.
"""

from __future__ import annotations

import collections
import functools
import threading
import weakref
from collections.abc import Callable, Hashable, Mapping, Set
from typing import Any

_MOST = 32
"""Number of entries kept; a run with evaluations in a functional environment has four."""

_kept: collections.OrderedDict[Hashable, Programmes] = collections.OrderedDict()
_lock = threading.Lock()


class Programmes:
    """Compiled methods of objects that are alike.

    Attributes:
        notes: Facts from the trace of one object, for the others.
    """

    def __init__(self) -> None:
        self.notes: dict[str, Any] = {}
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def compiled(
        self,
        owner: Any,
        method: Callable[..., Any],
        jit: Callable[..., Any] | None = None,
        kernel: Callable[..., Any] | None = None,
    ) -> Callable[..., Any]:
        """``method`` bound to ``owner``, and compiled at the first call for any object alike.

        Args:
            owner: First argument of ``method``.
            method: Function of the class.
            jit: Compiler of a function of arrays, such as ``Engine.jit``.
            kernel: Compiler of a function of an object and arrays, such as ``Engine.kernel``.

        Returns:
            A function of arrays. On JAX it takes ``lower=True``, too: it is then traced for arrays or their shapes, and
            returns what ``jax.jit``'s method of that name does.
        """
        if method not in self._compiled:
            function = method if kernel is None else kernel(method)
            self._compiled[method] = function if jit is None else _finding_its_owner(function, jit)
        return functools.partial(self._compiled[method], owner)


def _finding_its_owner(method: Callable[..., Any], jit: Callable[..., Any]) -> Callable[..., Any]:
    """A function of an owner and arrays, of which ``jit`` compiles a function of the arrays alone."""
    # Owners of the calls at work, in all threads; while a call is traced, any of them serves.
    owners: list[Any] = []

    def traced(*args: Any) -> Any:
        return method(owners[-1], *args)

    traced.__name__ = getattr(method, "__name__", traced.__name__)  # as profiles and compilers' logs show it
    run = jit(traced)
    if run is traced:  # as on an engine that compiles no whole functions
        return method

    def call(owner: Any, *args: Any, lower: bool = False) -> Any:
        owners.append(owner)
        try:
            return run.lower(*args) if lower else run(*args)  # type: ignore[attr-defined]
        finally:
            owners.pop()

    return call


def programmes_of(*key: Any) -> Programmes:
    """The programmes kept under a key, or new ones in place of those used longest ago."""
    with _lock:
        found = _kept.pop(key, None) or Programmes()
        _kept[key] = found
        if len(_kept) > _MOST:
            _kept.popitem(last=False)
    return found


def clear_programmes() -> None:
    """Forgets all programmes, as after a change of the code that they were compiled from."""
    with _lock:
        _kept.clear()


class _Identity(weakref.ref[Any]):
    """A weak reference that equals another one to the same object, while the object lives."""

    __slots__ = ("_hash",)

    def __new__(cls, value: Any) -> _Identity:
        made = super().__new__(cls, value)
        made._hash = id(value)
        return made

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, _Identity) and self() is not None and self() is other())


def identity(value: Any) -> Hashable:
    """A key that belongs to one object alone, and does not keep the object alive."""
    try:
        return _Identity(value)
    except TypeError:  # some classes have no weak references
        return type(value), id(value)


def frozen(value: Any, other: Callable[[Any], Hashable]) -> Hashable:
    """A key of a value's content.

    Args:
        value: Numbers, text, classes, containers of them, and other objects.
        other: Function that makes the key of any other object, such as an array.
    """
    if value is None or isinstance(value, bool | int | float | complex | str | bytes | type):
        return type(value), value
    if isinstance(value, Mapping):
        return type(value), tuple((k, frozen(v, other)) for k, v in value.items())
    if isinstance(value, Set):
        return type(value), frozenset(frozen(entry, other) for entry in value)
    if isinstance(value, list | tuple):
        return type(value), tuple(frozen(entry, other) for entry in value)
    return other(value)
