"""The folder in which the command line keeps compiled programmes."""

import os
import subprocess
import sys
from pathlib import Path

import platformdirs
import pytest

from multippo.cli.compilation_cache import keep_compiled_programmes, prune

DIRECTORY = "JAX_COMPILATION_CACHE_DIR"
MINIMUM = "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's cache folder; variables that are set in a test are unset after it."""
    monkeypatch.setattr(platformdirs, "user_cache_path", lambda *_, **__: tmp_path / "cache")
    for name in (DIRECTORY, MINIMUM):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return tmp_path


def test_programmes_of_any_size_are_kept_in_the_users_cache_folder(home: Path):
    keep_compiled_programmes()
    assert os.environ[DIRECTORY] == str(home / "cache" / "xla")
    assert os.environ[MINIMUM] == "0"
    assert Path(os.environ[DIRECTORY]).is_dir()


def test_a_folder_that_the_user_has_chosen_stays_with_its_settings(home: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(DIRECTORY, "elsewhere")
    keep_compiled_programmes()
    assert (os.environ[DIRECTORY], MINIMUM in os.environ) == ("elsewhere", False)
    assert not (home / "cache").exists()


def test_without_a_folder_to_write_into_there_is_no_cache(home: Path):
    (home / "cache").write_text("a file where the folder should be")
    keep_compiled_programmes()
    assert DIRECTORY not in os.environ


def test_files_unused_for_longest_are_deleted_first(tmp_path: Path):
    # 10, 20, 30 and 40 bytes; the second was read last. 75 bytes leave room for the fourth and the second.
    for i, name in enumerate("abcd"):
        (tmp_path / name).write_bytes(b"x" * 10 * (i + 1))
        os.utime(tmp_path / name, (1000 + i, 1000 + i))
    os.utime(tmp_path / "b", (2000, 1001))
    prune(tmp_path, 75)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]
    prune(tmp_path, 75)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "d"]


@pytest.mark.nightly
def test_a_run_has_the_same_bits_without_a_cache_with_an_empty_and_with_a_full_one(tmp_path: Path):
    pytest.importorskip("brax")
    weights: list[bytes] = []
    flags = "train brax/fast --backend jax --num-envs 8 --rollout-length 8 --total-steps 192 --final-eval-episodes 0"
    for number, enabled in enumerate(("false", "true", "true")):
        found = {DIRECTORY: str(tmp_path / "xla"), MINIMUM: "0", "JAX_ENABLE_COMPILATION_CACHE": enabled}
        run = tmp_path / str(number)
        line = [sys.executable, "-m", "multippo", *flags.split(), "--run-dir", str(run)]
        subprocess.run(line, env=os.environ | found, check=True, capture_output=True)
        (file,) = run.rglob("weights.safetensors")
        weights.append(file.read_bytes())
    assert any((tmp_path / "xla").iterdir())
    assert weights[0] == weights[1] == weights[2]
