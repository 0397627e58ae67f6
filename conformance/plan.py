"""The plan of all cases, each a check of a subject on an engine, and its execution."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from multippo.backends import available_backends, load_engine

from .checks.between_checks import MODULES_BETWEEN, NETWORKS_BETWEEN, TRAINING_BETWEEN
from .checks.check import Check, Result, perform
from .checks.engine_checks import ENGINE_CHECKS, ENGINES_BETWEEN
from .checks.module_checks import MODULE_CHECKS
from .checks.network_checks import NETWORK_CHECKS, TRAINING_CHECKS
from .evidence.engine_evidence import EngineEvidence
from .evidence.engines import choose_reference, supports, trains
from .evidence.module_evidence import ModuleEvidence
from .evidence.network_evidence import NetworkEvidence
from .evidence.training_evidence import TrainingEvidence
from .random_networks.drawn_networks import RandomNetwork, Simplifier, can_draw, checks_of, random_networks
from .specimens.module_specimens import MODULES
from .specimens.mutants import MUTANTS, Mutant
from .specimens.network_specimens import NETWORKS
from .specimens.specimen import ModuleSpecimen, Specimen

LEVELS = (1, 2, 3)
PRECISIONS = ("float32", "float64")

ENGINE = Specimen("arrays and random numbers")
"""Subject of checks of an engine by itself."""

_NETWORKS_HELD = 25
"""Largest number of random networks whose programmes are in memory: those of 500 would fill 10 GiB."""

Kind = type[EngineEvidence] | type[ModuleEvidence] | type[NetworkEvidence] | type[TrainingEvidence]

Subject = tuple[Kind, Any, Sequence[Check]]
"""A kind of evidence, its specimen, and the checks made of the evidence."""


class Evidence:
    """Evidence by kind, specimen, engine and precision, collected at the first request and kept for other checks."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._passing, self._num_passed = "", 0
        self.simplifier = Simplifier()

    def of(self, kind: Kind, specimen: Any, backend: str, precision: str) -> Any:
        """Evidence of one specimen on one engine, the same object at every request."""
        index = (kind, specimen.name, backend, precision)
        self._make_room(specimen)
        if index not in self._held:
            self._held[index] = kind(specimen, backend, precision)
        return self._held[index]

    def _make_room(self, specimen: Any) -> None:
        """Frees the last random network, since there may be hundreds, each with programmes of its own."""
        if isinstance(specimen, RandomNetwork) and specimen.name != self._passing:
            used = {index[2] for index in self._held}
            self._held = {index: value for index, value in self._held.items() if index[1] != self._passing}
            self._passing = specimen.name
            self._num_passed += 1
            # Caches are cleared now and then only: networks share programmes of single operations.
            if self._num_passed % _NETWORKS_HELD == 0:
                for name in used:
                    load_engine(name).clear_caches()


@dataclasses.dataclass(frozen=True)
class Case:
    """Check of one subject on one engine (or two) at one precision.

    Attributes:
        level: 1, 2 or 3.
        check: The check.
        kind: The class of its evidence.
        specimen: The subject.
        backends: The engine; at level 2 followed by the engine to compare with.
        precision: "float32" or "float64".
    """

    level: int
    check: Check
    kind: Kind
    specimen: Any
    backends: tuple[str, ...]
    precision: str

    @property
    def id(self) -> str:
        """Name for reports of test runners."""
        subject = self.specimen.name.replace(", ", "-").replace(" ", "_")
        return f"{self.level}-{self.check.name}-{subject}-{'-'.join(self.backends)}-{self.precision}"

    def run(self, evidence: Evidence) -> Result:
        """Makes the check; returns its result."""
        result = perform(
            self.check,
            lambda: tuple(evidence.of(self.kind, self.specimen, name, self.precision) for name in self.backends),
            level=self.level,
            subject=self.specimen.name,
            backend=" against ".join(self.backends),
            precision=self.precision,
        )
        if self.level == 3:
            return _caught(result)
        if isinstance(self.specimen, RandomNetwork) and not result.passed:
            return evidence.simplifier.explain(result, self.check, self.specimen, self.backends)
        return result


def make_plan(
    backends: Sequence[str] | None = None,
    levels: Sequence[int] = LEVELS,
    precisions: Sequence[str] = PRECISIONS,
    networks: int | None = None,
    networks_seed: int | None = None,
) -> list[Case]:
    """Makes the list of all cases.

    Args:
        backends: Engines under test; None: every one that is installed.
        levels: Some of 1, 2, 3.
        precisions: Some of "float32", "float64"; those that an engine lacks are left out.
        networks: Number of random networks; None: a few, or none where hypothesis is not installed.
        networks_seed: Number of the first random network; None: 0, or the few of ``drawn_networks.EVERY_RUN``.

    Raises:
        ValueError: If a backend, a level or a precision is unknown.
        ImportError: If a backend's package is missing, or hypothesis where random networks are asked for.
    """
    names = list(dict.fromkeys(available_backends() if backends is None else backends))
    for name in names:
        load_engine(name)
    for known, asked in ((LEVELS, levels), (PRECISIONS, precisions)):
        if unknown := [item for item in asked if item not in known]:
            raise ValueError(f"Conformance knows nothing of {unknown}; expected some of {list(known)}.")
    cases = [
        *(case for name in names for p in precisions for case in _alone(name, p, _subjects(p, 1, levels))),
        *(case for p in precisions for case in _between(names, p, _subjects(p, 2, levels))),
    ]
    if 3 in levels:
        cases += [case for name in names for mutant in MUTANTS for case in _mutant(mutant, name, precisions)]
    if networks is None and not can_draw():
        networks = 0
    for network in random_networks(networks, networks_seed):
        for p in precisions:
            alone, between = (
                [(ModuleEvidence, network, checks_of(network, level, p))] if level in levels else [] for level in (1, 2)
            )
            cases += [case for name in names for case in _alone(name, p, alone)]
            cases += _between(names, p, between)
    return cases


def run(
    backends: Sequence[str] | None = None,
    levels: Sequence[int] = LEVELS,
    precisions: Sequence[str] = PRECISIONS,
    *,
    networks: int | None = None,
    networks_seed: int | None = None,
    on_result: Callable[[Result, int, int], None] | None = None,
) -> list[Result]:
    """Makes every check, in order; arguments and errors are those of ``make_plan``.

    ``on_result(result, number, total)`` is called after each check.
    """
    plan, evidence = make_plan(backends, levels, precisions, networks, networks_seed), Evidence()
    results: list[Result] = []
    for number, case in enumerate(plan, start=1):
        results.append(case.run(evidence))
        if on_result is not None:
            on_result(results[-1], number, len(plan))
    return results


def _subjects(precision: str, level: int, levels: Sequence[int]) -> Iterator[Subject]:
    if level not in levels:
        return
    of_engines, of_modules, of_networks, of_training = (
        (ENGINE_CHECKS, MODULE_CHECKS, NETWORK_CHECKS, TRAINING_CHECKS)
        if level == 1
        else (ENGINES_BETWEEN, MODULES_BETWEEN, NETWORKS_BETWEEN, TRAINING_BETWEEN)
    )
    yield EngineEvidence, ENGINE, of_engines
    for module in MODULES:
        yield ModuleEvidence, module, of_modules
    for network in NETWORKS:
        yield NetworkEvidence, network, of_networks
        if network.ppo is not None and precision in network.trained_in:
            yield TrainingEvidence, network, of_training


def _is_made(check: Check, specimen: Specimen, backend: str, precision: str) -> bool:
    """True if a check is made of an engine; one with none of the check's precisions is checked in those it has."""
    supported = [p for p in PRECISIONS if supports(backend, p)]
    meant = [p for p in supported if p in check.precisions] or supported
    able = precision in meant and (trains(backend) or not check.trains)
    return able and check.applies(specimen) and specimen.why_not(backend) is None


def _alone(backend: str, precision: str, subjects: Iterable[Subject]) -> Iterator[Case]:
    for kind, specimen, checks in subjects:
        for check in checks:
            if _is_made(check, specimen, backend, precision):
                yield Case(1, check, kind, specimen, (backend,), precision)


def _between(backends: Sequence[str], precision: str, subjects: Iterable[Subject]) -> Iterator[Case]:
    for kind, specimen, checks in subjects:
        for check in checks:
            able = [name for name in backends if _is_made(check, specimen, name, precision)]
            reference = choose_reference(able, precision, check.trains, specimen.only_on)
            for backend in able:
                if reference not in (None, backend):
                    yield Case(2, check, kind, specimen, (backend, str(reference)), precision)


def _mutant(mutant: Mutant, backend: str, precisions: Sequence[str]) -> Iterator[Case]:
    alone = isinstance(mutant.specimen, ModuleSpecimen)
    kind: Kind = ModuleEvidence if alone else NetworkEvidence
    checks: tuple[Check, ...] = MODULE_CHECKS if alone else NETWORK_CHECKS
    (check,) = (check for check in checks if check.name == mutant.caught_by)
    able = [p for p in PRECISIONS if p in precisions and _is_made(check, mutant.specimen, backend, p)]
    if able:
        yield Case(3, check, kind, mutant.specimen, (backend,), able[0])


def _caught(result: Result) -> Result:
    """Result at level 3: passed if the check of a wrong module failed, by a deviation and not by an exception."""
    detail = f"caught, as it must be; {result.detail}".rstrip("; ")
    if result.crashed:
        detail = f"the check broke instead of catching it: {result.detail}"
    elif result.passed:
        detail = "a module that is wrong on purpose was not caught"
    return dataclasses.replace(result, passed=not result.passed and not result.crashed, detail=detail)
