"""Modules on one engine at one precision, with known numbers in their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import multippo as mp

from .engines import engine_at, to_engine, to_host


class BuiltModule:
    """The module of a specimen on one engine, which has the same numbers again after everything that is run.

    Args:
        specimen: Builds it.
        backend: The engine.
        precision: "float32" or "float64".
        prepare: Writes the numbers into it.

    Attributes:
        module: The module.
        arrays: Its numbers, by portable name.
        trained: Names of those that are trained.
        definition: Its structure, for ``engine.merge``.
        arrays_after: Its numbers after a run that should write to none, by the run: "rollout" or "replay".
    """

    def __init__(self, specimen: Any, backend: str, precision: str, prepare: Callable[[Any], None]) -> None:
        self.specimen, self.backend, self.precision = specimen, backend, precision
        with self.at() as engine:
            self.engine = engine
            self.module: Any = specimen.build()
            prepare(self.module)
            self.arrays = mp.to_portable(self.module)
            self.trained = [name for name, leaf in engine.leaves(self.module).items() if leaf.trained]
            self.definition = engine.split(self.module).definition
        self.arrays_after: dict[str, dict[str, np.ndarray]] = {}

    def at(self) -> Any:
        """The context everything is run in."""
        return engine_at(self.backend, self.precision)

    def put(self, tree: Any) -> Any:
        """NumPy arrays as the engine's."""
        return to_engine(self.engine, tree, self.precision)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """A whole programme, compiled where the engine can."""
        return self.engine.jit(function)

    def programme(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """``run(module, *arguments)``, compiled, for ``evaluate``."""
        return self.compiled(lambda p, v, *arguments: run(self.engine.merge(self.definition, p, v), *arguments))

    def evaluate(self, programme: Callable[..., Any], *arguments: Any, arrays: Any = None) -> Any:
        """Runs a programme from NumPy trees to NumPy trees, under other ``arrays`` if there are any."""
        with self.at() as engine:
            if arrays is not None:
                mp.load_portable(self.module, arrays)
            split = engine.split(self.module)
            out = to_host(engine, programme(split.params, split.variables, *map(self.put, arguments)))
            after = self.arrays_then_restored()
            if arrays is None:
                self.arrays_after["replay"] = after
            return out

    @property
    def other_arrays(self) -> dict[str, np.ndarray]:
        """Weights a little off, as in the middle of an update."""
        return {name: value * 1.1 if name in self.trained else value for name, value in self.arrays.items()}

    def arrays_then_restored(self) -> dict[str, np.ndarray]:
        """The numbers as they are now, before those of the start are put back."""
        after = mp.to_portable(self.module)
        mp.load_portable(self.module, self.arrays)
        return after
