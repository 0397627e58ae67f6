"""Neutral classes as ``flax.nnx.Module``s."""

from __future__ import annotations

from typing import Any

from flax import nnx

from multippo.backends import attributes
from multippo.networks.core.binding import Param, StatefulMeta, Variable


class StatisticVariable(nnx.Variable[Any]):
    """A tracked array that is not trained."""


Param.register(nnx.Param)
Variable.register(StatisticVariable)


_TRACKED = (nnx.Module, nnx.Variable)


def _is_of_nnx(name: str) -> bool:
    return name.startswith("_pytree__")


class JaxMeta(StatefulMeta, type(nnx.Module)):
    """Metaclass that decides on the binding first, and then lets NNX keep its books."""

    def _pytree_meta_construct(cls, self: Any, *args: Any, **kwargs: Any) -> None:
        super()._pytree_meta_construct(self, *args, **kwargs)  # pyright: ignore[reportAttributeAccessIssue]
        attributes.track_late(self, _TRACKED, _is_of_nnx)


class ModuleDict(attributes.KeyedChildren, nnx.Dict[Any]):
    """``nnx.Dict`` for any key."""


class JaxModule(nnx.Module, metaclass=JaxMeta):
    """Base of every bound class: tracks lists and dicts of children by itself."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do; lets a neutral class call ``super().__init__()``."""

    def __setattr__(self, name: str, value: Any) -> None:
        attributes.check_held(self, name, value, _TRACKED)
        value = attributes.track(value, _TRACKED, nnx.List, ModuleDict)
        attributes.check_attribute(self, name, nnx.Module, isinstance(value, _TRACKED))
        # NNX lets no attribute turn from a plain one into one with arrays; created again, it is the kind it holds now.
        if name in vars(self) and nnx.is_data(vars(self)[name]) != nnx.is_data(value):
            delattr(self, name)
        super().__setattr__(name, value)


def track_all(module: Any) -> None:
    """Tracks what a module, and those below it, were given after they were made."""
    attributes.track_below(module, JaxModule, _TRACKED, _is_of_nnx)


def bound_class(neutral: type, members: dict[str, Any]) -> type:
    """Derives the class from (neutral, JaxModule)."""
    attributes.check_class(neutral, nnx.Module)
    return JaxMeta(neutral.__name__, (neutral, JaxModule), members)
