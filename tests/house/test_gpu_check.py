"""The check for machines with a GPU: it is a script, keeps to its time, and its benchmark runs here in tiny sizes."""

import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pages import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu_check.sh"
LIMITS = re.compile(r'(?:test_run|part) (?:"?[\w$-]+"?) (\d+) ')
OWN = re.compile(r'^\s*timeout "\$\(limit (\d+)\)"', re.MULTILINE)

needs_bash = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")


@needs_bash
def test_it_is_a_script_that_may_be_run():
    assert os.access(SCRIPT, os.X_OK)
    subprocess.run(["bash", "-n", str(SCRIPT)], check=True)


def test_its_parts_take_less_than_8_minutes_together():
    text = SCRIPT.read_text("utf-8")
    # Two engines' benchmarks one after the other, each at the larger of two limits; both engines' conformance at once.
    tests, conformance, on_gpu, on_cpu = (int(limit) for limit in LIMITS.findall(text))
    own = [int(limit) for limit in OWN.findall(text)]
    assert len(own) == 2
    assert sum(own) + tests + conformance + 2 * max(on_gpu, on_cpu) <= 480


def test_the_files_it_tests_are_there():
    named = re.findall(r"(?:tests|benchmarks|conformance)/[\w/]+\.py", SCRIPT.read_text("utf-8"))
    assert len(named) > 5
    assert [name for name in named if not (ROOT / name).is_file()] == []


@needs_bash
def test_without_packages_it_says_so(tmp_path: Path):
    stub = tmp_path / "python"
    stub.write_text('#!/bin/sh\ncase "$1" in -) cat >/dev/null; shift; echo "$@";; *) exit 1;; esac\n')
    stub.chmod(0o755)
    environment = {**os.environ, "PYTHON": str(stub)}
    done = subprocess.run(
        ["bash", str(SCRIPT), str(tmp_path / "out")], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "they can't be installed" in done.stdout
    assert re.search(r"error: without numpy gymnasium .* nothing runs", done.stderr)


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
