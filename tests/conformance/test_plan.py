"""The plan: every level, engines that can't train, and engines of third parties."""

import collections
import importlib.util
import subprocess
import sys

import pytest
from multippo.conformance import cli_main
from multippo.conformance.checks.check import Check, perform
from multippo.conformance.checks.module_checks import MODULE_CHECKS
from multippo.conformance.evidence.deviations import Deviation
from multippo.conformance.evidence.engines import choose_reference
from multippo.conformance.plan import Case, Evidence, make_plan
from multippo.conformance.report import left_out
from multippo.conformance.specimens.module_specimens import MODULES
from multippo.conformance.specimens.mutants import MUTANTS

from multippo.backends import registry
from multippo.backends.torch.engine import TorchEngine


class ForwardOnly(TorchEngine):
    name = "forward"
    capabilities = frozenset({"float64"})


@pytest.fixture
def forward_only(monkeypatch: pytest.MonkeyPatch) -> str:
    """An engine of a third party, without gradients."""
    monkeypatch.setitem(registry._registered, "forward", ForwardOnly)
    monkeypatch.setitem(registry._engines, "forward", ForwardOnly())
    return "forward"


def test_names_are_unique_every_level_runs_in_both_precisions_and_mutants_on_every_engine():
    cases = make_plan(["jax", "torch"])
    ids = [case.id for case in cases]
    assert len(set(ids)) == len(ids)
    per_level = collections.Counter((case.level, case.precision) for case in cases)
    assert all(per_level[level, precision] > 20 for level in (1, 2) for precision in ("float32", "float64"))
    assert {case.backends for case in cases if case.level == 3} == {("jax",), ("torch",)}


def test_engines_are_compared_with_the_reference_where_that_can_be():
    compared = [case for case in make_plan(["jax", "torch"]) if case.level == 2 and not case.specimen.only_on]
    for case in compared:
        by_the_reference = case.precision == "float64" and not case.check.trains
        assert case.backends[1] == ("numpy" if by_the_reference else "jax"), case.id
    per_pair = collections.Counter(case.backends for case in compared if case.precision == "float64")
    assert per_pair["jax", "numpy"] == per_pair["torch", "numpy"] > 100
    assert per_pair["torch", "jax"] > 50


def test_an_engine_without_float32_is_held_to_everything_that_needs_no_gradient():
    cases, torch = make_plan(["numpy"]), make_plan(["torch"])
    assert {case.precision for case in cases} == {"float64"}
    assert {case.backends for case in cases if case.level == 2} == {("numpy", "jax")}
    expected = {
        (case.level, case.check.name, case.specimen.name)
        for case in torch
        if not case.check.trains and not case.specimen.only_on
    }
    assert {(case.level, case.check.name, case.specimen.name) for case in cases} == expected


def test_what_is_left_out_is_named_with_the_reason(monkeypatch: pytest.MonkeyPatch):
    (native,) = (module for module in MODULES if module.only_on)
    made = {case.backends for case in make_plan(["numpy", "jax", "torch"], (2,)) if case.specimen is native}
    assert made == {("torch", "jax")}
    line = f"Left out on numpy: {native.name} (is made of modules of the frameworks of jax and torch)."
    assert left_out(["jax", "numpy"]) == [line]
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "jax" else found(name, *rest))
    assert "Left out on torch: LSTM, functional environment (needs jax, not installed)." in left_out(["torch"])


def test_every_kind_of_mistake_is_made():
    caught = {mutant.caught_by for mutant in MUTANTS}
    # Whatever changes the kind of a carry is refused before it comes to a check.
    assert {check.name for check in MODULE_CHECKS} - caught == {"carry/kept"}
    assert caught >= {"replay/value", "replay/log_likelihood"}


def test_a_lone_engine_that_cannot_train_passes_what_it_can_against_an_oracle(forward_only: str):
    cases = make_plan([forward_only])
    assert not any(case.check.trains for case in cases)
    oracles = {(case.precision, case.backends) for case in cases if case.level == 2 and not case.specimen.only_on}
    assert oracles == {("float32", ("forward", "jax")), ("float64", ("forward", "numpy"))}
    evidence = Evidence()
    dense = [case for case in cases if case.specimen.name == "Dense" and case.precision == "float64"]
    assert {case.level for case in dense} == {1, 2}
    assert [result for result in (case.run(evidence) for case in dense) if not result.passed] == []


@pytest.mark.parametrize(
    ("backends", "precision", "training", "expected"),
    [
        (["torch", "jax"], "float64", True, "jax"),
        (["numpy"], "float64", False, "jax"),
        (["forward", "torch"], "float64", True, "jax"),
        (["forward"], "float64", True, None),
        # The NumPy engine computes in double precision alone.
        (["numpy", "jax"], "float32", False, "torch"),
        (["numpy"], "float32", False, None),
    ],
)
def test_the_reference_is_the_most_trusted_that_can(
    forward_only: str, backends: list[str], precision: str, training: bool, expected: str | None
):
    assert choose_reference(backends, precision, training) == expected


def test_an_unknown_name_is_refused():
    with pytest.raises(ValueError, match="Unknown backend 'nope'"):
        make_plan(["nope"])
    with pytest.raises(ValueError, match=r"nothing of \[4\]"):
        make_plan(["torch"], levels=(4,))


def test_a_check_that_breaks_fails_and_a_mutant_is_not_caught_by_breaking():
    def breaks(_: object) -> Deviation:
        raise RuntimeError("broken\nin two lines")

    check = Check("replay/value", breaks)
    result = perform(check, lambda: (None,), level=1, subject="s", backend="torch", precision="float32")
    assert (result.passed, result.crashed, result.detail) == (False, True, "RuntimeError: broken")
    case = Case(3, check, type(None), MODULES[0], ("torch",), "float32")  # pyright: ignore[reportArgumentType]
    evidence = Evidence()
    evidence._held[type(None), MODULES[0].name, "torch", "float32"] = None
    assert not case.run(evidence).passed


def test_the_command_returns_an_exit_code(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch):
    plan = [case for case in make_plan(["torch"], (1,), ("float64",)) if case.specimen.name == "Dense"]
    monkeypatch.setattr("multippo.conformance.plan.make_plan", lambda *_: plan)
    assert cli_main(["torch"]) == 0
    assert "checks passed." in capsys.readouterr().out
    broken = Check("always/wrong", lambda _: Deviation(1.0))
    plan.append(Case(1, broken, plan[0].kind, plan[0].specimen, ("torch",), "float64"))
    assert cli_main(["torch"], as_json=True) == 1
    assert '"passed": false' in capsys.readouterr().out


@pytest.mark.nightly
def test_without_hypothesis_the_suite_runs_without_random_networks_and_says_so():
    program = (
        "import sys; sys.modules['hypothesis'] = None\n"
        "from multippo import conformance\n"
        "from multippo.conformance import plan, report\n"
        "cases = plan.make_plan(['torch'], (1,), networks=0)\n"
        "print(cases == plan.make_plan(['torch'], (1,)), len(cases) > 100)\n"
        "print(report.as_text([]).splitlines()[-2])\n"
        "print(report.as_json([]).count('hypothesis'))\n"
        "for ask in (lambda: plan.make_plan(['torch'], (1,), networks=3), conformance.networks):\n"
        "    try: ask()\n"
        "    except ImportError as error: print(error)\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    said = "Random networks need hypothesis, which is not installed: pip install hypothesis"
    assert result.stdout.splitlines() == ["True True", said, "2", said, said]


def test_importing_the_suite_loads_nothing():
    program = (
        "import sys, multippo.conformance\n"
        "print([m for m in ('jax', 'torch', 'multippo.conformance.plan') if m in sys.modules])\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
