"""Neutral classes as ``flax.nnx.Module``s."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import nnx

from multippo.backends.naming import contains_tracked, escape, unescape
from multippo.networks.binding import StatefulMeta
from multippo.networks.variables import Param, Variable

__all__ = ["JaxMeta", "JaxModule", "ModuleDict", "StatisticVariable", "make_variable"]


class StatisticVariable(nnx.Variable[Any]):
    """A tracked array that is not trained."""


Param.register(nnx.Param)
Variable.register(StatisticVariable)


class JaxMeta(StatefulMeta, type(nnx.Module)):
    """NNX keeps its books in its metaclass; the neutral one decides on the binding first."""


class ModuleDict(nnx.Dict[Any]):
    """``nnx.Dict`` for any key: attributes carry escaped names, so that a child called ``keys`` hides no method."""

    def __init__(self, items: dict[Any, Any]) -> None:
        for key, value in items.items():
            setattr(self, escape(key), value)

    def __getitem__(self, key: Any) -> Any:
        try:
            return getattr(self, escape(key))
        except AttributeError as error:
            raise KeyError(key) from error

    def __setitem__(self, key: Any, value: Any) -> None:
        setattr(self, escape(key), value)

    def __delitem__(self, key: Any) -> None:
        delattr(self, escape(key))

    def __iter__(self) -> Any:
        return (unescape(name) for name in vars(self) if not name.startswith("_pytree__"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


class JaxModule(nnx.Module, metaclass=JaxMeta):
    """Base of every bound class: tracks lists and dicts of children by itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do; lets a neutral class call ``super().__init__()``."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _tracked(value))


def _tracked(value: Any) -> Any:
    if not isinstance(value, dict | list | tuple) or not contains_tracked(value, (nnx.Module, nnx.Variable)):
        return value
    if isinstance(value, dict):
        return ModuleDict({key: _tracked(item) for key, item in value.items()})
    return nnx.List([_tracked(item) for item in value])


def make_variable(kind: str, value: Any) -> Any:
    """A native variable that holds a copy of ``value``."""
    array = jnp.array(value)
    return nnx.Param(array) if kind == "Param" else StatisticVariable(array)
