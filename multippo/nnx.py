"""The names of ``flax.nnx`` that networks are written with, for either engine.

A program for nnx-ppo that begins with ``from flax import nnx`` begins with ``from multippo import nnx`` here, and the
rest of what it says about its network stays: ``nnx.Rngs(0)``, ``nnx.Param``, ``nnx.List``, ``nnx.swish``. It is not
a copy of flax, whose other names work on JAX.
"""

from __future__ import annotations

from typing import Any

from multippo.backends.registry import active_engine
from multippo.networks import initializers as _initializers
from multippo.networks.core.binding import Param as Param
from multippo.networks.core.binding import Variable as Variable
from multippo.random import Rngs as Rngs


class _Activation(str):
    """An activation's name that can be called as well: with an array of the active engine."""

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
    """``nnx.initializers``, as far as ``multippo.networks.initializers`` has them."""

    zeros = staticmethod(_initializers.zeros())
    lecun_normal = staticmethod(_initializers.lecun_normal)
    orthogonal = staticmethod(_initializers.orthogonal)
