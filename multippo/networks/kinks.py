"""Functions with a kink, whose derivative there is the same on every engine.

Frameworks disagree at a kink: at 0 ``abs`` has the derivative 1 on JAX and 0 on torch, at its bound ``clip`` has 1/2 on
JAX and 1 on torch. So no formula through which a gradient flows calls either of them. Throughout the library

* a function that is smooth has its own derivative everywhere, whatever it is put together of;
* a bound belongs to the inside: there ``clip`` has the derivative 1;
* arguments of ``minimum`` or ``maximum`` that are equal share the derivative, as they do on either framework;
* activations have at 0 what torch gives them: ``relu`` 0, ``leaky_relu`` its lower slope, ``elu`` 1.
"""

from __future__ import annotations

from typing import Any


def clip(xp: Any, x: Any, low: float, high: float) -> Any:
    """``min(max(x, low), high)``, with the derivative 1 from bound to bound, both included, and 0 outside."""
    held = xp.clip(x, low, high)
    return xp.where(held == x, x, held)


def softplus(xp: Any, x: Any) -> Any:
    """``log(1 + exp(x))``, finite for every x, with the derivative ``sigmoid(x)``, 1/2 at 0."""
    positive = x > 0
    return xp.where(positive, x, xp.zeros_like(x)) + xp.log1p(xp.exp(xp.where(positive, -x, x)))
