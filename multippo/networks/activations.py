"""Activations of layers, and functions with a kink, whose derivative there is the same on every engine.

Frameworks disagree at a kink: at 0 ``abs`` has the derivative 1 on JAX and 0 on torch, at its bound ``clip`` has 1/2 on
JAX and 1 on torch. So no formula through which a gradient flows calls either of them. Throughout the library

* a function that is smooth has its own derivative everywhere, whatever it is put together of;
* a bound belongs to the inside: there ``clip`` has the derivative 1;
* arguments of ``minimum`` or ``maximum`` that are equal share the derivative, as they do on either framework;
* activations have at 0 what torch gives them: ``relu`` 0, ``leaky_relu`` its lower slope, ``elu`` 1.
"""

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


def clip(xp: Any, x: Any, low: float, high: float) -> Any:
    """``min(max(x, low), high)``, with the derivative 1 from bound to bound, both included, and 0 outside."""
    held = xp.clip(x, low, high)
    return xp.where(held == x, x, held)


def softplus(xp: Any, x: Any) -> Any:
    """``log(1 + exp(x))``, finite for every x, with the derivative ``sigmoid(x)``, 1/2 at 0."""
    positive = x > 0
    return xp.where(positive, x, xp.zeros_like(x)) + xp.log1p(xp.exp(xp.where(positive, -x, x)))
