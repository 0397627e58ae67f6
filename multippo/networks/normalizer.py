"""Running normalisation of observations or activations."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from multippo.arguments import check_leaves, check_number, describe, is_integer
from multippo.networks.activations import clip
from multippo.networks.core.binding import Variable
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.trees import map_named, named_leaves

_BASE = 2**30


class Normalizer(StatefulModule):
    """Scales every feature to mean 0 and standard deviation 1 by statistics of all inputs of past rollouts.

    ``y = clip((x - mean) / sqrt(max(M2 / count, epsilon)), -clip, clip)``; before the first update ``y = x``, clipped.
    The statistics move only in ``update_statistics``, by Chan et al.'s merge of batched moments (1979, equations
    1.4-1.5; Welford's update for batches), so that replay uses those of the rollout.

    Integers are normalised as the floating-point numbers of their value. A leaf whose shape is given as None passes
    through as it is and enters no statistic: a mask, or an image of ``uint8`` that ``Scale(1 / 255)`` takes to [0, 1].

    Args:
        shape: Shape of one input without batch axis: an int or a tuple of ints; for tree inputs a dict or a tuple of
            such (nested), in which None leaves a leaf alone. A tuple of ints is a shape, so two numbers side by side
            are ``((), ())``.
        epsilon: Least variance.
        clip: Largest magnitude of an output, or None.

    Raises:
        TypeError: If ``shape`` is something else.
        ValueError: If ``epsilon`` or ``clip`` is not above 0, or ``shape`` holds no number to normalise.
    """

    def __init__(self, shape: Any, *, epsilon: float = 1e-8, clip: float | None = 10.0) -> None:
        self.epsilon = check_number("Normalizer", "epsilon", epsilon, above=0)
        self.clip = None if clip is None else check_number("Normalizer", "clip", clip, above=0)
        held = _named_shapes(shape)
        shapes = {name: size for name, size in held.items() if size is not None}
        # A leaf may hold no number, as an empty entry of a Dict observation does; all of them may not.
        if not any(math.prod(size) for size in shapes.values()):
            raise ValueError(f"Normalizer(shape={shape!r}) is not possible: expected at least one number in it.")
        self.names = tuple(shapes)
        self.passed = tuple(name for name in held if name not in shapes)
        mean, m2 = ({name: Variable(np.zeros(size)) for name, size in shapes.items()} for _ in range(2))
        self.mean, self.M2 = mean.get("", mean), m2.get("", m2)
        # Two words, high and low in base 2**30: one int32 would overflow, one float32 stand still at 2**24.
        self.counter = Variable(np.zeros(2, np.int32))

    @property
    def count(self) -> int:
        """Number of samples behind the statistics."""
        high, low = (int(word) for word in self.engine.to_numpy(self.counter[...]))
        return high * _BASE + low

    @property
    def variance(self) -> Any:
        """The (population) variance of every feature, ones before the first update; a dict for tree inputs."""
        found = {name: self._variance(name) for name in self.names}
        return found[""] if self.names == ("",) else found

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Normalises ``[B, *shape]``, leaf by leaf."""
        if self.names == ("",):
            if not hasattr(x, "shape"):
                shape = tuple(self.variance.shape)
                raise TypeError(f"Normalizer got {describe(x)}; expected an array, a batch of {shape}.")
            return StatefulModuleOutput(state, self._normalize("", x), rollout_extras=x)
        check_leaves("Normalizer", x, [*self.names, *self.passed])
        passed = self.passed
        y = map_named(lambda name, leaf: leaf if name in passed else self._normalize(name, leaf), x)
        return StatefulModuleOutput(
            state,
            y,
            rollout_extras=map_named(lambda name, leaf: None if name in passed else leaf, x) if passed else x,
        )

    def update_statistics(self, rollout_extras: Any, valid: Any = None) -> None:
        """Merges the moments of a rollout's inputs ``[T, B, *shape]``."""
        xp = self.xp
        leaves = named_leaves(rollout_extras)
        lead = leaves[0][1].shape[:2]
        dtype = self._variable(self.mean, self.names[0])[...].dtype
        if valid is None:
            weight = xp.ones(lead, dtype=dtype, device=getattr(leaves[0][1], "device", None))
        else:
            weight = xp.astype(valid, dtype)
        words = self.counter[...].dtype
        # A sum of integers is of the widest type by default, and would not fit back into the counter.
        added = xp.sum(xp.astype(weight, words), dtype=words)
        before = self._count_as(dtype)
        size = xp.astype(added, dtype)
        total = xp.maximum(before + size, xp.ones_like(size))
        for name, x in leaves:
            self._merge(name, xp.astype(x, dtype), weight, before, size, total)
        low = self.counter[...][1] + added
        self.counter[...] = xp.stack((self.counter[...][0] + low // _BASE, low % _BASE))

    def _merge(self, name: str, x: Any, weight: Any, before: Any, size: Any, total: Any) -> None:
        xp = self.xp
        weight = xp.reshape(weight, weight.shape + (1,) * (x.ndim - 2))
        # An entry to leave out may hold anything, NaN included.
        x = xp.where(weight > 0, x, xp.zeros_like(x))
        some = xp.maximum(size, xp.ones_like(size))
        mean, m2 = self._variable(self.mean, name), self._variable(self.M2, name)
        batch_mean = xp.sum(x * weight, axis=(0, 1)) / some
        batch_m2 = xp.sum(weight * (x - batch_mean) ** 2, axis=(0, 1))
        delta = batch_mean - mean[...]
        new_m2 = m2[...] + batch_m2 + delta**2 * (before * size / total)
        new_mean = mean[...] + delta * (size / total)
        # A number whose square overflows would make every later output 0, so that feature's moments stay as they were.
        fits = xp.isfinite(new_m2) & xp.isfinite(new_mean)
        # The count grows for all features, and m2 with it, so that the variance stays; 1 where nothing is known yet.
        same = xp.where(before > 0, m2[...] * (total / xp.maximum(before, xp.ones_like(before))), total)
        m2[...] = xp.where(fits, new_m2, same)
        mean[...] = xp.where(fits, new_mean, mean[...])

    def _normalize(self, name: str, x: Any) -> Any:
        mean = self._variable(self.mean, name)[...]
        if x.shape[x.ndim - mean.ndim :] != mean.shape or x.ndim <= mean.ndim:
            at = f"[{name!r}]" if name else ""
            raise ValueError(
                f"Normalizer got an input{at} of shape {tuple(x.shape)}; expected a batch of {tuple(mean.shape)}."
            )
        xp = self.xp
        variance = xp.clip(self._variance(name), self.epsilon, None)
        # No division of x: XLA makes a product of it in a rollout, but not where a gradient flows through it.
        y = (xp.astype(x, mean.dtype) - mean) * (1.0 / xp.sqrt(variance))
        return y if self.clip is None else clip(self.engine, y, -self.clip, self.clip)

    def _variance(self, name: str) -> Any:
        m2 = self._variable(self.M2, name)[...]
        count = self._count_as(m2.dtype)
        return self.xp.where(count > 0, m2 / self.xp.clip(count, 1.0, None), self.xp.ones_like(m2))

    def _count_as(self, dtype: Any) -> Any:
        words = self.xp.astype(self.counter[...], dtype)
        return words[0] * float(_BASE) + words[1]

    def _variable(self, held: Any, name: str) -> Any:
        return held if name == "" else held[name]


def _named_shapes(shape: Any, name: str = "") -> dict[str, tuple[int, ...] | None]:
    """The shapes in a tree, by the names of ``named_leaves``; None for a leaf left alone."""
    if shape is None and name:
        return {name: None}
    if is_integer(shape, 0):
        return {name: (int(shape),)}
    if isinstance(shape, tuple | list) and all(is_integer(size, 0) for size in shape):
        return {name: tuple(int(size) for size in shape)}
    if not isinstance(shape, Mapping | tuple | list) or not shape:
        raise TypeError(
            f"Normalizer(shape={shape!r}) is not possible: expected an int of at least 0, a tuple of ints, or a dict."
        )
    entries = sorted(shape.items(), key=lambda entry: str(entry[0])) if isinstance(shape, Mapping) else enumerate(shape)
    found: dict[str, tuple[int, ...] | None] = {}
    for key, below in entries:
        found |= _named_shapes(below, f"{name}.{key}" if name else str(key))
    return found
