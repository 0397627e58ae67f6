"""``Delay``: the input of some steps ago."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np
import optree

from multippo.arguments import check_leaves, check_size, describe
from multippo.networks.core.unrolling import check_rows, check_steps, shift_in_time
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.trees import named_leaves, tree_leaves, tree_map

_OWN_TYPES = ("float32", "float64")
"""Names of types that are kept as the engine's own floating-point type."""

_EXPECTED = "an example of one environment's input, a tree of arrays without a batch axis, such as np.zeros(3)"


class Delay(StatefulModule):
    """The input of ``k`` steps before: ``y_t = x_{t-k}`` within an episode, ``initial_value`` in its first k steps.

    The output has the input's tree and types; floating-point leaves of 32 and 64 bits are of the engine's own type. The
    carry holds, for each leaf, the last k inputs ``[B, k, ...]``, the oldest first.

    Args:
        sample_input: Example of one environment's input: a tree of arrays without the batch axis, of which only
            structure, shapes and types are kept.
        k_steps: k in environment steps. With 0 the output is the input.
        initial_value: Output before the episode's first input comes out: a number, or a tree like
            ``sample_input`` of numbers, or of arrays that broadcast to its leaves.

    Raises:
        ValueError: If ``k_steps`` is not an integer of at least 0, ``sample_input`` is without arrays, or a leaf can't
            hold ``initial_value``.
        TypeError: If ``sample_input`` has a leaf that is not an array.
    """

    def __init__(self, sample_input: Any, k_steps: int, initial_value: Any = 0.0) -> None:
        self.k_steps = check_size("Delay", "k_steps", k_steps, least=0)
        leaves = named_leaves(sample_input)
        if not leaves:
            raise ValueError(f"Delay(sample_input={sample_input!r}) holds no array; expected {_EXPECTED}.")
        for name, leaf in leaves:
            if not (hasattr(leaf, "shape") and hasattr(leaf, "dtype")):
                raise TypeError(f"Delay(sample_input=...){_at(name)} is a {type(leaf).__name__}; expected {_EXPECTED}.")
        self.structure = optree.tree_structure(sample_input)
        own = _type_name(self.zeros(()).dtype)
        types = [own if name in _OWN_TYPES else name for name in (_type_name(leaf.dtype) for _, leaf in leaves)]
        # (name, shape, type) of each leaf: hashable, so that they are part of the module's structure.
        self.leaves = tuple((name, tuple(leaf.shape), kind) for (name, leaf), kind in zip(leaves, types, strict=True))
        self.initial = _initial_values(initial_value, self.structure, self.leaves)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """A tree of ``[B, ...]`` to the same kind of tree, k steps older."""
        self._check(x, 1)
        if not self.k_steps:
            return StatefulModuleOutput(state, x)
        self._check_held(state, tree_leaves(x)[0].shape[0])
        x = self._typed(x, state)
        oldest = tree_map(lambda _, held: held[:, 0], x, state)
        held = tree_map(lambda held, new: self.xp.concat((held[:, 1:], new[:, None]), axis=1), state, x)
        return StatefulModuleOutput(held, oldest)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Shifts all steps at once, with the initial value in place of inputs of an earlier episode."""
        xp, time = self.xp, done.shape[0]
        self._check(xs, 2)
        check_steps("Delay", xs, done)
        if not self.k_steps:
            return StatefulModuleOutput(state, xs)
        self._check_held(state, done.shape[1])
        xs = self._typed(xs, state)
        shifted = tree_map(
            lambda held, x, start: shift_in_time(xp, xp.moveaxis(held, 1, 0), x, done, start),
            state,
            xs,
            self._initial(state),
        )
        held = tree_map(lambda a: xp.moveaxis(a[time:], 0, 1), shifted)
        return StatefulModuleOutput(held, tree_map(lambda _, a: a[:time], xs, shifted))

    def initialize_state(self, batch_size: int) -> Any:
        """The initial value k times, for every leaf."""
        if not self.k_steps:
            return ()
        lead = (batch_size, self.k_steps)
        held = [self.engine.asarray(np.zeros((*lead, *shape), dtype)) for _, shape, dtype in self.leaves]
        return self.reset_state(optree.tree_unflatten(self.structure, held))

    def reset_state(self, prev_state: Any) -> Any:
        """The initial value k times, since nothing passes from one episode to the next."""
        if not self.k_steps:
            return prev_state
        return tree_map(lambda held, start: self.xp.zeros_like(held) + start, prev_state, self._initial(prev_state))

    def _initial(self, state: Any) -> Any:
        """The initial value of each leaf, without the batch axis."""
        values: list[Any] = []
        for held, (_, shape, dtype), value in zip(tree_leaves(state), self.leaves, self.initial, strict=True):
            if isinstance(value, tuple) or not held.shape[0]:  # an empty batch has no row to compare with
                array = np.asarray(value, dtype).reshape(shape if isinstance(value, tuple) else ())
                values.append(self.engine.asarray(array))
            else:
                values.append(self.xp.full_like(held[0, 0], value))
        return optree.tree_unflatten(self.structure, values)

    def _typed(self, x: Any, state: Any) -> Any:
        """The input in the carry's types.

        Raises:
            TypeError: If a leaf is of another kind; the error names it.
        """

        def cast(leaf: Any, held: Any) -> Any:
            if leaf.dtype == held.dtype:
                return leaf
            if not all(self.xp.isdtype(one.dtype, "real floating") for one in (leaf, held)):
                raise TypeError(f"Delay got an input of type {leaf.dtype}; expected {held.dtype}, as in sample_input.")
            return self.xp.astype(leaf, held.dtype)

        return tree_map(cast, x, state)

    def _check_held(self, state: Any, batch: int) -> None:
        held = tree_leaves(state)
        if len(held) != len(self.leaves):
            raise ValueError(
                f"Delay got {describe(state)} as its state; expected what initialize_state({batch}) makes, the last "
                f"{self.k_steps} inputs."
            )
        for leaf in held:
            check_rows("Delay", leaf, batch)

    def _check(self, x: Any, lead: int) -> None:
        # Two leaves may go by one name, where a key holds a dot; they stay in the order of the tree.
        received = sorted(named_leaves(x), key=lambda leaf: leaf[0])
        expected = sorted(self.leaves, key=lambda leaf: leaf[0])
        check_leaves("Delay", x, [name for name, *_ in expected], f"an array, a batch of {expected[0][1]}")
        for (name, leaf), (_, shape, _) in zip(received, expected, strict=True):
            if not hasattr(leaf, "shape"):
                raise TypeError(f"Delay got a {type(leaf).__name__}{_at(name)}; expected an array.")
            if tuple(leaf.shape[lead:]) != shape or len(leaf.shape) < lead:
                raise ValueError(
                    f"Delay got an input{_at(name)} of shape {tuple(leaf.shape)}; expected a batch of {shape}, as in "
                    "sample_input."
                )


def _at(name: str) -> str:
    return f" at {name!r}" if name else ""


def _type_name(dtype: Any) -> str:
    """NumPy's name of any library's type."""
    return getattr(dtype, "name", None) or str(dtype).rpartition(".")[2]


def _initial_values(initial_value: Any, structure: Any, leaves: tuple[Any, ...]) -> tuple[Any, ...]:
    """One number, or a flat tuple of a leaf's numbers, for each leaf."""
    if isinstance(initial_value, bool | int | float | np.generic):
        values = [initial_value] * len(leaves)
    else:
        try:
            values = structure.flatten_up_to(initial_value)
        except ValueError as error:
            raise ValueError(
                f"Delay(initial_value={initial_value!r}) has another structure than sample_input; expected a number, "
                f"or a tree with the leaves {[name for name, _, _ in leaves]}."
            ) from error
    return tuple(_frozen(value, *leaf) for value, leaf in zip(values, leaves, strict=True))


def _frozen(value: Any, name: str, shape: tuple[int, ...], dtype: str) -> Any:
    with contextlib.suppress(TypeError, ValueError, OverflowError), np.errstate(over="ignore", invalid="ignore"):
        given = np.asarray(value)
        kept = given.astype(dtype)
        spread = np.broadcast_to(kept, shape)
        # A number beyond what a type holds becomes infinite in it.
        if given.dtype.kind in "biuf" and np.all(np.isfinite(kept) if kept.dtype.kind == "f" else kept == given):
            return kept.item() if kept.ndim == 0 else tuple(spread.ravel().tolist())
    raise ValueError(
        f"Delay(initial_value=...){_at(name)} is {value!r}; expected finite numbers of type {dtype} that broadcast "
        f"to {shape}."
    )
