"""The suite under pytest, one test for each check of each subject: ``pytest conformance --backend jax``."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from .engines import supports
from .plan import Case, Evidence, make_plan
from .random_networks import RandomNetwork


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test for each case of the plan."""
    if "case" in metafunc.fixturenames:
        try:
            option = metafunc.config.getoption
            count, first = option("--networks", None), option("--networks-seed", None)
            plan = make_plan(
                option("--backend", None),
                networks=None if count is None else int(count),
                networks_seed=None if first is None else int(first),
            )
        except (ValueError, ImportError) as error:
            raise pytest.UsageError(str(error)) from None
        if option("--quick", False):
            plan = [case for case in plan if _is_quick(case)]
        metafunc.parametrize("case", [pytest.param(case, id=case.id, marks=_group(case)) for case in plan])


def _is_quick(case: Case) -> bool:
    """Select levels 1 and 2 in float32; of an engine without float32 level 1, and torch compared with it.

    Whatever JAX compiles in float64 besides takes as long again, and random networks and mutants more.
    """
    if case.level == 3 or isinstance(case.specimen, RandomNetwork):
        return False
    return case.precision == "float32" or (
        "jax" not in case.backends and not all(supports(n, "float32") for n in case.backends)
    )


def _group(case: Case) -> pytest.MarkDecorator:
    """What one process should check, where several share the work: all checks of a subject read the same evidence."""
    return pytest.mark.xdist_group(case.specimen.name)


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    """What checks have computed so far; several read the same."""
    return Evidence()


def test_conformance(case: Case, evidence: Evidence, record_property: Any) -> None:
    """The check holds; at level 3, it catches what is wrong on purpose."""
    result = case.run(evidence)
    record_property("conformance", dataclasses.asdict(result))
    assert result.passed, f"{result.worst:.3g}, allowed {result.tolerance:.3g}, at {result.where}: {result.detail}"
