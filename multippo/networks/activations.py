"""Activations of layers: by name, or as functions of the engine's arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from multippo.arguments import describe, framework_of, unwrapped

Activation = str | Callable[[Any], Any] | None

_KNOWN = ("jax", "numpy", "torch")
"""Engines that take functions of the framework of their own name alone."""


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
    framework = framework_of(activation)
    if engine.name in _KNOWN and framework not in (engine.name, None):
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
        # torch raises a RuntimeError for NumPy's functions where a gradient is taken.
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


def _name(activation: Any) -> str:
    inner = unwrapped(activation)
    return getattr(inner, "__name__", None) or type(inner).__name__
