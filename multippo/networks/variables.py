"""Persistent state: ``Param`` (trained) and ``Variable`` (tracked, not trained)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from multippo.networks.binding import VariableMeta

__all__ = ["Param", "Variable"]


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
