"""Neutral classes as ``torch.nn.Module``s."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import nn

from multippo.backends import attributes
from multippo.networks.core.binding import Param, StatefulMeta, Variable


class Held(attributes.ReadFirst, nn.Module):
    """Base of variables. Reading copies, so that neither a write nor the optimiser changes what was read."""

    value: torch.Tensor

    def __getitem__(self, index: Any) -> torch.Tensor:
        return self.value[index].clone()

    def __setitem__(self, index: Any, value: Any) -> None:
        with torch.no_grad():
            self.value[index] = torch.tensor(value) if isinstance(value, np.ndarray) else value

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Raises a TypeError in the place of any function of torch that is given a variable."""
        cls.refuse(getattr(function, "__name__", "A function"))


class TorchParam(Held):
    """A trained array."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.value = nn.Parameter(value)


class TorchVariable(Held):
    """A tracked array that is not trained: a buffer, written in place, so that its address stays."""

    def __init__(self, value: torch.Tensor) -> None:
        super().__init__()
        self.register_buffer("value", value)


def to_numpy(x: torch.Tensor) -> np.ndarray:
    """Tensor as an array on the host; bfloat16, which NumPy lacks, as float32, which holds each of its numbers."""
    host = x.detach().cpu()
    return host.float().numpy() if host.dtype == torch.bfloat16 else host.numpy()


OWN_ATTRIBUTES = frozenset(vars(nn.Module()))
"""Attributes that ``nn.Module`` keeps on an instance."""

Param.register(TorchParam)
Variable.register(TorchVariable)


class ModuleDict(attributes.KeyedChildren, nn.Module):
    """``nn.ModuleDict`` for any key: ``keys`` and ``a.b`` too, which torch's own does not allow."""


class TorchMeta(StatefulMeta):
    """Looks once more after ``__init__`` for modules that would go untracked."""

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:  # noqa: N805 - a metaclass
        """Instantiates a bound class."""
        with torch.inference_mode(False):  # tensors made in inference mode could never be trained
            module = super().__call__(*args, **kwargs)
        attributes.track_late(module, (nn.Module,), OWN_ATTRIBUTES.__contains__)
        return module


class TorchModule(nn.Module, metaclass=TorchMeta):
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
        attributes.check_held(self, name, value, (nn.Module,))
        value = attributes.track(value, (nn.Module,), nn.ModuleList, ModuleDict)
        # torch finds an attribute of the class before a module of that name.
        attributes.check_attribute(self, name, type(self), isinstance(value, nn.Module))
        # torch lets no attribute turn from a module into a plain one, so the attribute is created again.
        is_plain = not isinstance(value, nn.Module | None)
        if is_plain and name in vars(self)["_modules"]:
            delattr(self, name)
        super().__setattr__(name, value)

    def train(self, mode: bool = True) -> TorchModule:
        """Sets sampling, or with ``mode`` False the mode of the distribution, as ``nnx.Module.train`` and ``eval``."""
        super().train(mode)
        if "deterministic" in vars(self):
            self.deterministic = not mode
        return self


def track_all(module: Any) -> None:
    """Tracks modules and variables that a module, and those below it, were given after they were made."""
    attributes.track_below(module, TorchModule, (nn.Module,), OWN_ATTRIBUTES.__contains__)


def bound_class(neutral: type, members: dict[str, Any]) -> type:
    """Derives the class from (neutral, TorchModule)."""
    attributes.check_class(neutral, nn.Module, OWN_ATTRIBUTES)
    members = {**members, "forward": members["__call__"], "__call__": nn.Module.__call__}
    return TorchMeta(neutral.__name__, (neutral, TorchModule), members)
