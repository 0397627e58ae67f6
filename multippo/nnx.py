"""The names of ``flax.nnx`` that networks are written with, for every engine.

A program for nnx-ppo needs ``from multippo import nnx`` in place of ``from flax import nnx``, and the rest of its
network stays: ``nnx.Rngs(0)``, ``nnx.Param``, ``nnx.List``, ``nnx.swish``. On JAX the other names are flax's own:
``nnx.state``, ``nnx.jit``.
"""

from __future__ import annotations

import importlib
from typing import Any

from multippo.backends.registry import active_engine
from multippo.networks import initializers as _initializers
from multippo.networks.core.binding import Param as Param
from multippo.networks.core.binding import Variable as Variable
from multippo.random import Rngs as Rngs


class _Activation(str):
    """An activation's name that can also be called with an array of the active engine."""

    def __call__(self, x: Any) -> Any:
        return active_engine().activation(str(self))(x)


elu = _Activation("elu")
gelu = _Activation("gelu")
leaky_relu = _Activation("leaky_relu")
relu = _Activation("relu")
sigmoid = _Activation("sigmoid")
silu = _Activation("silu")
softplus = _Activation("softplus")
swish = _Activation("swish")
tanh = _Activation("tanh")

# A module tracks the modules and variables in its lists and dicts, on both engines.
List = list
Dict = dict


class initializers:  # noqa: N801 - a name of flax's
    """The part of ``nnx.initializers`` that ``multippo.networks.initializers`` has."""

    zeros = staticmethod(_initializers.zeros())
    lecun_normal = staticmethod(_initializers.lecun_normal)
    orthogonal = staticmethod(_initializers.orthogonal)


def __getattr__(name: str) -> Any:
    if name.startswith("__") or active_engine().name != "jax":
        raise AttributeError(f"multippo.nnx has no {name!r}, which works on JAX only.")
    return getattr(importlib.import_module("flax.nnx"), name)
