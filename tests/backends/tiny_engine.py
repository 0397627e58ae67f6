"""An engine of somebody else's: not derived from multippo's ``Engine``, and with modules and a dense layer of its own.

All else it hands to NumPy's. Tests install this file as a package, outside the tree.
"""

from typing import Any

import numpy as np

from multippo.backends.api import Engine
from multippo.backends.numpy.engine import NumpyEngine
from multippo.backends.numpy.modules import Module, NumpyParam, bound_class


class Dense(Module):
    """``x @ kernel + bias``, by another function."""

    def __init__(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        self.kernel = NumpyParam(np.array(kernel))
        self.bias = None if bias is None else NumpyParam(np.array(bias))

    def __call__(self, x: Any) -> Any:
        """``[..., in]`` to ``[..., out]``."""
        y = np.einsum("...i,io->...o", x, self.kernel[...])
        return y if self.bias is None else y + self.bias[...]


class TinyEngine:
    """See above."""

    name = "tiny"
    xp = NumpyEngine.xp
    capabilities = frozenset({"float64"})
    activations = NumpyEngine.activations
    draws_ahead = False

    def __init__(self) -> None:
        self._inner: Any = NumpyEngine()
        self._inner.bind = self.bind
        self.random = self._inner.random
        self._bound: dict[type, type] = {}

    @property
    def float_dtype(self) -> Any:
        """The one there is."""
        return np.float64

    def bind(self, neutral: type) -> type:
        """A class whose instances are this engine's."""
        if neutral not in self._bound:
            own = {"engine": self, "xp": self.xp, "random": self.random, "__module__": neutral.__module__}
            self._bound[neutral] = bound_class(neutral, own)
        return self._bound[neutral]

    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        """The dense layer above."""
        return Dense(kernel, bias)


def _handed_on(name: str) -> Any:
    return lambda self, *args, **kwargs: getattr(self._inner, name)(*args, **kwargs)


for _name, _contract in vars(Engine).items():
    if callable(_contract) and not _name.startswith("_") and not hasattr(TinyEngine, _name):
        setattr(TinyEngine, _name, _handed_on(_name))


def make_tiny() -> Any:
    """The entry point."""
    return TinyEngine()
