"""Modules and variables, which NumPy lacks and other engines take from their frameworks.

A ``Module`` is an object whose attributes are its children and variables. Native layers derive from ``Module``, bound
classes from ``NumpyModule``.
"""

from __future__ import annotations

from collections.abc import Iterable, MutableSequence
from typing import Any

import numpy as np

from multippo.backends.attributes import (
    NATIVE_CORE,
    KeyedChildren,
    Named,
    ReadFirst,
    check_attribute,
    check_class,
    check_held,
    in_order,
    track,
    track_below,
    track_late,
    unescape,
)
from multippo.networks.core.binding import Param, StatefulMeta, Variable


class Held(ReadFirst):
    """Array under one address for good: writes fill the array, reads copy it."""

    def __init__(self, value: np.ndarray) -> None:
        self.value = value

    def __getitem__(self, index: Any) -> np.ndarray:
        return np.array(self.value[index])

    def __setitem__(self, index: Any, value: Any) -> None:
        self.value[index] = value


class NumpyParam(Held):
    """An array that would be trained."""


class NumpyVariable(Held):
    """A tracked array that is not trained."""


Param.register(NumpyParam)
Variable.register(NumpyVariable)


class Module:
    """Native module, which finds children and variables among its attributes, in lists and dicts too."""

    def __setattr__(self, name: str, value: Any) -> None:
        check_held(self, name, value, _TRACKED)
        value = track(value, _TRACKED, ModuleList, ModuleDict)
        check_attribute(self, name, Module, isinstance(value, _TRACKED))
        super().__setattr__(name, value)

    def train(self, mode: bool = True) -> Module:
        """Sets sampling, or with ``mode`` False the mode of the distribution, here and in every module below."""
        for value in vars(self).values():
            if isinstance(value, Module):
                value.train(mode)
        if "deterministic" in vars(self):
            self.deterministic = not mode
        return self

    def eval(self) -> Module:
        """Sets the mode of the distribution in every sampler."""
        return self.train(False)


_TRACKED = (Module, Held)


class ModuleList(MutableSequence[Any], Module):
    """List of children, each an attribute named by its position."""

    def __init__(self, items: Iterable[Any]) -> None:
        self._put(items)

    def _put(self, items: Iterable[Any]) -> None:
        vars(self).clear()
        for position, item in enumerate(items):
            setattr(self, str(position), item)

    def __getitem__(self, index: Any) -> Any:
        return list(vars(self).values())[index]

    def __setitem__(self, index: Any, value: Any) -> None:
        items = list(self)
        items[index] = value
        self._put(items)

    def __delitem__(self, index: Any) -> None:
        items = list(self)
        del items[index]
        self._put(items)

    def __len__(self) -> int:
        return len(vars(self))

    def insert(self, index: int, value: Any) -> None:
        """``list.insert``."""
        items = list(self)
        items.insert(index, value)
        self._put(items)


class ModuleDict(KeyedChildren, Module):
    """A dict of children, for any key."""


def _is_none(name: str) -> bool:
    """False for every name, since no attribute is a framework's."""
    del name
    return False


class NumpyMeta(StatefulMeta):
    """Looks once more after ``__init__`` for modules that would go untracked."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - a metaclass
        """Instantiates a bound class."""
        module = super().__call__(*args, **kwargs)
        track_late(module, _TRACKED, _is_none)
        return module


class NumpyModule(Module, metaclass=NumpyMeta):
    """Base of every bound class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Nothing to do; lets a neutral class call ``super().__init__()``."""


def track_all(module: Any) -> None:
    """Tracks what a module, and those below it, were given after they were made."""
    track_below(module, NumpyModule, _TRACKED, _is_none)


def bound_class(neutral: type, attributes: dict[str, Any]) -> type:
    """Derives the class from (neutral, NumpyModule)."""
    check_class(neutral, Module)
    return NumpyMeta(neutral.__name__, (neutral, NumpyModule), attributes)


def named_variables(module: Any) -> dict[str, Held]:
    """Every variable by its portable name, each once, under the first of its names; sorted."""
    if isinstance(module, NumpyModule):
        track_all(module)
    found = Named()
    seen: set[int] = set()

    def walk(node: Any, path: tuple[str, ...]) -> None:
        for attribute, value in in_order(vars(node).items()):
            if not isinstance(value, _TRACKED) or id(value) in seen:
                continue
            seen.add(id(value))
            here = path if attribute == NATIVE_CORE else (*path, unescape(attribute))
            if isinstance(value, Held):
                found.add(here, value)
            else:
                walk(value, here)

    walk(module, ())
    return dict(sorted(found.items()))
