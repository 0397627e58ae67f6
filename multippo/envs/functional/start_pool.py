"""Fresh starts of functional environments, of which those that are not finite are replaced."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from multippo.envs.nonfinite import broken_leaf


def sound_starts(obs: Any, reward: Any, entry: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Entries of a pool of starts, each that is not finite replaced by one that is.

    Environments whose entries are not finite at once take different ones, which no other environment takes in this
    step, where there are enough: two that start alike could play one episode. They follow each other in the pool, from
    the first such environment's entry on.

    Args:
        obs: The pool's observations, ``[P, ...]``.
        reward: Rewards of any values, for the position of a leaf in ``nonfinite.guarded_leaves``.
        entry: ``[B]``, the entries whose turn it is.
        wanted: ``[B]`` bool, where one is taken.

    Returns:
        The entries to take, and ``[B]`` int32: 1 + the position of the leaf for which an entry was passed over, 0 where
        none was. Where no entry of the pool is finite, all stay what they are.
    """
    none = jax.tree.map(lambda leaf: jnp.zeros(entry.shape, leaf.dtype), reward)
    seen = jax.tree.map(lambda leaf: leaf[entry], obs)
    code = broken_leaf(jnp, seen, none, wanted, jnp.zeros_like(wanted))

    def replaced() -> jax.Array:
        size = jax.tree.leaves(obs)[0].shape[0]
        every = jnp.ones(size, jnp.bool_)
        none = jax.tree.map(lambda leaf: jnp.zeros(size, leaf.dtype), reward)
        sound = broken_leaf(jnp, obs, none, every, ~every) == 0
        passed_over = code > 0
        taken = jnp.zeros(size, jnp.bool_).at[entry].max(wanted & ~passed_over)
        ahead = (jnp.arange(size) - entry[jnp.argmax(passed_over)]) % size
        # Sound ones first, of these the free ones, of these the next.
        order = jnp.argsort(ahead + size * taken + 2 * size * ~sound)
        rank = jnp.cumsum(passed_over) - 1
        others = order[rank % jnp.maximum(jnp.sum(sound), 1)]
        return jnp.where(passed_over & jnp.any(sound), others, entry).astype(entry.dtype)

    # In a branch: nearly every pool is finite from end to end.
    return jax.lax.cond(jnp.any(code > 0), replaced, lambda: entry), code
