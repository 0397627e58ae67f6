"""Layers without a carry: dense, layer normalisation, and the framework's own modules."""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.arguments import check_features, check_flag, check_number, check_size, framework_of, unwrapped
from multippo.networks.activations import Activation, activate, resolve_activation
from multippo.networks.core.error_paths import call_foreign
from multippo.networks.initializers import Initializer, drawn, lecun_normal, zeros
from multippo.networks.tree_layers import as_float
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.random import Rngs, check_rngs


class Dense(StatefulModule):
    """The framework's dense layer: ``activation(x @ kernel + bias)``.

    Args:
        in_features: Number of features of the input.
        out_features: Number of features of the output.
        rngs: Source of the initial kernel.
        activation: Name such as "tanh", a callable of the engine's arrays, or None for a linear layer.
        kernel_init: Initialiser of the kernel ``[in, out]``; ``lecun_normal()`` by default.
        bias_init: Initialiser of the bias ``[out]``; zeros by default.
        use_bias: True for a layer with a bias.

    Raises:
        ValueError: If a size is not an integer of at least 1, the activation unknown, or an initialiser makes an array
            of another shape.
        TypeError: If ``rngs`` is not an ``Rngs``, or another argument of the wrong kind.
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
        rngs = check_rngs("Dense", rngs)
        self.activation = resolve_activation(self.engine, activation)
        has_bias = check_flag("Dense", "use_bias", use_bias)
        shape = (self.in_features, self.out_features)
        kernel = drawn("Dense", "kernel_init", lecun_normal() if kernel_init is None else kernel_init, rngs, shape)
        bias = drawn("Dense", "bias_init", bias_init or zeros(), rngs, shape[1:]) if has_bias else None
        self.core = self.engine.linear(kernel, bias)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, in]`` to ``[B, out]``."""
        if getattr(x, "shape", ())[-1:] != (self.in_features,):
            check_features("Dense", x, self.in_features)
        y = self.core(x)
        return StatefulModuleOutput(state, y if self.activation is None else activate("Dense", self.activation, y))


class LayerNorm(StatefulModule):
    """The framework's layer normalisation (Ba et al., 2016, arXiv:1607.06450, equation 4), over the last axis.

    ``y = (x - mean) / sqrt(variance + epsilon) * scale + bias``, with the mean and the biased variance of the features
    of one row; nothing is shared between environments or steps, and nothing is learnt but ``scale`` and ``bias``.

    Args:
        features: Number of features of the input.
        epsilon: Number added to the variance, under the square root.
        use_scale: True for a trained scale, 1 at first.
        use_bias: True for a trained bias, 0 at first.

    Raises:
        ValueError: If ``features`` is not an integer of at least 1, or ``epsilon`` not above 0.
        TypeError: If a flag is neither True nor False.
    """

    def __init__(self, features: int, *, epsilon: float = 1e-5, use_scale: bool = True, use_bias: bool = True) -> None:
        self.features = check_size("LayerNorm", "features", features)
        self.epsilon = check_number("LayerNorm", "epsilon", epsilon, above=0)
        scale = np.ones(self.features) if check_flag("LayerNorm", "use_scale", use_scale) else None
        bias = np.zeros(self.features) if check_flag("LayerNorm", "use_bias", use_bias) else None
        self.core = self.engine.layer_norm(self.features, scale, bias, self.epsilon)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, features]`` to the same shape."""
        check_features("LayerNorm", x, self.features)
        return StatefulModuleOutput(state, self.core(as_float(self, x)))


class Lift(StatefulModule):
    """Wraps a stateless native module, or a function, for use in containers: ``y = module(x)``, without a carry.

    The parameters are tracked and trained. Their portable names are those of the framework, except for its linear,
    layer normalisation and (torch) convolution layers, named as multippo's own (``kernel``, ``scale``, ``bias``); a
    network that is to change engines is better made of multippo's own layers. In replay the module sees all steps
    folded into its batch, ``[T * B, ...]``, so rows must not influence one another.

        Lift(torch.nn.Bilinear(...))    on the engine torch
        Lift(flax.nnx.Einsum(...))      on the engine jax
        Lift(lambda x: x**2)            on either

    Args:
        module: ``torch.nn.Module`` or ``flax.nnx.Module``, as the active engine is, or a function of arrays (without
            parameters), from the input, a tree of ``[B, ...]`` arrays, to such a tree.

    Raises:
        TypeError: If ``module`` is neither, belongs to another engine, is a StatefulModule, keeps a state of its own,
            which a call would write, such as batch normalisation, or draws noise of its own, such as dropout; on torch
            also if its numbers are of another type than the engine's. ``check_module`` finds modules that write or draw
            in ways that can't be seen before a call.
    """

    def __init__(self, module: Any) -> None:
        if isinstance(module, StatefulModule):
            raise TypeError(f"Lift got a {type(module).__name__}, a StatefulModule already; use it as it is.")
        if isinstance(module, type):
            raise TypeError(f"Lift got the class {module.__name__}; expected an instance of it.")
        # A native module of another engine can be called, too, so modules are told by their class's ancestry.
        is_module = any(base.__name__ == "Module" for base in type(module).__mro__)
        self.function = module if callable(module) and not is_module else None
        if self.function is None:
            self.core = self.engine.lift(module)
            return
        theirs = framework_of(module)
        # NumPy's functions work on arrays of some others.
        if theirs in ("jax", "torch") and theirs != framework_of(self.zeros((1,))):
            raise TypeError(
                f"Lift got {getattr(unwrapped(module), '__name__', module)}, a function of {theirs}; on the engine "
                f"{self.engine.name} it is given the engine's arrays. Write it with the functions of network.xp."
            )

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs the module on a tree of ``[B, ...]`` arrays.

        Raises:
            ValueError: If the module fails on the input; the error describes the input, and the framework's own error
                is the cause.
        """
        inner = self.core if self.function is None else self.function
        return StatefulModuleOutput(state, call_foreign("Lift", inner, x))
