"""A directory is there whole or not at all, whenever the process that writes it is killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from multippo.algorithms import atomic

ROOT = Path(__file__).resolve().parents[2]

# Writes generation after generation of ten files that all hold its number.
PROGRAM = """
import sys
from pathlib import Path
from multippo.algorithms.atomic import replace_directory

path = Path(sys.argv[1])
print("ready", flush=True)
for generation in range(10**6):
    with replace_directory(path) as directory:
        for name in range(10):
            (directory / str(name)).write_text(str(generation) * 1000)
"""


def test_a_writer_killed_at_any_moment_leaves_one_whole_generation(tmp_path: Path):
    path = tmp_path / "a"
    for attempt in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
        ) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == "ready\n"
            while not path.exists():
                time.sleep(0.001)
            time.sleep(0.013 * attempt)
            writer.kill()
        contents = {file.read_text() for file in path.iterdir()}
        assert len(list(path.iterdir())) == 10
        assert len(contents) == 1
        assert contents != {""}
    atomic.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_what_fails_half_way_is_taken_back(tmp_path: Path):
    with pytest.raises(RuntimeError, match="half way"), atomic.replace_directory(tmp_path / "a") as directory:
        (directory / "file").write_text("x")
        raise RuntimeError("half way")
    assert os.listdir(tmp_path) == []


def test_directories_are_on_the_disk_when_what_is_in_them_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[str] = []
    monkeypatch.setattr(atomic, "_sync", lambda path: synced.append(path.name))
    with atomic.replace_directory(tmp_path / "a/b/c") as directory:
        (directory / "file").write_text("x")
    # The entries of b and of a; the file, the directory under its first name, and its entry under the last.
    assert synced == ["a", tmp_path.name, "file", directory.name, "b"]
    synced.clear()
    with atomic.replace_directory(tmp_path / "a/b/c") as directory:
        (directory / "file").write_text("y")
    assert synced == ["file", directory.name, "b"]


def test_a_removed_directory_is_gone_before_its_files_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    seen: list[list[str]] = []
    rmtree = shutil.rmtree

    def watched(path: Path, **options: bool) -> None:
        seen.append([entry.name for entry in tmp_path.iterdir()])
        rmtree(path, **options)

    with atomic.replace_directory(tmp_path / "a") as directory:
        (directory / "file").write_text("x")
    monkeypatch.setattr(atomic.shutil, "rmtree", watched)
    atomic.remove_directory(tmp_path / "a")
    ((name,),) = seen
    assert name.startswith(".a.") and name.endswith(".tmp")  # what remove_leftovers would finish
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("exchange", [True, False])
def test_the_new_one_takes_the_place_of_the_old(exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    class WithoutExchange:
        def __init__(self, *_: object, **__: object) -> None: ...

    if not exchange:  # as on systems other than Linux
        monkeypatch.setattr(atomic.ctypes, "CDLL", WithoutExchange)
    for text in ("old", "new"):
        with atomic.replace_directory(tmp_path / "a") as directory:
            (directory / "file").write_text(text)
    assert (tmp_path / "a/file").read_text() == "new"
    assert os.listdir(tmp_path) == ["a"]


def test_a_text_is_replaced_or_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    atomic.write_text(tmp_path / "f", "old")
    atomic.write_text(tmp_path / "f", "new")
    assert (tmp_path / "f").read_text() == "new"

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic.write_text(tmp_path / "f", "newer")
    assert (tmp_path / "f").read_text() == "new"
    assert os.listdir(tmp_path) == ["f"]
