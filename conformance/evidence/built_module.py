"""Modules on one engine at one precision, with known numbers in their arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import multippo as mp

from .engines import engine_at, to_engine, to_host


class BuiltModule:
    """Module of a specimen on one engine, which has the same numbers again after every run.

    Args:
        specimen: Builder of the module.
        backend: The engine.
        precision: "float32" or "float64".
        prepare: Function that writes the numbers into the module.

    Attributes:
        module: The module.
        arrays: Numbers of the module, by portable name.
        trained: Names of the arrays that are trained.
        definition: Structure of the module, for ``engine.merge``.
        arrays_after: Numbers after a run that should write to none, by the run: "rollout" or "replay".
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
        """Context of every run: the engine at the precision."""
        return engine_at(self.backend, self.precision)

    def put(self, tree: Any) -> Any:
        """NumPy arrays as the engine's."""
        return to_engine(self.engine, tree, self.precision)

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles a whole programme where the engine can."""
        return self.engine.jit(function)

    def programme(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles ``run(module, *arguments)`` for ``evaluate``."""
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
        """Weights a little changed, as in the middle of an update."""
        return {name: value * 1.1 if name in self.trained else value for name, value in self.arrays.items()}

    def arrays_then_restored(self) -> dict[str, np.ndarray]:
        """Returns the numbers of this moment, and puts those of the start back."""
        after = mp.to_portable(self.module)
        mp.load_portable(self.module, self.arrays)
        return after
