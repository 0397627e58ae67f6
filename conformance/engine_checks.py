"""Levels 1 and 2 for an engine's arrays and random numbers, on which everything else rests."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from multippo.random import host
from multippo.trees import tree_map

from .between_checks import BETWEEN
from .checks import Check
from .engines import engine_at, to_host
from .measure import Deviation, compare
from .specimens import EngineSpecimen

__all__ = ["ENGINES_BETWEEN", "ENGINE_CHECKS", "ENGINE_SPECIMEN", "EngineEvidence"]

ENGINE_SPECIMEN = EngineSpecimen(name="arrays and random numbers")

# More than 100 numbers: small arrays are copied anyway.
_SIZE = 1000


class EngineEvidence:
    """What one engine draws from given keys, and what becomes of its arrays when others are written to.

    Args:
        specimen: Of which there is one.
        backend: The engine.
        precision: "float32" or "float64".
    """

    def __init__(self, specimen: EngineSpecimen, backend: str, precision: str) -> None:
        self.specimen, self.backend, self.precision = specimen, backend, precision

    @functools.cached_property
    def words(self) -> dict[str, np.ndarray]:
        """Integers, which are equal to the last bit."""
        with engine_at(self.backend, self.precision) as engine:
            random = engine.random
            keys = random.split(random.key(2**40 + 7), 6)
            drawn = {
                "split": keys,
                "fold_in": random.fold_in(keys, engine.asarray(np.arange(6))),
                "bits": random.bits(keys, (3, 2)),
                "randint": random.randint(keys, (5,), 2, 9),
                "permutation": random.permutation(keys, 11),
            }
            return {name: value.astype(np.int64) for name, value in to_host(engine, drawn).items()}

    @functools.cached_property
    def numbers(self) -> dict[str, np.ndarray]:
        """Floating-point numbers, which are equal up to rounding."""
        with engine_at(self.backend, self.precision) as engine:
            random = engine.random
            keys = random.split(random.key(8), 6)
            drawn = {name: getattr(random, name)(keys, (7,)) for name in ("uniform", "normal", "gumbel")}
            return to_host(engine, drawn)

    def array_after_write(self) -> np.ndarray:
        """An engine's array of zeros, after the NumPy array that it was made of has been written to."""
        with engine_at(self.backend, self.precision) as engine:
            source = np.zeros(_SIZE, self.precision)
            array = engine.asarray(source)
            source[:] = 1.0
            return to_host(engine, array)

    def stack_after_write(self) -> np.ndarray:
        """A stack of zeros, after the NumPy arrays that it was made of have been written to."""
        with engine_at(self.backend, self.precision) as engine:
            sources = [{"obs": np.zeros(_SIZE, self.precision)} for _ in range(2)]
            stack = engine.stack_time(sources)
            for source in sources:
                source["obs"][:] = 1.0
            return to_host(engine, stack)["obs"]


def _words(evidence: EngineEvidence) -> Deviation:
    keys = host.split(host.key(2**40 + 7), 6)
    expected = {
        "split": keys,
        "fold_in": host.fold_in(keys, np.arange(6)),
        "bits": host.bits(keys, (3, 2)),
        "randint": host.randint(keys, (5,), 2, 9),
        "permutation": host.permutation(keys, 11),
    }
    return compare(evidence.words, tree_map(lambda x: x.astype(np.int64), expected), axes=())


def _numbers(evidence: EngineEvidence) -> Deviation:
    keys = host.split(host.key(8), 6)
    expected = {name: getattr(host, name)(keys, (7,)) for name in ("uniform", "normal", "gumbel")}
    return compare(evidence.numbers, expected, axes=())


def _copies(evidence: EngineEvidence) -> Deviation:
    for what, array in (("asarray", evidence.array_after_write()), ("stack_time", evidence.stack_after_write())):
        if np.any(array):
            return Deviation(np.inf, what, "shares memory with NumPy, where an environment writes its next observation")
    return Deviation(0.0)


def _same(name: str) -> Any:
    def measure(got: EngineEvidence, expected: EngineEvidence) -> Deviation:
        return compare(getattr(got, name), getattr(expected, name), axes=())

    return measure


ENGINE_CHECKS: tuple[Check[EngineEvidence], ...] = (
    Check("engine/copies", _copies, exact=True),
    Check("random/words", _words, exact=True),
    Check("random/numbers", _numbers),
)

ENGINES_BETWEEN: tuple[Check[EngineEvidence], ...] = (
    Check("random/words", _same("words"), exact=True),
    Check("random/numbers", _same("numbers"), tolerance=BETWEEN),
)
