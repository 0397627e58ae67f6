"""The suite as authors of other engines have it: from an installed wheel, far from the repository."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ENTRY_POINTS = "[multippo.backends]\ntiny = tiny_engine:make_tiny\n"


def run(*arguments: object, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder into which pip has installed the wheel, and a package with an engine."""
    folder = tmp_path_factory.mktemp("wheel")
    source, target = folder / "source", folder / "site"
    source.mkdir()
    for name in ("multippo", "conformance"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "setup.py", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    quietly = ("--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation")
    run("pip", "install", *quietly, "--target", target, source, cwd=folder)
    shutil.copy(ROOT / "tests" / "backends" / "tiny_engine.py", target)
    information = target / "tiny_engine-0.1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-engine\nVersion: 0.1\n")
    (information / "entry_points.txt").write_text(ENTRY_POINTS)
    return target


@pytest.mark.nightly
@pytest.mark.parametrize("backend", ["numpy", "tiny"])
def test_the_installed_suite_decides_on_an_engine(site: Path, tmp_path: Path, backend: str):
    # Not one word of the repository is within reach, but for what its editable install adds at the end of the path.
    environment = {"PYTHONPATH": str(site), "JAX_PLATFORMS": "cpu"}
    rooms = {folder.name for folder in (ROOT / "conformance").iterdir() if (folder / "__init__.py").exists()}
    assert len(rooms) == 4 and rooms <= {folder.name for folder in (site / "multippo" / "conformance").iterdir()}
    where = "import multippo, multippo.conformance as c; print(multippo.__file__, c.__file__, sep='\\n')"
    (tmp_path / "where.py").write_text(where)
    for path in run("where", cwd=tmp_path, **environment).splitlines():
        assert Path(path).is_relative_to(site)
    arguments = ("pytest", "--pyargs", "multippo.conformance", "--backend", backend, "-p", "no:cacheprovider")
    shown = run(*arguments, "-k", "Normalizer-numpy or Normalizer-tiny", cwd=tmp_path, **environment)
    # Eight rules of the protocol, and output and statistics beside another engine's.
    assert f"unroll/step_by_step                 {backend}" in shown
    assert "Level 2: engines against each other" in shown
    assert "10 of 10 checks passed." in shown
