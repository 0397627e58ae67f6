"""Binding of neutral classes to an engine: at instantiation, through the metaclass.

Calling a neutral class looks up the active engine, asks it for a cached class derived from (the neutral class, the
engine's native module), and instantiates that. The engine is then a class attribute of the instance for good: nothing
is looked up by array type, environment variable or global while a network runs.

The binding sits in ``__call__`` of a metaclass because flax's NNX keeps its own books in its metaclass's ``__call__``;
returning a bound instance from ``__new__`` would skip them.
"""

from __future__ import annotations

import abc
from typing import Any

_TAKEN = ("self", "cls")


class StatefulMeta(abc.ABCMeta):
    """Metaclass of ``StatefulModule``. Each engine derives the metaclass of its bound classes from this and its own."""

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        """Instantiates the class on the active engine, or directly where it is bound already.

        Raises:
            TypeError: If it is abstract, or an argument has a name that the frameworks' own constructors take.
        """
        for name in _TAKEN:
            if name in kwargs:
                raise TypeError(
                    f"{cls.__name__}({name}=...) is not possible: an argument can't be called {name}, by which "
                    f"Python's constructors call their own. Rename it, or where names are yours give one dict: "
                    f"{cls.__name__}({{{name!r}: ...}})."
                )
        if getattr(cls, "engine", None) is not None:
            return super().__call__(*args, **kwargs)
        if cls.__abstractmethods__:
            missing = ", ".join(sorted(cls.__abstractmethods__))
            raise TypeError(f"{cls.__qualname__} is abstract: it must define {missing} before it can be instantiated.")
        from multippo.backends.registry import active_engine

        return active_engine().bind(cls)(*args, **kwargs)
