"""The suite under pytest, one test for each check of each subject: ``pytest conformance --backend jax``."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from .evidence.engines import supports
from .plan import LEVELS, Case, Evidence, make_plan


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test for each case of the plan."""
    if "case" in metafunc.fixturenames:
        option = metafunc.config.getoption
        quick = option("--quick", False)
        count, first = 0 if quick else option("--networks", None), option("--networks-seed", None)
        try:
            plan = make_plan(
                option("--backend", None),
                (1, 2) if quick else LEVELS,
                networks=None if count is None else int(count),
                networks_seed=None if first is None else int(first),
            )
        except (ValueError, ImportError) as error:
            raise pytest.UsageError(str(error)) from None
        cases = [case for case in plan if not quick or _is_quick(case)]
        metafunc.parametrize("case", [pytest.param(case, id=case.id, marks=_group(case)) for case in cases])


def _is_quick(case: Case) -> bool:
    """Selects float32; for an engine without that its float64, and torch compared with that engine.

    Compiling in float64 on JAX would take as long again, and random networks and mutants longer.
    """
    return case.precision == "float32" or (
        "jax" not in case.backends and not all(supports(n, "float32") for n in case.backends)
    )


def _group(case: Case) -> pytest.MarkDecorator:
    """Mark by which one process makes all checks of a subject, which read the same evidence."""
    return pytest.mark.xdist_group(case.specimen.name)


@pytest.fixture(scope="session")
def evidence() -> Evidence:
    """Evidence computed so far, which several checks read."""
    return Evidence()


def test_conformance(case: Case, evidence: Evidence, record_property: Any) -> None:
    """The check holds; at level 3, it catches a module that is wrong on purpose."""
    result = case.run(evidence)
    record_property("conformance", dataclasses.asdict(result))
    assert result.passed, f"{result.worst:.3g}, allowed {result.tolerance:.3g}, at {result.where}: {result.detail}"
