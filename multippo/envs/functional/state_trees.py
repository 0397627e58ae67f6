"""Trees of JAX arrays with a fixed type: what ``lax.scan`` and the compilation cache ask of an environment's state.

An environment's ``reset`` and ``step`` are written apart and often disagree: a Python 0 here and a ``float32`` there.
The functions below give the step's result the types of the reset's, or name the leaf that can't have them.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import jax
import jax.numpy as jnp


def strip_weak_types(tree: Any) -> Any:
    """Every leaf as an array that keeps its type when combined with a Python number or another array."""
    return jax.tree.map(lambda leaf: _cast(jnp.asarray(leaf), jnp.asarray(leaf).dtype), tree)


def conform(tree: Any, reference: Any, name: str) -> Any:
    """A tree, cast to the types of ``reference``.

    Raises:
        TypeError: If structures or shapes differ, or a cast would lose what the values mean (a float as an integer);
            the message names the leaf. ``name`` says in it what returned the tree.
    """
    leaves, structure = jax.tree_util.tree_flatten_with_path(tree)
    expected_leaves, expected_structure = jax.tree_util.tree_flatten_with_path(reference)
    if structure != expected_structure:
        paths, expected_paths = ({jax.tree_util.keystr(path) for path, _ in side} for side in (leaves, expected_leaves))
        raise TypeError(
            f"{name} returned a state of another structure than reset: additional leaves "
            f"{sorted(paths - expected_paths)}, missing leaves {sorted(expected_paths - paths)}"
            f"{'' if paths != expected_paths else ' (the same leaves, but other containers or static fields)'}. "
            "Return the same fields and dict keys from both."
        )
    conformed = []
    for (path, leaf), (_, expected) in zip(leaves, expected_leaves, strict=True):
        leaf = jnp.asarray(leaf)
        if leaf.shape != expected.shape or _rank(leaf.dtype) > _rank(expected.dtype):
            raise TypeError(
                f"{name} returned {leaf.dtype.name}{list(leaf.shape)} for state{jax.tree_util.keystr(path)}, where "
                f"reset returned {expected.dtype.name}{list(expected.shape)} (environments first). Let reset return "
                "the type and shape that step returns."
            )
        conformed.append(_cast(leaf, expected.dtype))
    return jax.tree.unflatten(structure, conformed)


def shared_leaves(batched: Any, single: Sequence[tuple[int, ...]], size: int) -> frozenset[int]:
    """Positions of the leaves without a row for each environment.

    MJX's warp implementation, for one, keeps a single buffer of contacts for all of its worlds.

    Args:
        batched: The state of all environments, or its shapes.
        single: Shapes of the leaves of one environment's state.
        size: Number of environments.
    """
    leaves = enumerate(zip(jax.tree.leaves(batched), single, strict=True))
    return frozenset(place for place, (leaf, shape) in leaves if leaf.shape != (size, *shape))


def select(mask: jax.Array, where_true: Any, where_false: Any, shared: Collection[int] = ()) -> Any:
    """Takes each row from one of two trees of ``[B, ...]`` arrays.

    Args:
        mask: ``[B]`` bool.
        where_true: Taken where the mask holds.
        where_false: Taken elsewhere.
        shared: Positions of leaves that have no rows; they are those of ``where_false``.
    """
    pairs = zip(jax.tree.leaves(where_true), jax.tree.leaves(where_false), strict=True)
    leaves = [
        false if i in shared else jnp.where(mask.reshape(mask.shape + (1,) * (true.ndim - 1)), true, false)
        for i, (true, false) in enumerate(pairs)
    ]
    return jax.tree.unflatten(jax.tree.structure(where_false), leaves)


def take(tree: Any, rows: Any, shared: Collection[int] = ()) -> Any:
    """The given rows (indices or a slice) of every leaf but those at the positions ``shared``, which have none."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [leaf if i in shared else leaf[rows] for i, leaf in enumerate(leaves)])


def _cast(leaf: jax.Array, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        # A typed random key: never weak, and not a number that could be cast.
        return leaf
    return jax.lax.convert_element_type(leaf, dtype)


def _rank(dtype: Any) -> int:
    """Types of a lower rank fit into those of a higher one without losing their meaning."""
    for rank, kind in enumerate((jnp.bool_, jnp.integer, jnp.inexact)):
        if jnp.issubdtype(dtype, kind):
            return rank
    return 3
