"""Layers without weights or a carry that rearrange trees: take entries out, flatten, scale."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import optree

from multippo.arguments import check_leaves, check_size, describe, is_number
from multippo.networks.core.error_paths import call_foreign
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.trees import canonical_leaves, map_named

Spec = str | int | tuple[str | int, ...] | Callable[[Any], Any] | Mapping[str, Any]
"""An entry's key, a path of keys, a function of the whole input, or a dict of these."""


class Filter(StatefulModule):
    """Takes entries out of a tree; all others go no further.

    An entry is given by a key (``"policy"``), a path of keys and positions (``("robot", "arm", 0)``), a function of the
    whole input, or a dict of these (nested), of which a dict with the same keys is made.

        Filter("policy")                                     the entry itself
        Filter(state="policy", goal=("privileged", "goal"))  {"state": ..., "goal": ...}

    Args:
        spec: Entry or dict of entries to take; a dict for keys that are not identifiers.
        **keywords: Entries to take, as keyword arguments.

    Raises:
        ValueError: If neither ``spec`` nor keywords are given, or both.
        TypeError: If a spec is something else, a dict or path is empty, or several specs are given without a name.
    """

    def __init__(self, spec: Spec | None = None, /, *more: Any, **keywords: Spec) -> None:
        if more:
            raise TypeError(
                f"Filter got {1 + len(more)} arguments without a name: write a path as one tuple, "
                "Filter(('robot', 'arm')), or name several entries, Filter(arm=..., goal=...)."
            )
        if (spec is None) == (not keywords):
            raise ValueError("Filter takes either one spec, such as 'policy', or keyword arguments, and not both.")
        self.spec = _freeze(keywords if spec is None else spec)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Takes the entries out of a tree, unchanged."""
        return StatefulModuleOutput(state, _take(self.spec, x))


class Flattener(StatefulModule):
    """Joins all leaves of a tree to one array ``[B, F]``, or those of each subtree below some level.

    Entries of dicts come in the order of their sorted keys, whichever order they were given in, those of tuples in
    theirs; each leaf is flattened (row-major) and joined on the last axis. Integers, booleans and other floating-point
    types become numbers of the engine's floating-point type.

        Flattener()                     {"a": {"p": [B, 4], "t": [B, 2, 3]}, "b": [B, 6]}  to  [B, 16]
        Flattener(preserve_levels=1)    the same  to  {"a": [B, 10], "b": [B, 6]}

    Args:
        preserve_levels: Number of levels of dicts, lists and tuples, counted from the top, that are kept.

    Raises:
        ValueError: If ``preserve_levels`` is not an integer of at least 0.
    """

    def __init__(self, preserve_levels: int = 0) -> None:
        self.preserve_levels = check_size("Flattener", "preserve_levels", preserve_levels, least=0)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """A tree of ``[B, ...]`` to ``[B, F]``, or to a tree of them."""
        return StatefulModuleOutput(state, self._flat(x, self.preserve_levels))

    def _flat(self, x: Any, levels: int) -> Any:
        if levels:
            if optree.tree_is_leaf(x, none_is_leaf=True):
                raise ValueError(
                    f"Flattener(preserve_levels={self.preserve_levels}) got {describe(x)} on level "
                    f"{self.preserve_levels - levels}; expected dicts, lists or tuples there."
                )
            is_entry = lambda node: node is not x  # noqa: E731
            return optree.tree_map(lambda entry: self._flat(entry, levels - 1), x, is_leaf=is_entry)
        leaves = canonical_leaves(x)
        if not leaves or not all(getattr(leaf, "shape", ()) for leaf in leaves):
            raise ValueError(
                f"Flattener got {describe(x)}; expected a tree with at least one array, all with a batch axis."
            )
        # Not -1, since a leaf may hold no number.
        sizes = [(leaf.shape[0], math.prod(leaf.shape[1:])) for leaf in leaves]
        flat = [self.xp.reshape(as_float(self, leaf), size) for leaf, size in zip(leaves, sizes, strict=True)]
        return flat[0] if len(flat) == 1 else self.xp.concat(flat, axis=-1)


class Scale(StatefulModule):
    """Multiplies by a constant: ``y = factor x``, leaf by leaf, in the engine's floating-point type.

    Args:
        factor: Number for every leaf of the input, or a tree (dicts, tuples) of numbers with the input's structure,
            in which None leaves a leaf as it is: ``Scale({"camera": 1 / 255, "joints": None})``.

    Raises:
        TypeError: If ``factor`` is neither, holds no number, or one that is not finite.
    """

    def __init__(self, factor: Any) -> None:
        self.factors = _freeze_factors(factor)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, ...]`` to the same shape, leaf by leaf."""
        if not isinstance(self.factors, tuple):
            return StatefulModuleOutput(state, map_named(lambda _, leaf: self._scaled(leaf, self.factors), x))
        factors = dict(self.factors)
        check_leaves("Scale", x, list(factors))
        return StatefulModuleOutput(state, map_named(lambda name, leaf: self._scaled(leaf, factors[name]), x))

    def _scaled(self, leaf: Any, factor: Any) -> Any:
        return leaf if factor is None else as_float(self, leaf) * factor


class MoveAxis(StatefulModule):
    """Moves an axis of arrays, for instance the channels of images ``[B, C, H, W]`` to ``[B, H, W, C]``.

    Args:
        source: Axis that is moved, counted without the batch's; from the end if it is below 0.
        destination: Its new place.

    Raises:
        ValueError: If an array has fewer axes.
    """

    def __init__(self, source: int = 0, destination: int = -1) -> None:
        self.source, self.destination = source, destination

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """``[B, ...]`` to the same sizes in another order."""
        axes = getattr(x, "ndim", 0) - 1
        if not all(-axes <= axis < axes for axis in (self.source, self.destination)):
            raise ValueError(
                f"MoveAxis({self.source}, {self.destination}) got {describe(x)}; expected an array with these axes "
                "behind the batch's."
            )
        order = list(range(1, axes + 1))
        order.insert(self.destination % axes, order.pop(self.source))
        return StatefulModuleOutput(state, self.xp.permute_dims(x, (0, *order)))


def as_float(module: StatefulModule, x: Any) -> Any:
    """An array of any number type in the engine's floating-point type.

    Raises:
        TypeError: If ``x`` is not an array of the engine.
    """
    dtype = module.engine.float_dtype
    try:
        return x if x.dtype == dtype else module.xp.astype(x, dtype)
    except AttributeError:
        raise TypeError(
            f"{type(module).__name__} got a {type(x).__module__}.{type(x).__name__}; expected an array of the "
            f"{module.engine.name} engine, such as network.engine.asarray(x) makes it."
        ) from None


def _freeze(spec: Any, path: str = "") -> tuple[str, Any]:
    """A spec as hashable tuples, which are part of a module's structure and not of its state."""
    if isinstance(spec, str | int) and not isinstance(spec, bool):
        return ("path", (spec,))
    if isinstance(spec, tuple | list) and spec and all(isinstance(key, str | int) for key in spec):
        return ("path", tuple(spec))
    if isinstance(spec, Mapping) and spec:
        return ("dict", tuple((key, _freeze(value, f"{path}[{key!r}]")) for key, value in spec.items()))
    if callable(spec):
        return ("call", spec)
    raise TypeError(
        f"Filter{path} was given {spec!r}; expected a key, a path of keys, a function, or a dict of these; not empty."
    )


def _take(spec: tuple[str, Any], x: Any) -> Any:
    kind, value = spec
    if kind == "dict":
        return {key: _take(sub, x) for key, sub in value}
    if kind == "call":
        return call_foreign("Filter", value, x)
    for depth, key in enumerate(value):
        try:
            x = x[key] if isinstance(x, Mapping | tuple | list) else {}[key]
        except (KeyError, IndexError, TypeError):
            at = f" at {value[:depth]}" if depth else ""
            raise ValueError(f"Filter got {describe(x)}{at}; expected it to have the entry {key!r}.") from None
    return x


def _freeze_factors(factor: Any) -> Any:
    if is_number(factor):
        return float(factor)
    paths, values, _ = optree.tree_flatten_with_path(factor, none_is_leaf=True)
    if all(value is None for value in values) or not all(value is None or is_number(value) for value in values):
        raise TypeError(f"Scale({factor!r}) is not possible: expected a finite number, or a tree of such and None.")
    names = [".".join(map(str, path)) for path in paths]
    return tuple((name, None if value is None else float(value)) for name, value in zip(names, values, strict=True))
