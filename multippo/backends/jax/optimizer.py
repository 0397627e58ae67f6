"""AdamW on a clipped gradient, with optax."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from multippo.backends.api import Optimizer, OptimizerConfig

__all__ = ["JaxOptimizer"]


class JaxOptimizer(Optimizer):
    """See ``OptimizerConfig`` for the arithmetic."""

    def __init__(self, config: OptimizerConfig) -> None:
        self._config = config
        self._adam = optax.scale_by_adam(config.beta1, config.beta2, config.adam_epsilon)

    def init(self, params: Any) -> Any:
        return self._adam.init(params)

    def step(self, params: Any, grads: Any, state: Any, learning_rate: Any, skip: Any) -> tuple[Any, Any, Any]:
        norm = optax.global_norm(grads)
        skip = skip | ~jnp.isfinite(norm)
        clip = self._config.gradient_clipping
        if clip is not None:
            scale = clip / jnp.maximum(norm, clip)
            grads = jax.tree.map(lambda g: g * scale, grads)
        directions, stepped = self._adam.update(grads, state)
        decay = self._config.weight_decay

        def descend(p: Any, u: Any) -> Any:
            return jnp.where(skip, p, p - learning_rate * (u + decay * p if decay else u))

        keep = lambda new, old: jnp.where(skip, old, new)  # noqa: E731
        return jax.tree.map(descend, params, directions), jax.tree.map(keep, stepped, state), norm

    def export_state(self, state: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any], int]:
        return _by_path(state.mu), _by_path(state.nu), int(state.count)

    def import_state(self, params: Any, first: Mapping[Any, Any], second: Mapping[Any, Any], count: int) -> Any:
        fresh: Any = self._adam.init(params)
        mu, nu = _from_path(fresh.mu, first), _from_path(fresh.nu, second)
        return _rebuild(fresh, count=jnp.asarray(count, fresh.count.dtype), mu=mu, nu=nu)


def _rebuild(state: NamedTuple, **fields: Any) -> Any:
    return state._replace(**fields)


def _by_path(tree: Any) -> dict[Any, np.ndarray]:
    return {jax.tree_util.keystr(p): np.asarray(v) for p, v in jax.tree_util.tree_leaves_with_path(tree)}


def _from_path(tree: Any, values: Mapping[Any, Any]) -> Any:
    return jax.tree_util.tree_map_with_path(lambda p, v: jnp.array(values[jax.tree_util.keystr(p)], v.dtype), tree)
