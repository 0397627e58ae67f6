"""Gradients under portable names and in portable layouts, on any engine that trains."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.backends.api import OptimizerConfig
from multippo.trees import tree_leaves


def gradient_of(module: Any, loss: Callable[..., Any], *args: Any) -> dict[str, np.ndarray]:
    """Gradient of ``loss(module, *args)``, a scalar, by every parameter.

    The gradient is read out of the optimiser, whose moments the contract names and lays out: with ``beta1 = 0`` the
    first moment after one step is the gradient.
    """
    engine = module.engine
    definition, params, variables = engine.split(module)
    optimizer = engine.optimizer(OptimizerConfig(beta1=0.0))

    def evaluate(params: Any, variables: Any, *args: Any) -> tuple[Any, None]:
        return loss(engine.merge(definition, params, variables), *args), None

    def step(params: Any, variables: Any, *args: Any) -> Any:
        _, grads = engine.value_and_grad(evaluate)(params, variables, *args)
        never = engine.asarray(np.asarray(False))
        return optimizer.step(params, grads, optimizer.init(params), engine.zeros(()), never)[1]

    return moments_by_name(module, optimizer, engine.jit(step)(params, variables, *args))


def moments_by_name(module: Any, optimizer: Any, optimizer_state: Any) -> dict[str, np.ndarray]:
    """Adam's first moments by portable name."""
    first, _, _ = optimizer.export_state(optimizer_state)
    return {
        name: np.array(leaf.to_portable(first[leaf.native_path]))
        for name, leaf in module.engine.leaves(module).items()
        if leaf.trained
    }


def weighted_sum(engine: Any, tree: Any) -> Any:
    """Sum of every floating-point number in a tree, each with another weight."""
    xp, total = engine.xp, engine.zeros(())
    for leaf in tree_leaves(tree):
        if hasattr(leaf, "dtype") and xp.isdtype(leaf.dtype, "real floating"):
            flat = xp.reshape(leaf, (-1,))
            weights = engine.asarray(np.cos(np.arange(flat.shape[0])))
            total = total + xp.sum(flat * xp.astype(weights, flat.dtype))
    return total
