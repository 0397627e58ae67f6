"""Persistent state: ``Param`` (trained) and ``Variable`` (tracked, not trained)."""

from __future__ import annotations

import abc
from typing import TYPE_CHECKING, Any

import numpy as np


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


class Param(metaclass=VariableMeta):
    """A trained array: ``Param(value)``, read as ``p[...]``, written as ``p[...] = new``.

    Integers become numbers of the engine's floating-point type, since nothing else can be trained.

    Calling it returns the active engine's native object (``flax.nnx.Param``, or a ``torch.nn.Module`` that holds one
    ``torch.nn.Parameter``), for which ``isinstance(p, Param)`` holds. A value read is not changed by a later write.
    """

    if TYPE_CHECKING:

        def __init__(self, value: Any) -> None: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...


class Variable(metaclass=VariableMeta):
    """A tracked array that is not trained, such as a running mean. Read and written like ``Param``."""

    if TYPE_CHECKING:

        def __init__(self, value: Any) -> None: ...
        def __getitem__(self, index: Any) -> Any: ...
        def __setitem__(self, index: Any, value: Any) -> None: ...


def _check_value(kind: str, value: Any) -> None:
    if isinstance(value, Param | Variable):
        held = "Param" if isinstance(value, Param) else "Variable"
        raise TypeError(f"{kind} got a {held} itself; read its value first: {kind}(other[...]).")
    dtype = getattr(value, "dtype", None)
    if dtype is None or not hasattr(value, "shape"):
        try:
            dtype = np.asarray(value).dtype
        except (TypeError, ValueError, RuntimeError) as error:
            raise TypeError(
                f"{kind} got a {type(value).__name__} that can't be read as an array of numbers ({error}); expected "
                "one, such as np.zeros(3)."
            ) from error
    if getattr(dtype, "kind", "") in ("O", "U", "S", "M", "m"):
        of = f" of {dtype}" if isinstance(value, np.ndarray | list | tuple) else ""
        raise TypeError(f"{kind} got a {type(value).__name__}{of}; expected an array of numbers, such as np.zeros(3).")
    if kind == "Param" and "complex" in str(dtype):
        raise TypeError(
            f"Param got numbers of type {str(dtype).removeprefix('torch.')}; expected real ones, since no other are "
            "trained. Keep real and imaginary parts in two Params."
        )
