"""Layers without a carry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.networks.initializers import Initializer, lecun_normal, zeros
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.networks.utils import check_features, check_size
from multippo.rngs import Rngs, check_rngs

__all__ = ["Dense", "resolve_activation"]

Activation = str | Callable[[Any], Any] | None


def resolve_activation(engine: Any, activation: Activation) -> Callable[[Any], Any] | None:
    """An activation given by name or as a callable.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is neither.
    """
    if activation is None or callable(activation):
        return activation
    if not isinstance(activation, str):
        raise TypeError(f"activation={activation!r} is not possible: expected a name, a callable, or None.")
    return engine.activation(activation)


class Dense(StatefulModule):
    """The framework's dense layer: ``activation(x @ kernel + bias)``.

    Args:
        in_features: Features of the input.
        out_features: Features of the output.
        rngs: Where the initial kernel is drawn from.
        activation: A name such as "tanh", a callable of the engine's arrays, or None for a linear layer.
        kernel_init: Initialiser of the kernel ``[in, out]``.
        bias_init: Initialiser of the bias ``[out]``.
        use_bias: Whether there is a bias.

    Raises:
        ValueError: If a size is no integer of at least 1, or the activation unknown.
        TypeError: If ``rngs`` is no ``Rngs``.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        rngs: Rngs,
        activation: Activation = None,
        *,
        kernel_init: Initializer | None = None,
        bias_init: Initializer | None = None,
        use_bias: bool = True,
    ) -> None:
        self.in_features = check_size("Dense", "in_features", in_features)
        self.out_features = check_size("Dense", "out_features", out_features)
        check_rngs("Dense", rngs)
        self.activation = resolve_activation(self.engine, activation)
        kernel = (kernel_init or lecun_normal())(rngs, (self.in_features, self.out_features))
        bias = (bias_init or zeros())(rngs, (self.out_features,)) if use_bias else None
        self.core = self.engine.linear(np.asarray(kernel), bias)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, in]`` to ``[B, out]``."""
        check_features("Dense", x, self.in_features)
        y = self.core(x)
        return StatefulModuleOutput(state, y if self.activation is None else self.activation(y))
