"""Activations of layers, and functions with a kink, whose derivative there is the same on every engine.

Frameworks disagree at a kink: at 0 ``abs`` has the derivative 1 on JAX and 0 on torch, at its bound ``clip`` has 1/2 on
JAX and 1 on torch. So no formula through which a gradient flows calls either of them. Throughout the library

* a smooth function has its own derivative everywhere, whatever its parts are;
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
    """The function of an activation given by name or as a callable; None for None.

    Raises:
        ValueError: If the name is unknown.
        TypeError: If ``activation`` is neither, a class, or a function of another framework's arrays.
    """
    if isinstance(activation, str):
        return engine.activation(activation)
    if activation is None:
        return None
    framework = framework_of(activation)
    foreign = engine.name in _KNOWN and framework not in (engine.name, None)
    if not callable(activation) or isinstance(activation, type) or foreign:
        of = f" of {framework}" if foreign else ""
        raise TypeError(
            f"activation={_name(activation)}{of} is not possible on the engine {engine.name}: expected a name, such as "
            "'tanh', or a function of the engine's own arrays; an instance, if it is of a class."
        )
    return activation


def activate(kind: str, activation: Callable[[Any], Any] | None, y: Any) -> Any:
    """``activation(y)``, or ``y`` without one.

    Args:
        kind: Name of the layer in errors.
        activation: Result of ``resolve_activation``.
        y: Array of the engine.

    Raises:
        ValueError: If ``activation`` returns anything but an array of the same shape.
    """
    if activation is None:
        return y
    activated = activation(y)
    if getattr(activated, "shape", None) != y.shape:
        raise ValueError(
            f"{kind}(activation={_name(activation)}) made {describe(activated)} of one of shape {tuple(y.shape)}; "
            "expected the same shape. What changes it is a layer of its own, such as multippo.Lift(function)."
        )
    return activated


def _name(activation: Any) -> str:
    inner = unwrapped(activation)
    return getattr(inner, "__name__", repr(inner))


def clip(engine: Any, x: Any, low: float, high: float) -> Any:
    """``min(max(x, low), high)``, with the derivative 1 from bound to bound, both included, and 0 outside."""
    held = engine.xp.clip(engine.stop_gradient(x), low, high)
    return engine.xp.where(held == x, x, held)


def softplus(xp: Any, x: Any) -> Any:
    """``log(1 + exp(x))``, finite for every x, with the derivative ``sigmoid(x)``, 1/2 at 0."""
    positive = x > 0
    return xp.where(positive, x, xp.zeros_like(x)) + xp.log1p(xp.exp(xp.where(positive, -x, x)))
