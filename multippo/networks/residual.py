"""A connection around a module."""

from __future__ import annotations

from typing import Any

from multippo.arguments import describe
from multippo.networks.containers import Container, Pass
from multippo.networks.types import StatefulModule


class Residual(Container):
    """Adds a module's input to its output: ``y = x + f(x)`` (He et al., 2016, arXiv:1512.03385, equation 1).

    For several layers wrap them in one: ``Residual(Sequential([...]))``. State and snapshots are lists of one entry,
    those of ``f``.

    Args:
        module: f, with outputs of the shape of its inputs.

    Raises:
        TypeError: If ``module`` is not a StatefulModule, or of another engine.
    """

    def __init__(self, module: StatefulModule) -> None:
        self._adopt([module], "layers")

    def _route(self, children: Pass, x: Any) -> Any:
        if not hasattr(x, "shape"):
            raise TypeError(f"Residual got {describe(x)}; expected an array, to which it can add.")
        y = children.run(0, x)
        if not hasattr(y, "shape") or y.shape != x.shape:
            raise ValueError(
                f"Residual got an input of shape {tuple(x.shape)}, of which its module made {describe(y)}; expected "
                "the same shape. Put a layer that changes it, such as Dense, before or after."
            )
        return x + y
