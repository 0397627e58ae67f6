"""Neutral classes as ``flax.nnx.Module``s."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from multippo.backends.naming import KeyedChildren, check_attribute, check_class, track, track_late
from multippo.networks.binding import StatefulMeta
from multippo.networks.variables import Param, Variable

__all__ = ["JaxMeta", "JaxModule", "ModuleDict", "StatisticVariable", "bound_class", "make_variable"]


class StatisticVariable(nnx.Variable[Any]):
    """A tracked array that is not trained."""


Param.register(nnx.Param)
Variable.register(StatisticVariable)


_TRACKED = (nnx.Module, nnx.Variable)


class JaxMeta(StatefulMeta, type(nnx.Module)):
    """NNX keeps its books in its metaclass; the neutral one decides on the binding first."""

    def _pytree_meta_construct(cls, self: Any, *args: Any, **kwargs: Any) -> None:
        super()._pytree_meta_construct(self, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        track_late(self, _TRACKED, lambda name: name.startswith("_pytree__"))


class ModuleDict(KeyedChildren, nnx.Dict[Any]):
    """``nnx.Dict`` for any key."""


class JaxModule(nnx.Module, metaclass=JaxMeta):
    """Base of every bound class: tracks lists and dicts of children by itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do; lets a neutral class call ``super().__init__()``."""

    def __setattr__(self, name: str, value: Any) -> None:
        value = track(value, _TRACKED, nnx.List, ModuleDict)
        check_attribute(self, name, nnx.Module, isinstance(value, _TRACKED))
        super().__setattr__(name, value)


def bound_class(neutral: type, attributes: dict[str, Any]) -> type:
    """Derives the class from (neutral, JaxModule)."""
    check_class(neutral, nnx.Module)
    return JaxMeta(neutral.__name__, (neutral, JaxModule), attributes)


def make_variable(kind: str, value: Any) -> Any:
    """A native variable that holds a copy of ``value``."""
    array = jnp.array(value)
    return nnx.Param(array) if kind == "Param" else StatisticVariable(array)
