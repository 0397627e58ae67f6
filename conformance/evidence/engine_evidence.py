"""Numbers that one engine draws, and its arrays after others were written to."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from ..specimens.specimen import Specimen
from .engines import engine_at, to_host

# More than 100 numbers, since small arrays are copied anyway.
_SIZE = 1000


def draw_words(random: Any, counts: Any) -> dict[str, Any]:
    """Integers from given keys; ``counts`` are 0 to 5."""
    keys = random.split(random.key(2**40 + 7), 6)
    return {
        "split": keys,
        "fold_in": random.fold_in(keys, counts),
        "bits": random.bits(keys, (3, 2)),
        "randint": random.randint(keys, (5,), 2, 9),
        "permutation": random.permutation(keys, 11),
    }


def draw_numbers(random: Any) -> dict[str, Any]:
    """Floating-point numbers from given keys."""
    keys = random.split(random.key(8), 6)
    return {name: getattr(random, name)(keys, (7,)) for name in ("uniform", "normal", "gumbel")}


class EngineEvidence:
    """Draws of one engine from given keys, and its arrays after writes to the NumPy arrays they were made of.

    Args:
        specimen: An engine by itself, of which only the name matters.
        backend: The engine.
        precision: "float32" or "float64".
    """

    def __init__(self, specimen: Specimen, backend: str, precision: str) -> None:
        self.specimen, self.backend, self.precision = specimen, backend, precision

    @functools.cached_property
    def words(self) -> dict[str, np.ndarray]:
        """Integers, which are equal to the last bit."""
        with engine_at(self.backend, self.precision) as engine:
            drawn = to_host(engine, draw_words(engine.random, engine.asarray(np.arange(6))))
            return {name: value.astype(np.int64) for name, value in drawn.items()}

    @functools.cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """Floating-point numbers, which are equal up to rounding."""
        with engine_at(self.backend, self.precision) as engine:
            return to_host(engine, draw_numbers(engine.random))

    def zeros_after_write(self) -> dict[str, Any]:
        """Arrays of zeros by the method that made them, after their sources were written to."""
        with engine_at(self.backend, self.precision) as engine:
            sources = [np.zeros(_SIZE, self.precision) for _ in range(3)]
            made = {"asarray": engine.asarray(sources[0]), "stack_time": engine.stack_time(sources[1:])}
            for source in sources:
                source[:] = 1.0
            return to_host(engine, made)
