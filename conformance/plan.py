"""Which checks are made of what, on which engines: the list of all cases."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from multippo.backends import available_backends, load_engine

from .between_checks import MODULES_BETWEEN, NETWORKS_BETWEEN, TRAINING_BETWEEN
from .checks import Check, perform
from .engine_checks import ENGINE_CHECKS, ENGINE_SPECIMEN, ENGINES_BETWEEN, EngineEvidence
from .engines import choose_reference, supports, trains
from .measure import Result
from .module_checks import MODULE_CHECKS
from .module_evidence import ModuleEvidence
from .modules import MODULES
from .mutants import MUTANTS, Mutant
from .network_checks import NETWORK_CHECKS, TRAINING_CHECKS
from .network_evidence import NetworkEvidence
from .network_specimens import NETWORKS
from .omissions import why_not
from .random_networks import RandomNetwork, Simplifier, can_draw, checks_of, random_networks
from .specimens import ModuleSpecimen
from .training_evidence import TrainingEvidence

__all__ = ["LEVELS", "PRECISIONS", "Case", "Evidence", "make_plan"]

LEVELS = (1, 2, 3)
PRECISIONS = ("float32", "float64")

_NETWORKS_HELD = 25
"""So many random networks' programmes are in memory at most: those of 500 would fill 10 GiB."""

Kind = type[EngineEvidence] | type[ModuleEvidence] | type[NetworkEvidence] | type[TrainingEvidence]


class Evidence:
    """Evidence by kind, specimen, engine and precision, collected at the first request and kept for other checks."""

    def __init__(self) -> None:
        self._held: dict[Any, Any] = {}
        self._passing, self._num_passed = "", 0
        self.simplifier = Simplifier()

    def of(self, kind: Kind, specimen: Any, backend: str, precision: str) -> Any:
        """The evidence of one specimen on one engine."""
        index = (kind, specimen.name, backend, precision)
        self._make_room(specimen)
        if index not in self._held:
            self._held[index] = kind(specimen, backend, precision)
        return self._held[index]

    def _make_room(self, specimen: Any) -> None:
        """Lets go of the last random network: there may be hundreds, each with programmes of its own."""
        if isinstance(specimen, RandomNetwork) and specimen.name != self._passing:
            used = {index[2] for index in self._held}
            self._held = {index: value for index, value in self._held.items() if index[1] != self._passing}
            self._passing = specimen.name
            self._num_passed += 1
            # Not every time: networks share programmes of single operations.
            if self._num_passed % _NETWORKS_HELD == 0:
                for name in used:
                    load_engine(name).clear_caches()


@dataclasses.dataclass(frozen=True)
class Case:
    """One check of one subject on one engine (or two) at one precision.

    Attributes:
        level: 1, 2 or 3.
        check: What is checked.
        kind: Which evidence it takes.
        specimen: The subject.
        backends: The engine; at level 2 followed by the one it is compared with.
        precision: "float32" or "float64".
    """

    level: int
    check: Check[Any]
    kind: Kind
    specimen: Any
    backends: tuple[str, ...]
    precision: str

    @property
    def id(self) -> str:
        """A name for reports of test runners."""
        subject = self.specimen.name.replace(", ", "-").replace(" ", "_")
        return f"{self.level}-{self.check.name}-{subject}-{'-'.join(self.backends)}-{self.precision}"

    def run(self, evidence: Evidence) -> Result:
        """Makes the check."""
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
    """All cases.

    Args:
        backends: Engines under test; None: every one that is installed.
        levels: Of 1, 2, 3.
        precisions: Of "float32", "float64"; those that an engine has not are left out.
        networks: How many random networks; None: a few, or none where hypothesis is not installed.
        networks_seed: Number of the first of them; None: 0, or the few of ``random_networks.EVERY_RUN``.

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
    cases: list[Case] = []
    if 1 in levels:
        cases += [case for name in names for p in precisions if supports(name, p) for case in _alone(name, p)]
    if 2 in levels:
        cases += [case for p in precisions for case in _between(names, p)]
    if 3 in levels:
        cases += [case for name in names for mutant in MUTANTS for case in _mutant(mutant, name, precisions)]
    if networks is None and not can_draw():
        networks = 0
    for network in random_networks(networks, networks_seed):
        cases += [case for p in precisions for case in _random(network, names, levels, p)]
    return cases


def _subjects(precision: str, level: int) -> Iterator[tuple[Kind, Any, tuple[Check[Any], ...]]]:
    of_modules, of_networks, of_training = (
        (MODULE_CHECKS, NETWORK_CHECKS, TRAINING_CHECKS)
        if level == 1
        else (MODULES_BETWEEN, NETWORKS_BETWEEN, TRAINING_BETWEEN)
    )
    yield EngineEvidence, ENGINE_SPECIMEN, ENGINE_CHECKS if level == 1 else ENGINES_BETWEEN
    for module in MODULES:
        yield ModuleEvidence, module, of_modules
    for network in NETWORKS:
        yield NetworkEvidence, network, of_networks
        if network.ppo is not None and precision in network.trained_in:
            yield TrainingEvidence, network, of_training


def _precisions(check: Check[Any], backend: str) -> Sequence[str]:
    """In which types a check is made on an engine; one that has none of them is held to the check in those it has."""
    return [p for p in check.precisions if supports(backend, p)] or [p for p in PRECISIONS if supports(backend, p)]


def _alone(backend: str, precision: str) -> Iterator[Case]:
    for kind, specimen, checks in _subjects(precision, 1):
        for check in checks:
            fits = check.applies(specimen) and precision in _precisions(check, backend)
            if fits and why_not(specimen, backend) is None and (trains(backend) or not check.trains):
                yield Case(1, check, kind, specimen, (backend,), precision)


def _between(backends: Sequence[str], precision: str) -> Iterator[Case]:
    for kind, specimen, checks in _subjects(precision, 2):
        for check in checks:
            if not check.applies(specimen):
                continue
            fit = [n for n in backends if why_not(specimen, n) is None and precision in _precisions(check, n)]
            reference = choose_reference(fit, precision, check.trains, specimen.only_on)
            for backend in fit:
                able = supports(backend, precision) and (trains(backend) or not check.trains)
                if reference is not None and able and backend != reference:
                    yield Case(2, check, kind, specimen, (backend, reference), precision)


def _random(network: RandomNetwork, backends: Sequence[str], levels: Sequence[int], precision: str) -> Iterator[Case]:
    able = [name for name in backends if supports(name, precision)]
    if 1 in levels:
        for name in able:
            for check in checks_of(network, 1, precision):
                if trains(name) or not check.trains:
                    yield Case(1, check, ModuleEvidence, network, (name,), precision)
    if 2 in levels:
        for check in checks_of(network, 2, precision):
            reference = choose_reference(backends, precision, check.trains)
            for name in able:
                if reference not in (None, name) and (trains(name) or not check.trains):
                    yield Case(2, check, ModuleEvidence, network, (name, str(reference)), precision)


def _mutant(mutant: Mutant, backend: str, precisions: Sequence[str]) -> Iterator[Case]:
    alone = isinstance(mutant.specimen, ModuleSpecimen)
    kind: Kind = ModuleEvidence if alone else NetworkEvidence
    checks: tuple[Check[Any], ...] = MODULE_CHECKS if alone else NETWORK_CHECKS
    (check,) = (check for check in checks if check.name == mutant.caught_by)
    able = [p for p in check.precisions if p in precisions and supports(backend, p)]
    if able and (trains(backend) or not check.trains) and why_not(mutant.specimen, backend) is None:
        yield Case(3, check, kind, mutant.specimen, (backend,), able[0])


def _caught(result: Result) -> Result:
    """A check of a module that is wrong on purpose passes if it failed, by what it measured and by no accident."""
    caught = not result.passed and not result.crashed
    if caught:
        detail = f"caught, as it must be; {result.detail}".rstrip("; ")
    elif result.crashed:
        detail = f"the check broke instead of catching it: {result.detail}"
    else:
        detail = "a module that is wrong on purpose was not caught"
    return dataclasses.replace(result, passed=caught, detail=detail)
