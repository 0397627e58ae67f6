"""Replay of a record on arrays of another kind, whatever the size of the batch."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from multippo.policy.record import REDUCTIONS, Record, repeated, times_batch
from multippo.straight.code import cone
from multippo.straight.tracing import Traced
from multippo.trees import tree_leaves, tree_structure, tree_unflatten

_NAMES = {  # of the array API standard, by NumPy's
    "absolute": "abs",
    "arccos": "acos",
    "arccosh": "acosh",
    "arcsin": "asin",
    "arcsinh": "asinh",
    "arctan": "atan",
    "arctan2": "atan2",
    "arctanh": "atanh",
    "invert": "bitwise_invert",
    "left_shift": "bitwise_left_shift",
    "power": "pow",
    "right_shift": "bitwise_right_shift",
}


class Replay:
    """A policy's step on the arrays of a namespace.

    Args:
        record: The step, with plain random words.
        xp: Array namespace, of the array API standard, and ``erf``; None for a subclass that needs none.
    """

    def __init__(self, record: Record, xp: Any = None) -> None:
        self._record, self._xp = record, xp
        self.batch: Any = None
        self.constants: dict[Any, Any] = {}

    def __call__(self, observation: Any, carry: dict[str, Any], start: Any) -> tuple[Any, dict[str, Any]]:
        """Action and next carry of a batch.

        Args:
            observation: Tree of arrays, as the environment gives them.
            carry: Arrays by name.
            start: ``[B]`` bool, True where an episode starts.
        """
        one, held = self._record.one, self._record.carry
        self.batch = start.shape[0]
        given = {node.index: leaf for node, leaf in zip(one.obs, tree_leaves(observation), strict=True)}
        given |= {one.carry[k].index: carry[name] for name, k in held.items()}
        found = self.values(given | {one.start.index: start})  # pyright: ignore[reportOptionalMemberAccess]
        actions = tree_structure(one.result[0])
        number = len(found) - len(held)
        return tree_unflatten(actions, found[:number]), dict(zip(held, found[number:], strict=True))

    def values(self, known: dict[int, Any]) -> list[Any]:
        """Leaves of the action and the next carry, from those of the inputs by position in the record."""
        one, two, targets = self._record.one, self._record.two, self._record.targets
        for node in cone(targets, known):
            if node.index not in one.fixed:
                known[node.index] = self._result(node, two.nodes[node.index], known)
        return [self._array(node, two.nodes[node.index], known) for node in targets]

    def _result(self, node: Traced, other: Traced, known: dict[int, Any]) -> Any:
        pairs = list(zip(node.args, other.args, strict=True))
        if not isinstance(node.function, np.ufunc):
            args = [self._argument(*pair, known) for pair in pairs]
            shape = tuple(itertools.starmap(self.size, zip(node.shape, other.shape, strict=True)))
            return self.call(node, args, shape)
        kinds = [x.dtype if hasattr(x, "dtype") else type(x) for x in node.args]
        # Types as NumPy computes in, since other frameworks promote by other rules.
        types = node.function.resolve_dtypes((*kinds, *[None] * node.function.nout))
        args = [
            self.cast(self._array(*pair, known, True), pair[0].dtype, dtype)
            if hasattr(pair[0], "dtype")
            else self.constant(np.asarray(pair[0], dtype))
            for pair, dtype in zip(pairs, types, strict=False)
        ]
        return self.ufunc(node, args)

    def _argument(self, node: Any, other: Any, known: dict[int, Any]) -> Any:
        """An argument of an operation: an array, a number, a type, or a tuple of such."""
        if isinstance(node, tuple | list):
            return tuple(self._argument(*pair, known) for pair in zip(node, other, strict=True))
        if isinstance(node, slice):
            start, stop = (
                None if a is None else self.size(a, b) for a, b in ((node.start, other.start), (node.stop, other.stop))
            )
            return slice(start, stop, node.step)
        if isinstance(node, Traced | np.ndarray):
            return self._array(node, other, known)
        return self.size(node, other) if type(node) is int else node

    def _array(self, node: Any, other: Any, known: dict[int, Any], broadcasts: bool = False) -> Any:
        """An array; a constant one that grows with the batch is a row, repeated unless the operation broadcasts."""
        if isinstance(node, Traced) and node.index in known:
            return known[node.index]
        value, second = (x.value if isinstance(x, Traced) else x for x in (node, other))
        row, axis = repeated(value, second)
        if axis is None or broadcasts:
            return self.constant(row)
        shape = tuple(itertools.starmap(self.size, zip(value.shape, second.shape, strict=True)))
        return self.broadcast(self.constant(row), shape)

    # -- what a subclass for other than array namespaces replaces

    def size(self, one: int, two: int) -> Any:
        """A number, a multiple of the batch if it grows with it."""
        return one if one == two else times_batch(one, two) * self.batch

    def constant(self, value: np.ndarray) -> Any:
        """An array of the namespace."""
        key = (value.shape, value.dtype.str, value.tobytes())
        if key not in self.constants:
            self.constants[key] = self._xp.asarray(np.array(value, order="C"))
        return self.constants[key]

    def cast(self, array: Any, old: Any, new: Any) -> Any:
        """An array in another type."""
        return array if old == new else self._xp.astype(array, getattr(self._xp, np.dtype(new).name))

    def broadcast(self, array: Any, shape: tuple[Any, ...]) -> Any:
        """An array with its axes of size 1 repeated."""
        return self._xp.broadcast_to(array, shape)

    def ufunc(self, node: Traced, args: list[Any]) -> Any:
        """The result of an elementwise function or product."""
        name = str(node.function.__name__)
        return getattr(self._xp, _NAMES.get(name, name))(*args)

    def call(self, node: Traced, args: list[Any], shape: tuple[Any, ...]) -> Any:
        """The result of another operation, of a shape."""
        xp, op, x = self._xp, node.op, args[0]
        if op == "concat":  # torch.export saves no empty arrays
            args[0] = [part for part, old in zip(x, node.args[0], strict=True) if old.size]
        if op == "argmax" and node.args[0].dtype == np.bool_:  # which torch refuses
            args[0] = self.cast(x, np.bool_, np.int32)
        if op == "getitem":
            return x[tuple(args[1:])]
        if op == "astype":
            return self.cast(x, node.args[0].dtype, node.dtype)
        if op == "reshape":
            return xp.reshape(x, shape)
        if op == "reduce":
            x = self.cast(x, node.args[0].dtype, node.dtype) if args[1] in ("add", "multiply") else x
            return getattr(xp, REDUCTIONS[args[1]])(x, axis=args[2], keepdims=args[3])
        if op == "where":
            return xp.where(
                x, *(self.cast(a, b.dtype, node.dtype) for a, b in zip(args[1:], node.args[1:], strict=True))
            )
        if op == "accumulate":
            return xp.cumulative_sum(x, axis=args[1])
        if op == "erf":
            return self.cast(xp.erf(x), node.args[0].dtype, node.dtype)
        if op == "pad":
            for axis, (before, after) in enumerate(args[1]):
                sizes = [size for size in (before, None, after) if size != 0]
                parts = [x if n is None else xp.zeros_like(self._take(x, np.zeros(n, np.int64), axis)) for n in sizes]
                x = xp.concat(parts, axis=axis)
            return x
        if op == "windows":
            for axis, places in window_places(node):
                x = self._take(x, places, axis)
            return xp.permute_dims(x, WINDOW_AXES)
        options = {name: self._argument(value, value, {}) for name, value in node.options.items()}
        return getattr(xp, op)(*args, **options)

    def _take(self, x: Any, places: np.ndarray, axis: int) -> Any:
        return x[(*(slice(None),) * axis, self.constant(places))]


WINDOW_AXES = (0, 1, 3, 2, 4, 5)
"""Order of the axes that remain when both of an image's are taken by ``window_places``."""


def window_places(node: Traced) -> list[tuple[int, np.ndarray]]:
    """For each axis of an image its position, and the places under a kernel at every stop, ``[stops, size]``."""
    _, sizes, strides = node.args
    stops = [np.arange(number)[:, None] * stride for number, stride in zip(node.shape[1:3], strides, strict=True)]
    return [(axis, stop + np.arange(size)) for axis, stop, size in zip((1, 3), stops, sizes, strict=True)]
