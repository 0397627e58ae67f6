"""Calls of a module by ``check_module``: inputs and weights, and checks of its arguments, output and attributes."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from multippo.arguments import describe
from multippo.networks.core.outputs import is_engine_array, wrong_scalars
from multippo.networks.types import StatefulModuleOutput
from multippo.networks.weights.portable import load_portable, to_portable
from multippo.trees import named_leaves, tree_leaves, tree_map


def suite(part: str) -> Any:
    """A module of the conformance suite, which is in another folder until multippo is installed."""
    return importlib.import_module(f"multippo.conformance.{part}")


def check_sample(sample_input: Any) -> None:
    """Raises unless ``sample_input`` is a tree of numbers.

    Raises:
        TypeError: If it has no leaf, or one that is neither a number nor an array of numbers.
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


def takes_three(module: Any) -> bool:
    """Returns True if a module can be called with ``(state, x, rollout_extras)``."""
    neutral = type(module).__mro__[1]
    try:
        inspect.signature(neutral.__call__).bind(module, None, None, None)
    except TypeError:
        return False
    return True


def inspect_output(engine: Any, out: Any, batch: int) -> str | None:
    """The fault of what a call returned, in words, or None.

    Args:
        engine: The module's engine.
        out: What the call returned.
        batch: Number of environments.
    """
    if not isinstance(out, StatefulModuleOutput):
        return f"A call returned a {type(out).__name__}; it must return a StatefulModuleOutput."
    if not tree_leaves(out.output):
        return f"The output is {out.output!r}; expected an array [B, ...], or a tree of them."
    for field in ("output", "rollout_extras"):
        for name, leaf in named_leaves(getattr(out, field)):
            if not is_engine_array(engine, leaf) or tuple(leaf.shape[:1]) != (batch,):
                what = f"{field}{f' {name!r}' if name else ''}"
                return f"The {what} is {describe(leaf)}; expected an array [B, ...] with B = {batch}."
    return wrong_scalars(engine, out.regularization_loss, out.metrics, batch)


def untracked_arrays(own: list[tuple[str, Any]], engine: Any) -> Iterator[tuple[str, str]]:
    """Attributes of a user's own modules that hold real numbers and are neither a Param nor a Variable.

    Args:
        own: The modules by path.
        engine: Theirs.

    Yields:
        Path of the attribute, and what it holds.
    """
    kind = type(engine.zeros((1,)))
    for path, module in own:
        for name, value in vars(module).items():
            entries = value if isinstance(value, list | tuple) else [value]
            held = [entry for entry in entries if isinstance(entry, kind) and "float" in str(entry.dtype)]
            if held and not name.startswith("_"):
                yield f"{path}.{name}" if path else name, describe(held[0])
