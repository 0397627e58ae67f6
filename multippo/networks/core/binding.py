"""Binding of neutral classes to an engine, through metaclasses: of modules, and of ``Param`` and ``Variable``.

Calling a neutral class of a module asks the active engine for a cached class derived from (the neutral class, the
engine's native module), and instantiates that. The engine is then a class attribute of the instance for good: nothing
is looked up by array type, environment variable or global while a network runs.

The binding sits in ``__call__`` of a metaclass because flax's NNX keeps its own books in its metaclass's ``__call__``;
returning a bound instance from ``__new__`` would skip them.
"""

from __future__ import annotations

import abc
import inspect
from typing import TYPE_CHECKING, Any

import numpy as np


class StatefulMeta(abc.ABCMeta):
    """Metaclass of ``StatefulModule``, from which each engine derives the metaclass of its bound classes."""

    def __call__(cls, /, *args: Any, **kwargs: Any) -> Any:
        """Instantiates the class on the active engine, or directly where it is bound already.

        Raises:
            TypeError: If the class is abstract.
        """
        if getattr(cls, "engine", None) is not None:
            return super().__call__(*args, **kwargs)
        if cls.__abstractmethods__:
            missing = ", ".join(sorted(cls.__abstractmethods__))
            raise TypeError(f"{cls.__qualname__} is abstract: it must define {missing} before it can be instantiated.")
        from multippo.backends.registry import active_engine

        if "rng" in kwargs and "rng" not in (known := inspect.signature(cls.__init__).parameters) and "rngs" in known:
            kwargs["rngs"] = kwargs.pop("rng")  # nnx-ppo's name
        return active_engine().bind(cls)(*args, **kwargs)


class VariableMeta(abc.ABCMeta):
    """Metaclass of ``Param`` and ``Variable``: a call makes the active engine's native variable."""

    def __call__(cls, value: Any) -> Any:
        """Makes a variable of the kind the class names.

        Raises:
            TypeError: If the value is not an array of numbers, or for a ``Param`` one of complex numbers.
        """
        from multippo.backends.registry import active_engine

        _check_value(cls.__name__, value)
        return active_engine().make_variable(cls.__name__, value)


class _Array(metaclass=VariableMeta):
    if TYPE_CHECKING:

        def __init__(self, value: Any) -> None: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...


class Param(_Array):
    """A trained array: ``Param(value)``, read as ``p[...]``, written as ``p[...] = new``.

    Integers become numbers of the engine's floating-point type, since nothing else can be trained.

    A call returns the active engine's native object (``flax.nnx.Param``, or a ``torch.nn.Module`` that holds one
    ``torch.nn.Parameter``), for which ``isinstance(p, Param)`` holds. A value read is not changed by a later write.

    Raises:
        TypeError: If the value is not an array of real numbers.
    """


class Variable(_Array):
    """A tracked array that is not trained, such as a running mean, read and written like ``Param``.

    Raises:
        TypeError: If the value is not an array of numbers.
    """


def _check_value(kind: str, value: Any) -> None:
    if isinstance(value, Param | Variable):
        held = "Param" if isinstance(value, Param) else "Variable"
        raise TypeError(f"{kind} got a {held} itself; read its value first: {kind}(other[...]).")
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "shape"):
        try:
            dtype = np.asarray(value).dtype
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(f"{kind} got a {type(value).__name__}, not an array of numbers: {error}.") from error
    if getattr(dtype, "kind", "") in ("O", "U", "S", "M", "m"):
        raise TypeError(
            f"{kind} got a {type(value).__name__} of {dtype}; expected an array of numbers, such as np.zeros(3)."
        )
    if kind == "Param" and "complex" in str(dtype):
        raise TypeError(
            f"Param got numbers of type {str(dtype).removeprefix('torch.')}; expected real ones, since no other are "
            "trained. Keep real and imaginary parts in two Params."
        )
