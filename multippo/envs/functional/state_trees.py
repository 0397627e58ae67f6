"""States of functional environments: trees of a fixed type, fresh starts, and tracing errors in plain words.

An environment's ``reset`` and ``step`` are written apart and often disagree: a Python 0 here and a ``float32`` there.
``lax.scan`` and the compilation cache ask for one type: the step's result gets the types of the reset's, or an error
names the leaf that does not fit.
"""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Collection, Generator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from multippo.envs.nonfinite import broken_leaf


def strip_weak_types(tree: Any) -> Any:
    """Every leaf as an array that keeps its type when combined with a Python number or another array."""
    return jax.tree.map(lambda leaf: _cast(jnp.asarray(leaf), jnp.asarray(leaf).dtype), tree)


def conform(tree: Any, reference: Any, name: str) -> Any:
    """A tree, cast to the types of ``reference``.

    Raises:
        TypeError: If structures or shapes differ, or a cast would lose the meaning of the values (a float as an
            integer); the message names the leaf, and by ``name`` the function that returned the tree.
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
        shared: Positions of leaves without rows, which are taken from ``where_false``.
    """
    pairs = zip(jax.tree.leaves(where_true), jax.tree.leaves(where_false), strict=True)
    leaves = [
        false if i in shared else jnp.where(mask.reshape(mask.shape + (1,) * (true.ndim - 1)), true, false)
        for i, (true, false) in enumerate(pairs)
    ]
    return jax.tree.unflatten(jax.tree.structure(where_false), leaves)


def take(tree: Any, rows: Any, shared: Collection[int] = ()) -> Any:
    """The given rows (indices or a slice) of every leaf, and whole the leaves at the positions ``shared``."""
    leaves, structure = jax.tree.flatten(tree)
    return jax.tree.unflatten(structure, [leaf if i in shared else leaf[rows] for i, leaf in enumerate(leaves)])


def _cast(leaf: jax.Array, dtype: Any) -> jax.Array:
    if jnp.issubdtype(dtype, jax.dtypes.extended):
        # A typed random key: never weak, and not a number that could be cast.
        return leaf
    return jax.lax.convert_element_type(leaf, dtype)


def _rank(dtype: Any) -> int:
    """Rank of a type: values keep their meaning in a type of a higher rank."""
    for rank, kind in enumerate((jnp.bool_, jnp.integer, jnp.inexact)):
        if jnp.issubdtype(dtype, kind):
            return rank
    return 3


def sound_starts(obs: Any, reward: Any, entry: jax.Array, wanted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Entries of a pool of starts, with finite ones in place of those that are not.

    Environments whose entries are not finite in the same step take different ones, which no other environment takes in
    this step, where there are enough: two that start alike could play one episode. The replacements follow each other
    in the pool, from the first such environment's entry on.

    Args:
        obs: The pool's observations, ``[P, ...]``.
        reward: Rewards of any values, for the position of a leaf in ``nonfinite.guarded_leaves``.
        entry: Next entry of each environment, ``[B]``.
        wanted: ``[B]`` bool, True where an entry is taken.

    Returns:
        The entries to take, and ``[B]`` int32: 1 + the position of the leaf for which an entry was passed over, 0 where
        none was. All entries stay as they are if none of the pool is finite.
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
        # Finite entries first, among these the free ones, among these the next in the pool.
        order = jnp.argsort(ahead + size * taken + 2 * size * ~sound)
        rank = jnp.cumsum(passed_over) - 1
        others = order[rank % jnp.maximum(jnp.sum(sound), 1)]
        return jnp.where(passed_over & jnp.any(sound), others, entry).astype(entry.dtype)

    # In a branch, since nearly every pool is finite from end to end.
    return jax.lax.cond(jnp.any(code > 0), replaced, lambda: entry), code


_JAX = os.path.dirname(jax.__file__) + os.sep
_ERRORS = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


@contextlib.contextmanager
def while_traced(env: Any, method: str) -> Generator[None]:
    """Explains JAX's errors in an environment's ``reset`` or ``step`` while it is compiled.

    Raises:
        TypeError: In place of JAX's error, which becomes the cause.
    """
    try:
        yield
    except _ERRORS as error:
        *_, place = (at for at in traceback.extract_tb(error.__traceback__) if not at.filename.startswith(_JAX))
        raise TypeError(
            f"{method} of {type(env).__name__} needs the value of an array ({os.path.basename(place.filename)}, line "
            f"{place.lineno}: {place.line}), but a functional environment is compiled once for all values: take "
            "jax.numpy for NumPy and float(), jnp.where, jax.lax.cond or jax.lax.while_loop for if, while and masks."
        ) from error
