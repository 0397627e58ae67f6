"""Inputs and weights that ``check_module`` runs a module with."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.trees import named_leaves, tree_map

__all__ = ["check_sample", "drawn_around", "stir", "suite"]


def suite(part: str) -> Any:
    """A module of the conformance suite, which is in another folder until multippo is installed."""
    return importlib.import_module(f"multippo.conformance.{part}")


def check_sample(sample_input: Any) -> None:
    """Refuses what is no tree of numbers.

    Raises:
        TypeError: If ``sample_input`` has no leaf, or one that is no number and no array of numbers.
    """
    leaves = named_leaves(sample_input)
    wrong = [
        f"{leaf!r} at {name!r}" if name else repr(leaf)
        for name, leaf in leaves
        if isinstance(leaf, str | bytes) or np.asarray(leaf).dtype.kind not in "fiub"
    ]
    if wrong or not leaves:
        raise TypeError(
            f"check_module got the sample_input {wrong[0] if wrong else repr(sample_input)}; expected an array of "
            "numbers, or a tree of them: one environment's input, such as np.zeros(3)."
        )


def stir(module: Any) -> None:
    """Moves trained parameters by a tenth."""
    from multippo.networks.weights.portable import load_portable, to_portable

    rng = np.random.default_rng(0)
    trained = {name for name, leaf in module.engine.leaves(module).items() if leaf.trained}
    arrays = to_portable(module)
    moved = {name: arrays[name] + 0.1 * rng.normal(size=arrays[name].shape) for name in trained}
    load_portable(module, {**arrays, **{name: moved[name].astype(arrays[name].dtype) for name in sorted(trained)}})


def drawn_around(sample_input: Any) -> Callable[[Any], Any]:
    """Inputs ``[T, B, ...]`` like an example."""
    environment = suite("specimens.scripted_environment")

    def draw(key: Any) -> Any:
        rng = np.random.default_rng(np.asarray(key))

        def like(example: Any) -> np.ndarray:
            value = np.asarray(example)
            shape = (environment.NUM_STEPS, environment.NUM_ENVS, *value.shape)
            if value.dtype.kind == "f":
                return (value + rng.normal(size=shape)).astype(value.dtype)
            if value.dtype.kind == "b":
                return rng.random(shape) < 0.5
            low, high = (value.min(), value.max()) if value.size else (0, 0)
            return rng.integers(low, high, shape, endpoint=True).astype(value.dtype)

        return tree_map(like, sample_input)

    return draw
