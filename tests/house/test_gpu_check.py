"""The check for machines with a GPU: it is a script, keeps to its time, and its benchmark runs here in tiny sizes."""

import os
import re
import runpy
import shutil
import subprocess
import sys

import pytest
from pages import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
def test_it_is_a_script_that_may_be_run():
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_the_files_it_tests_are_there():
    named = re.findall(r"(?:tests|benchmarks|conformance)/[\w/]+\.py", SCRIPT.read_text("utf-8"))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


def test_the_benchmark_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):
    arguments = ["throughput.py", "--backend", "torch", "--device", "cpu", "--tiny", "--cases", "2"]
    monkeypatch.setattr(sys, "argv", arguments)
    runpy.run_path(str(ROOT / "benchmarks" / "throughput.py"), run_name="__main__")
    header, line, *rows = capsys.readouterr().out.splitlines()
    assert header.count("|") == line.count("|") == 11
    assert [row.split("|")[4].strip() for row in rows] == ["mlp", "lstm"]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        assert "failed" not in row and float(cells[7].replace(",", "")) > 0 and float(cells[8]) < 1e-5
