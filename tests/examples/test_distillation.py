"""The example runs, with the two networks on different engines."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

PATH = Path(__file__).resolve().parents[2] / "examples" / "distillation.py"


@pytest.mark.parametrize("backends", [("jax", "torch"), ("torch", "jax")])
@pytest.mark.nightly_if("backends0")
def test_a_few_steps(backends, capsys):
    spec = importlib.util.spec_from_file_location("distillation", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    teacher, student, result = module.train(256, *backends, rollout_length=16)
    assert (teacher.engine.name, student.engine.name) == backends
    assert result.total_iterations == 2 and result.final_metrics["kl/teacher"] > 0
    assert "KL from the teacher" in capsys.readouterr().out
