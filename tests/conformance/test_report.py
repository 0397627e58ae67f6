"""The table and the JSON form of results."""

import json

from multippo.conformance import report
from multippo.conformance.checks.check import Result


def result(**changes: object) -> Result:
    fields = {
        "level": 1,
        "check": "replay/value",
        "subject": "LSTM",
        "backend": "jax",
        "precision": "float32",
        "worst": 2e-6,
        "tolerance": 1e-5,
        "where": "t=3, env=2",
        "passed": True,
    }
    return Result(**{**fields, **changes})  # pyright: ignore[reportArgumentType]


def test_a_row_names_the_subject_step_and_environment_of_the_worst_deviation():
    text = report.as_text([result(), result(subject="MLP", worst=3e-6, where="t=0, env=1"), result(level=2)])
    (row,) = (line for line in text.splitlines() if "MLP" in line)
    assert "replay/value" in row
    assert "3.0e-06 ≤ 1.0e-05" in row
    assert "MLP: t=0, env=1" in row
    assert "3 of 3 checks passed." in text


def test_a_failure_is_told_in_full():
    wrong = result(worst=0.5, passed=False, detail="shape (1,)", precision="float64")
    text = report.as_text([result(), wrong])
    assert "FAIL (1 of 2)" in text
    assert "FAILED replay/value of LSTM on jax in float64: 5.0e-01, allowed 1.0e-05, at t=3, env=2: shape (1,)" in text
    assert "Level 2 was not run" in text


def test_a_mutant_is_caught_or_not():
    for passed, verdict in ((True, " caught"), (False, "NOT CAUGHT")):
        assert verdict in report.as_text([result(level=3, subject="never resets", worst=0.5, passed=passed)])


def test_device_precision_and_what_is_left_out_are_stated_of_every_engine(torch_engine):
    results = [result(), result(level=2, backend="torch against numpy"), result(backend="numpy", precision="float64")]
    with torch_engine.matmul_precision("high"):  # the suite sets the precision it needs, and puts the user's back
        text = report.as_text(results)
        assert torch_engine.numerics()["float32_matmul_precision"] == "high"
    assert "Computed by jax: device cpu:0, device_kind cpu, jax_default_matmul_precision None, " in text
    assert "Computed by torch: device cpu:0, device_kind processor, float32_matmul_precision highest, " in text
    assert "Computed by numpy: device cpu:0, matmul_precision highest." in text
    assert "Left out on numpy: Lift of a native module" in text
    data = json.loads(report.as_json(results))
    assert data["numerics"]["torch"]["cudnn_allow_tf32"] == "False"
    assert {engine["matmul_precision"] for engine in data["numerics"].values()} == {"highest"}
    assert data["left_out"] and data["left_out"][0] in text


def test_json_is_strict():
    text = report.as_json([result(), result(worst=float("inf"), passed=False)])
    data = json.loads(text, parse_constant=lambda name: 1 / 0)
    assert data["passed"] is False
    assert [row["worst"] for row in data["results"]] == [2e-6, None]
    assert data["results"][0]["where"] == "t=3, env=2"


def test_nothing_checked_is_no_success_in_silence():
    assert "No check was made" in report.as_text([])
    assert json.loads(report.as_json([]))["passed"] is False
