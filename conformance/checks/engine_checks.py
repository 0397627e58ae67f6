"""Levels 1 and 2 for an engine's arrays and random numbers, on which everything else rests."""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.random import host

from ..evidence.deviations import Deviation, compare
from ..evidence.engine_evidence import EngineEvidence, draw_numbers, draw_words
from .between_checks import BETWEEN
from .check import Check


def _words(evidence: EngineEvidence) -> Deviation:
    expected = {name: value.astype(np.int64) for name, value in draw_words(host, np.arange(6)).items()}
    return compare(evidence.words, expected, axes=())


def _copies(evidence: EngineEvidence) -> Deviation:
    for made_by, array in evidence.zeros_after_write().items():
        if np.any(array):
            shared = "shares memory with NumPy, where an environment writes its next observation"
            return Deviation(np.inf, made_by, shared)
    return Deviation(0.0)


def _same(name: str) -> Any:
    def measure(got: EngineEvidence, expected: EngineEvidence) -> Deviation:
        return compare(getattr(got, name), getattr(expected, name), axes=())

    return measure


ENGINE_CHECKS: tuple[Check, ...] = (
    Check("engine/copies", _copies, exact=True),
    Check("random/words", _words, exact=True),
    Check("random/numbers", lambda evidence: compare(evidence.numbers, draw_numbers(host), axes=())),
)

ENGINES_BETWEEN: tuple[Check, ...] = (
    Check("random/words", _same("words"), exact=True),
    Check("random/numbers", _same("numbers"), tolerance=BETWEEN),
)
