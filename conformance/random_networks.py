"""Random networks as specimens: their checks, and the simplest network that fails as one of them does."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from multippo.trees import tree_leaves

from .between_checks import MODULES_BETWEEN
from .checks import Check, perform
from .composition import Composition, Description, parts
from .measure import Deviation, Result, portable_deviation
from .module_checks import MODULE_CHECKS
from .module_evidence import ModuleEvidence
from .specimens import ModuleSpecimen

__all__ = [
    "ALONE",
    "BETWEEN",
    "EVERY_RUN",
    "LEFT_OUT",
    "RandomNetwork",
    "Simplifier",
    "can_draw",
    "checks_of",
    "examine",
    "numbers_of",
    "random_networks",
]

EVERY_RUN: tuple[int, ...] = (144, 247, 300, 308, 370, 380, 393, 442, 485, 487)
"""The numbers of those that are checked where no others are asked for: small ones, with every kind of module together.

A test holds them to that with the version of hypothesis in constraints.txt; another may draw others for these numbers,
as does any change of ``architect``. Then they are chosen anew among those that ``make test-nightly`` checks: draw them,
which takes seconds, and look for the fewest samplers, codes and gradients (of every fourth) that have every kind.
"""

LEFT_OUT = "Random networks need hypothesis, which is not installed: pip install hypothesis"
"""Said where they are left out, or asked for in vain."""


def _may_stand_still(part: Description) -> bool:
    """Whether a carry that stays what it is may be no mistake: nothing but zeros came in, or a ReLU was below 0."""
    return part[0] in ("Delay", "PopulationGraph") or (part[0] == "RNN" and "relu" in part)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RandomNetwork(ModuleSpecimen):
    """A random network.

    Attributes:
        composition: What it is.
        number: The seed that it is drawn from.
        wrong: The kind in it that is wrong on purpose, if there is one.
    """

    composition: Composition
    number: int
    wrong: str | None = None


def can_draw() -> bool:
    """Whether hypothesis is installed."""
    return importlib.util.find_spec("hypothesis") is not None


def numbers_of(count: int | None, seed: int | None) -> Sequence[int]:
    """Which networks are meant by how many (None: as many as ``EVERY_RUN`` has), and by the number of the first.

    Without either they are those of ``EVERY_RUN``.
    """
    if count is None and seed is None:
        return EVERY_RUN
    first = seed or 0
    return range(first, first + (len(EVERY_RUN) if count is None else count))


def random_networks(
    count: int | None = None, seed: int | None = None, wrong: str | None = None
) -> Iterator[RandomNetwork]:
    """Random networks, the same ones for the same numbers.

    Args:
        count: How many, with numbers that follow one another; None: as for ``numbers_of``.
        seed: Number of the first one; None: 0, or ``EVERY_RUN`` where there is no ``count`` either.
        wrong: A kind that is wrong on purpose; every network then has one of it.

    Raises:
        ImportError: If hypothesis is not installed.
    """
    numbers = numbers_of(count, seed)
    if not numbers:
        return
    if not can_draw():
        raise ImportError(LEFT_OUT)
    from .drawing import draw_network

    for number in numbers:
        composition = draw_network(number, wrong)
        # To compile a gradient takes longest of all.
        specimen = composition.specimen(f"random network {number}", differentiated=number % 4 == 0)
        fields = {field.name: getattr(specimen, field.name) for field in dataclasses.fields(specimen)}
        yield RandomNetwork(**fields, composition=composition, number=number, wrong=wrong)


def checks_of(network: RandomNetwork, level: int, precision: str) -> Iterator[Check[ModuleEvidence]]:
    """The checks that a network is to pass.

    All of them are made in double precision: in single precision a deep network at random may blow up a rounding error
    beyond any bound. Every fourth network is held to the rules of the protocol in single precision as well.
    """
    if precision == "float32" and (level == 2 or network.number % 4 != 1):
        return
    steady = any(_may_stand_still(part) for part in parts(network.composition.network))
    for check in ALONE if level == 1 else BETWEEN:
        meant = check.applies(network) and precision in check.precisions
        # What a Filter or a graph throws away, nothing uses.
        if meant and check.name != "extras/used" and not (check.name == "carry/moves" and steady):
            yield check


def _in_proportion(check: Check[ModuleEvidence]) -> Check[ModuleEvidence]:
    """The check, with deviations relative to the largest number that comes out of the network."""

    def measure(*evidence: ModuleEvidence) -> Deviation:
        found = check.measure(*evidence)
        return found if check.exact else dataclasses.replace(found, worst=found.worst / _largest(evidence[-1]))

    return dataclasses.replace(check, measure=measure)


def _largest(evidence: ModuleEvidence) -> float:
    """The largest finite magnitude in an unroll, or 1 where all are below."""
    unrolled = evidence.rollout[1]
    leaves = [x for x in tree_leaves((unrolled.over_time, unrolled.next_state)) if x.dtype.kind == "f"]
    return max((float(np.max(np.abs(x), where=np.isfinite(x), initial=1.0)) for x in leaves), default=1.0)


def _gradient_alone(evidence: ModuleEvidence) -> Deviation:
    return _gradients_apart(evidence.gradient(step_by_step=False), evidence.gradient(step_by_step=True))


def _gradient_between(got: ModuleEvidence, expected: ModuleEvidence) -> Deviation:
    return _gradients_apart(got.gradient(step_by_step=False), expected.gradient(step_by_step=False))


def _gradients_apart(got: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> Deviation:
    """Relative to the largest number of any gradient. No gradient need reach what a Filter throws away."""
    found = portable_deviation(got, expected)
    largest = max((float(np.max(np.abs(x), initial=1.0)) for x in expected.values()), default=1.0)
    return dataclasses.replace(found, worst=found.worst / largest)


def _adapted(checks: tuple[Check[ModuleEvidence], ...], gradient: Callable[..., Deviation]) -> Any:
    return tuple(
        dataclasses.replace(check, measure=gradient) if check.name.endswith("/gradient") else _in_proportion(check)
        for check in checks
    )


ALONE: tuple[Check[ModuleEvidence], ...] = _adapted(MODULE_CHECKS, _gradient_alone)
BETWEEN: tuple[Check[ModuleEvidence], ...] = _adapted(MODULES_BETWEEN, _gradient_between)


class Simplifier:
    """Looks for the simplest network that fails a check.

    Args:
        seconds: Of processor time, for all searches of a run together; a fault in a common layer is in many networks.
    """

    def __init__(self, seconds: float = 300.0) -> None:
        self._left = seconds

    def explain(self, result: Result, check: Check[Any], network: RandomNetwork, backends: tuple[str, ...]) -> Result:
        """The result, with the simplest network in its detail, what is wrong with that one, and where."""
        from .drawing import simplest

        found = {repr(network.composition): result}

        def fails(composition: Composition) -> bool:
            again = examine(composition, check, backends, result.precision)
            found[repr(composition)] = again
            return not again.passed and again.crashed == result.crashed

        start = time.process_time()
        simple = simplest(network.number, fails, wrong=network.wrong, seconds=min(120.0, self._left))
        self._left = max(0.0, self._left - (time.process_time() - start))
        least = found[repr(simple)]
        return dataclasses.replace(
            result,
            worst=least.worst,
            where=least.where,
            detail=f"{least.detail or 'it deviates'} (again: --networks 1 --networks-seed {network.number}); "
            f"the simplest network found: {simple!r}",
        )


def examine(composition: Composition, check: Check[Any], backends: tuple[str, ...], precision: str) -> Result:
    """Makes one check of one network.

    Args:
        composition: The network, such as a report of a failure shows it.
        check: One of ``ALONE`` (with one engine) or ``BETWEEN`` (with two).
        backends: The engine, or the two.
        precision: "float32" or "float64".
    """
    specimen = composition.specimen()
    return perform(
        check,
        lambda: tuple(ModuleEvidence(specimen, name, precision) for name in backends),
        level=len(backends),
        subject=specimen.name,
        backend=" against ".join(backends),
        precision=precision,
    )
