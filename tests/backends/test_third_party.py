"""An engine in a package outside the tree: found by its entry point, chosen by the variable, held to the suite."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TINY = Path(__file__).with_name("tiny_engine.py")
ENTRY_POINTS = """[multippo.backends]
tiny = tiny_engine:make_tiny
"""


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder that holds what pip would write for the package."""
    (tmp_path / "tiny_engine.py").write_text(TINY.read_text("utf-8"))
    information = tmp_path / "tiny_engine-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    return tmp_path


def run(folder: Path, program: str, backend: str) -> list[str]:
    """The lines that a program in a process of its own prints."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "MULTIPPO_BACKEND": backend}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_it_is_chosen_and_held_to_the_suite(installed: Path):
    program = """
import sys
import multippo as mp
from multippo.conformance.plan import Evidence, make_plan
net = mp.Sequential([mp.Dense(2, 3, mp.Rngs(0)), mp.LSTM(3, 2, mp.Rngs(1))])
print(mp.get_backend(), type(net.engine).__name__, type(net[0].core).__module__, mp.available_backends()[2:])
plan = [case for case in make_plan([mp.get_backend()]) if case.specimen.name in ("Dense", "arrays and random numbers")]
evidence = Evidence()
for case in plan:
    result = case.run(evidence)
    print(case.level, case.backends, case.check.name, result.passed, result.detail)
print([name for name in ("jax", "torch") if name in sys.modules])
"""
    chosen, *checks, loaded = run(installed, program, "tiny")
    assert chosen == "tiny TinyEngine tiny_engine ['tiny', 'numpy']"
    assert all(" True" in line for line in checks), checks
    # Three of the engine alone and two against the reference, four of the module and one.
    assert [line[0] for line in checks].count("1") == 7 and [line[0] for line in checks].count("2") == 3
    assert all("('tiny', 'numpy')" in line for line in checks if line[0] == "2")
    assert loaded == "[]"
