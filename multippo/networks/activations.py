"""Activations of layers: by name, or as functions of the engine's arrays."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from multippo.networks.utils import describe

__all__ = ["Activation", "activate", "resolve_activation"]

Activation = str | Callable[[Any], Any] | None

_OTHERS = {"jax": ("numpy", "torch"), "torch": ("numpy", "jax", "flax"), "numpy": ("jax", "flax", "torch")}
"""Whose functions can't be an activation on an engine: they take no arrays of it, or none with a gradient."""


def resolve_activation(engine: Any, activation: Activation) -> Callable[[Any], Any] | None:
    """An activation given by name or as a callable.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If it is neither, a class, or a function of another framework's arrays.
    """
    if isinstance(activation, str):
        return engine.activation(activation)
    if activation is None:
        return None
    if not callable(activation):
        raise TypeError(f"activation={activation!r} is not possible: expected a name, a callable, or None.")
    if isinstance(activation, type):
        name = activation.__name__
        raise TypeError(f"activation={name} is not possible: it is a class; expected an instance, such as {name}().")
    framework = _framework(activation)
    if framework in _OTHERS.get(engine.name, ()):
        raise TypeError(
            f"activation={_name(activation)} is not possible: it is a function of {framework}'s, and the layer is made "
            f"on {engine.name}. {_REMEDY}"
        )
    return activation


def activate(kind: str, activation: Callable[[Any], Any] | None, y: Any) -> Any:
    """``activation(y)``, or ``y`` without one.

    Args:
        kind: The layer, for the error.
        activation: From ``resolve_activation``.
        y: The engine's array.

    Raises:
        TypeError: If it does not take arrays of the engine, or returns none.
        ValueError: If it returns an array of another shape.
    """
    if activation is None:
        return y
    try:
        activated = activation(y)
    except Exception as error:
        # torch refuses NumPy's functions, where a gradient is taken, by a RuntimeError.
        if not isinstance(error, TypeError | AttributeError) and "numpy()" not in str(error):
            raise
        said = str(error).strip().partition("\n")[0].removesuffix(".")
        raise TypeError(
            f"{kind}(activation={_name(activation)}) failed on an array of shape {tuple(y.shape)}: {said}. {_REMEDY}"
        ) from error
    if not hasattr(activated, "shape"):
        raise TypeError(
            f"{kind}(activation={_name(activation)}) returned {describe(activated)}; expected an array of the shape it "
            f"was given, {tuple(y.shape)}."
        )
    if activated.shape != y.shape:
        raise ValueError(
            f"{kind}(activation={_name(activation)}) made {describe(activated)} of one of shape {tuple(y.shape)}; "
            "expected the same shape. What changes it is a layer of its own, such as multippo.Lift(function)."
        )
    return activated


_REMEDY = "Give a name, such as 'tanh', or a function of the engine's own arrays."


def _framework(activation: Any) -> str:
    """The package that a callable comes from."""
    while isinstance(activation, functools.partial):
        activation = activation.func
    # Of a method of a compiled class the class knows, of a NumPy ufunc its type does.
    known = (activation, getattr(activation, "__objclass__", None), type(activation))
    modules = (getattr(one, "__module__", None) for one in known)
    return next((module for module in modules if isinstance(module, str)), "").partition(".")[0]


def _name(activation: Any) -> str:
    while isinstance(activation, functools.partial):
        activation = activation.func
    return getattr(activation, "__name__", None) or type(activation).__name__
