"""Neutral classes as ``torch.nn.Module``s."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from multippo.backends.naming import contains_tracked, escape, unescape
from multippo.networks.binding import StatefulMeta
from multippo.networks.variables import Param, Variable

__all__ = ["ModuleDict", "TorchModule", "TorchParam", "TorchVariable"]


class TorchParam(nn.Module):
    """A trained array. Reading copies, so that neither a write nor the optimiser changes what was read."""

    value: nn.Parameter

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.value[index].clone()

    def __setitem__(self, index: Any, value: Any) -> None:
        with torch.no_grad():
            self.value[index] = value


class TorchVariable(nn.Module):
    """A tracked array that is not trained: a buffer, written in place, so that its address stays."""

    value: torch.Tensor

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.value[index].clone()

    def __setitem__(self, index: Any, value: Any) -> None:
        with torch.no_grad():
            self.value[index] = value


Param.register(TorchParam)
Variable.register(TorchVariable)


class ModuleDict(nn.Module):
    """``nn.ModuleDict`` for any key: ``keys`` and ``a.b`` too, which torch's own refuses."""

    def __init__(self, items: dict[Any, nn.Module]) -> None:
        super().__init__()
        for key, value in items.items():
            self.add_module(escape(key), value)

    def __getitem__(self, key: Any) -> Any:
        return self._modules[escape(key)]

    def __setitem__(self, key: Any, value: nn.Module) -> None:
        self.add_module(escape(key), value)

    def __delitem__(self, key: Any) -> None:
        del self._modules[escape(key)]

    def __iter__(self) -> Iterator[str]:
        return iter([unescape(name) for name in self._modules])

    def __len__(self) -> int:
        return len(self._modules)

    def __contains__(self, key: Any) -> bool:
        return escape(key) in self._modules

    def keys(self) -> list[str]:
        """The keys, in the order they were added."""
        return list(self)

    def values(self) -> list[Any]:
        """The modules, in the order of the keys."""
        return [self[key] for key in self]

    def items(self) -> list[tuple[str, Any]]:
        """Pairs of key and module."""
        return [(key, self[key]) for key in self]


class TorchModule(nn.Module):
    """Base of every bound class.

    ``nn.Module`` is initialised in ``__new__``, so a neutral class needs no ``super().__init__()``; the neutral
    ``__call__`` becomes ``forward``, so that hooks and ``.compile()`` work.
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> TorchModule:
        module = super().__new__(cls)
        nn.Module.__init__(module)
        return module

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # pyright: ignore[reportMissingSuperCall]
        """Nothing to do; lets a neutral class call ``super().__init__()``."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, _tracked(value))

    def train(self, mode: bool = True) -> TorchModule:
        """Sampling, or with ``mode`` False the mode of the distribution, as ``nnx.Module.train`` and ``eval`` do."""
        super().train(mode)
        if "deterministic" in vars(self):
            self.deterministic = not mode
        return self


def bound_class(neutral: type, attributes: dict[str, Any]) -> type:
    """Derives the class from (neutral, TorchModule)."""
    attributes = {**attributes, "forward": neutral.__call__, "__call__": nn.Module.__call__}
    return StatefulMeta(neutral.__name__, (neutral, TorchModule), attributes)


def _tracked(value: Any) -> Any:
    if not isinstance(value, dict | list | tuple) or not contains_tracked(value, (nn.Module,)):
        return value
    if isinstance(value, dict):
        return ModuleDict({key: _tracked(item) for key, item in value.items()})
    return nn.ModuleList([_tracked(item) for item in value])
