"""The framework's own modules as stateful ones."""

from __future__ import annotations

from typing import Any

from multippo.arguments import framework_of, unwrapped
from multippo.networks.core.error_paths import call_foreign
from multippo.networks.types import StatefulModule, StatefulModuleOutput


class Lift(StatefulModule):
    """Wraps a stateless native module, or a function, for use in containers: ``y = module(x)``, without a carry.

    The parameters are tracked and trained. Their portable names are those of the framework, except for its linear,
    layer normalisation and (torch) convolution layers, called as multippo's own (``kernel``, ``scale``, ``bias``); a
    network that is to change engines is better made of multippo's own layers. In replay the module sees all steps
    folded into its batch, ``[T * B, ...]``; so rows must not influence one another.

        Lift(torch.nn.Bilinear(...))    on the engine torch
        Lift(flax.nnx.Einsum(...))      on the engine jax
        Lift(lambda x: x**2)            on either

    Args:
        module: A ``torch.nn.Module`` or ``flax.nnx.Module``, as the active engine is, or a function of arrays (without
            parameters). It is given the input as it is, a tree of ``[B, ...]`` arrays, and returns such a tree.

    Raises:
        TypeError: If it is neither, a module or function of another engine, one that is stateful already, one that
            keeps a state of its own, which a call would write, such as batch normalisation, or that draws noise of its
            own, such as dropout; on torch also a module whose numbers are of another type than the engine's. What
            writes or draws in ways that can't be seen before a call, ``check_module`` finds.
    """

    def __init__(self, module: Any) -> None:
        if isinstance(module, StatefulModule):
            raise TypeError(f"Lift got a {type(module).__name__}, a StatefulModule already; use it as it is.")
        if isinstance(module, type):
            raise TypeError(f"Lift got the class {module.__name__}; expected an instance of it.")
        # A native module of another engine can be called, too; what makes it one is in its class's ancestry.
        is_module = any(base.__name__ == "Module" for base in type(module).__mro__)
        self.function = module if callable(module) and not is_module else None
        if self.function is not None:
            _check_function(self.engine, module)
        else:
            self.core = self.engine.lift(module)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """A tree of ``[B, ...]`` to what the module makes of it.

        Raises:
            ValueError: If it fails on the input; the error says what that was, and goes back to the framework's own.
        """
        inner = self.core if self.function is None else self.function
        return StatefulModuleOutput(state, call_foreign("Lift", inner, x))


def _check_function(engine: Any, function: Any) -> None:
    """Raises a TypeError for a function of another framework than the engine's."""
    inner, theirs = unwrapped(function), framework_of(function)
    # NumPy's functions work on arrays of some others.
    if theirs in ("jax", "torch") and theirs != framework_of(engine.zeros((1,))):
        name = getattr(inner, "__name__", type(inner).__name__)
        raise TypeError(
            f"Lift got {name}, a function of {theirs}; on the engine {engine.name} it is given the engine's arrays. "
            "Take one of that framework, or write it with the functions of network.xp."
        )
