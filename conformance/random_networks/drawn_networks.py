"""Random networks as specimens: their checks, and the simplest network that fails in the same way."""

from __future__ import annotations

import dataclasses
import importlib.util
import time
from collections.abc import Iterator, Sequence

import numpy as np

from multippo.trees import tree_leaves

from ..checks.between_checks import MODULES_BETWEEN
from ..checks.check import Check, Result, perform
from ..checks.module_checks import MODULE_CHECKS
from ..evidence.deviations import Deviation, portable_deviation
from ..evidence.module_evidence import ModuleEvidence
from ..specimens.specimen import ModuleSpecimen
from .composition import Composition, Description, parts

EVERY_RUN: tuple[int, ...] = (83, 132, 181, 236, 250, 302, 413, 416, 469)
"""Numbers of the random networks checked by default: small ones, with every kind of module together.

A test checks that with the version of hypothesis in constraints.txt; other versions may draw other networks, as does
any change of ``architect``. Numbers are then chosen again among those that ``make test-nightly`` checks: draw all,
which takes seconds, and look for the fewest samplers, codes and gradients (of every fourth) that have every kind.
"""

LEFT_OUT = "Random networks need hypothesis, which is not installed: pip install hypothesis"
"""Line for reports that leave random networks out, and for the error of asking for them."""


def _may_stand_still(part: Description) -> bool:
    """True if a carry may stay as it is: inputs were all zeros, or a ReLU's below 0."""
    return part[0] in ("Delay", "PopulationGraph") or (part[0] == "RNN" and "relu" in part)


@dataclasses.dataclass(frozen=True)
class RandomNetwork(ModuleSpecimen):
    """A random network.

    Attributes:
        composition: Description of the network.
        number: Seed from which the network is drawn.
        wrong: Kind in the network that is wrong on purpose, if there is one.
    """

    _: dataclasses.KW_ONLY
    composition: Composition
    number: int
    wrong: str | None = None


def can_draw() -> bool:
    """True if hypothesis is installed."""
    return importlib.util.find_spec("hypothesis") is not None


def random_networks(
    count: int | None = None, seed: int | None = None, wrong: str | None = None
) -> Iterator[RandomNetwork]:
    """Yields random networks, the same ones for the same numbers.

    Args:
        count: Size of the range of numbers; None: as many as ``EVERY_RUN`` has.
        seed: Number of the first one; None: 0, or those of ``EVERY_RUN`` where there is no ``count`` either.
        wrong: A kind that is wrong on purpose; every network then has one such module.

    Raises:
        ImportError: If hypothesis is not installed.
    """
    first = seed or 0
    numbers: Sequence[int] = range(first, first + (len(EVERY_RUN) if count is None else count))
    if count is None and seed is None:
        numbers = EVERY_RUN
    if not numbers:
        return
    if not can_draw():
        raise ImportError(LEFT_OUT)
    from .drawing import draw_network

    for number in numbers:
        composition = draw_network(number, wrong)
        # Compiling a gradient takes longest of all.
        specimen = composition.specimen(f"random network {number}", differentiated=number % 4 == 0)
        yield RandomNetwork(**vars(specimen), composition=composition, number=number, wrong=wrong)


def checks_of(network: RandomNetwork, level: int, precision: str) -> list[Check]:
    """Checks that a network is to pass.

    All are made in double precision: in single precision a deep random network may blow up a rounding error beyond any
    bound. Every fourth network has to keep the rules of the protocol in single precision as well.
    """
    if precision == "float32" and (level == 2 or network.number % 4 != 1):
        return []
    # Numbers that a Filter or a graph throws away are used by nothing.
    left_out = {"extras/used"}
    if any(_may_stand_still(part) for part in parts(network.composition.network)):
        left_out.add("carry/moves")
    return [
        check
        for check in (ALONE if level == 1 else BETWEEN)
        if check.applies(network) and precision in check.precisions and check.name not in left_out
    ]


def _in_proportion(check: Check) -> Check:
    """Check with deviations relative to the network's largest output."""

    def measure(*evidence: ModuleEvidence) -> Deviation:
        found = check.measure(*evidence)
        return found if check.exact else dataclasses.replace(found, worst=found.worst / _largest(evidence[-1]))

    return dataclasses.replace(check, measure=measure)


def _largest(evidence: ModuleEvidence) -> float:
    """Largest finite magnitude in an unroll, or 1 where all are below."""
    unrolled = evidence.stepped
    leaves = [x for x in tree_leaves((unrolled.over_time, unrolled.next_state)) if x.dtype.kind == "f"]
    return max((float(np.max(np.abs(x), where=np.isfinite(x), initial=1.0)) for x in leaves), default=1.0)


def _gradients_apart(got: ModuleEvidence, expected: ModuleEvidence | None = None) -> Deviation:
    """Distance from another engine's gradient, or by steps, in proportion to the largest number of any gradient.

    No gradient need reach what a Filter throws away.
    """
    other = got.gradient(step_by_step=True) if expected is None else expected.gradient(step_by_step=False)
    found = portable_deviation(got.gradient(step_by_step=False), other)
    largest = max((float(np.max(np.abs(x), initial=1.0)) for x in other.values()), default=1.0)
    return dataclasses.replace(found, worst=found.worst / largest)


def _adapted(checks: Sequence[Check]) -> tuple[Check, ...]:
    return tuple(
        dataclasses.replace(check, measure=_gradients_apart)
        if check.name.endswith("/gradient")
        else _in_proportion(check)
        for check in checks
    )


ALONE = _adapted(MODULE_CHECKS)
BETWEEN = _adapted(MODULES_BETWEEN)


class Simplifier:
    """Search for the simplest network that fails a check.

    Args:
        seconds: Processor time for all searches of a run together; a fault in a common layer is in many networks.
    """

    def __init__(self, seconds: float = 300.0) -> None:
        self._left = seconds

    def explain(self, result: Result, check: Check, network: RandomNetwork, backends: tuple[str, ...]) -> Result:
        """Result with the simplest network, its fault and the fault's place in the detail."""
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


def examine(composition: Composition, check: Check, backends: tuple[str, ...], precision: str) -> Result:
    """Makes one check of one network.

    Args:
        composition: The network, as in a report of a failure.
        check: One of ``ALONE`` (with one engine) or ``BETWEEN`` (with two).
        backends: The engine, or both.
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
