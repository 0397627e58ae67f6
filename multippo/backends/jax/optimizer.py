"""AdamW on a clipped gradient, with optax.

All parameters are stepped as one flat vector: XLA then compiles one kernel instead of several for every array, which
halves the compile time of an update and costs nothing when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.flatten_util import ravel_pytree

from multippo.backends.api import Optimizer, OptimizerConfig
from multippo.backends.jax.layers import from_numpy


class JaxOptimizer(Optimizer):
    """See ``OptimizerConfig`` for the arithmetic."""

    def __init__(self, config: OptimizerConfig, place: Callable[[Any], Any] = lambda array: array) -> None:
        self._config, self._place = config, place
        self._adam = optax.scale_by_adam(config.beta1, config.beta2, config.adam_epsilon)
        self._like: Any = None  # shapes of the parameters, by which moments are exported

    def init(self, params: Any) -> Any:
        self._like = jax.tree.map(lambda p: jax.ShapeDtypeStruct(p.shape, p.dtype), params)
        flat = jax.eval_shape(lambda tree: self._adam.init(ravel_pytree(tree)[0]), self._like)
        # All of them are zeros, which NumPy makes without a compilation.
        return self._place(jax.tree.map(lambda s: from_numpy(np.zeros(s.shape, s.dtype)), flat))

    def step(self, params: Any, grads: Any, state: Any, learning_rate: Any, skip: Any) -> tuple[Any, Any, Any]:
        flat, unravel = ravel_pytree(params)
        grad, _ = ravel_pytree(grads)
        norm = jnp.sqrt(jnp.sum(grad**2))
        skip = skip | ~jnp.isfinite(norm)
        clip = self._config.gradient_clipping
        if clip is not None:
            grad = grad * (clip / jnp.maximum(norm, clip))
        # A step is skipped by its numbers: a choice between old and new moments would have XLA copy both.
        grad = jnp.where(skip, 0.0, grad)
        betas = self._config.beta1, self._config.beta2
        mu, nu = (
            (1 - beta) * power + jnp.where(skip, 1.0, beta) * moment
            for beta, power, moment in zip(betas, (grad, grad**2), (state.mu, state.nu), strict=True)
        )
        count = state.count + 1
        first, second = (m / (1 - beta**count).astype(m.dtype) for beta, m in zip(betas, (mu, nu), strict=True))
        direction = first / (jnp.sqrt(second) + self._config.adam_epsilon)
        if self._config.weight_decay:
            direction = direction + self._config.weight_decay * flat
        flat = flat - jnp.where(skip, 0.0, learning_rate) * direction
        return unravel(flat), state._replace(count=jnp.where(skip, state.count, count), mu=mu, nu=nu), norm

    def keep(self, params: Any, state: Any) -> Any:
        return params, state

    def restore(self, kept: Any, params: Any, state: Any, condition: Any) -> tuple[Any, Any]:
        # A choice between each two numbers would slow all steps before it down, by an eighth.
        return jax.lax.cond(condition, lambda: kept, lambda: (params, state))

    def export_state(self, state: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any], int]:
        return self._by_path(state.mu), self._by_path(state.nu), int(state.count)

    def import_state(self, params: Any, first: Mapping[Any, Any], second: Mapping[Any, Any], count: int) -> Any:
        state: Any = self.init(params)
        steps = jnp.asarray(count, state.count.dtype)
        return self._place(state._replace(count=steps, mu=self._flat(first), nu=self._flat(second)))

    def _by_path(self, flat: Any) -> dict[Any, np.ndarray]:
        leaves = jax.tree_util.tree_leaves_with_path(self._like)
        parts = np.split(np.asarray(flat), np.cumsum([leaf.size for _, leaf in leaves]))
        pairs = zip(leaves, parts, strict=False)  # behind the last one is a part of no entries
        return {jax.tree_util.keystr(p): part.reshape(leaf.shape).astype(leaf.dtype) for (p, leaf), part in pairs}

    def _flat(self, values: Mapping[Any, Any]) -> Any:
        pick = lambda p, s: jnp.array(values.get(jax.tree_util.keystr(p), np.zeros(s.shape)), s.dtype)  # noqa: E731
        return ravel_pytree(jax.tree_util.tree_map_with_path(pick, self._like))[0]
