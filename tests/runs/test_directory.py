"""A run's directory: who may write in it and when, and what may lie in the place of its files."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from multippo.algorithms import run as run_module
from multippo.cli import main
from multippo.errors import UsageError
from multippo.runs import directory as directory_module
from multippo.runs.directory import RunDirectory

SMALL = ("--backend", "torch", "--actor-hidden-sizes", 4, "--critic-hidden-sizes", 4, "--num-envs", 2)
SHORT = ("--rollout-length", 8, "--num-epochs", 1, "--num-minibatches", 1, "--final-eval-episodes", 0)


def files(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


START = ("train", "CartPole-v1", *SMALL, *SHORT, "--total-steps", 16)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    assert main([str(argument) for argument in (*START, "--run-dir", path)]) == 0
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "a run"))


def refused(command: Any, tmp_path: Path, *arguments: object) -> str:
    """The one line with which a command is refused that has changed nothing."""
    before = files(tmp_path), sorted(tmp_path.rglob("*"))
    done = command(*arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert (files(tmp_path), sorted(tmp_path.rglob("*"))) == before
    return done.err


def test_two_processes_can_not_train_in_one_directory(command: Any, tmp_path: Path, run: Path):
    resume = ("train", "--run-dir", run, "--resume", "--total-steps", 64)
    (tmp_path / "new").mkdir()
    with RunDirectory(run).held(), RunDirectory(tmp_path / "new").held():
        said = f"another process is training in {run}: wait for it or stop it"
        assert said in refused(command, tmp_path, *resume)
        # The winner of two that begin at once has not written its config.json yet.
        assert "another process is training" in refused(command, tmp_path, *START, "--run-dir", tmp_path / "new")
    before = files(run)
    assert command(*resume).code == 0
    assert files(run) != before


def test_a_resume_that_is_refused_late_has_changed_nothing(
    command: Any, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> None:
        raise UsageError("not with me")

    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99')  # which a resume would drop
    monkeypatch.setattr(run_module, "check_initial_state", refuse)
    again = ("train", "--run-dir", run, "--resume", "--total-steps", 64, "--learning-rate", 0.5)
    assert "not with me" in refused(command, tmp_path, *again)


def test_the_commands_to_go_on_with_can_be_copied_into_a_shell(command: Any, run: Path):
    done = command("train", "--run-dir", run, "--resume", "--total-steps", 32)
    assert done.out.splitlines()[-1] == f"Evaluate it with: multippo eval '{run}'"
    done = command("eval", run / "checkpoints" / f"step_{16:012d}")
    assert f"--checkpoint '{run}/checkpoints/step_000000000016' for this one" in done.err


@pytest.mark.parametrize("kind", ["dangling link", "link", "link to a device", "pipe"])
def test_metrics_are_not_written_through_a_link_nor_awaited_from_a_pipe(
    command: Any, tmp_path: Path, run: Path, kind: str
):
    path = run / "metrics.jsonl"
    path.rename(tmp_path / "outside")
    if kind == "pipe":
        os.mkfifo(path)
    else:
        targets = {"link": tmp_path / "outside", "link to a device": Path("/dev/zero")}
        path.symlink_to(targets.get(kind, tmp_path / "missing"))
    words = refused(command, tmp_path, "train", "--run-dir", run, "--resume", "--total-steps", 64)
    assert ("is a link" if "link" in kind else "a pipe") in words and str(path) in words
    assert kind == "link to a device" or str(path) in refused(command, tmp_path, "compare", run, run)


def test_the_learning_curve_takes_the_place_of_a_link(command: Any, tmp_path: Path, run: Path):
    (tmp_path / "outside").write_text("theirs")
    for name in ("learning_curve.png", ".learning_curve.png.tmp.png"):
        (run / name).unlink(missing_ok=True)
        (run / name).symlink_to(tmp_path / "outside")
    (tmp_path / "link").symlink_to(run)  # to the run itself one may lead
    assert command("train", "--run-dir", tmp_path / "link", "--resume", "--total-steps", 160).code == 0
    assert (tmp_path / "outside").read_text() == "theirs"
    assert (run / "learning_curve.png").read_bytes().startswith(b"\x89PNG")
    assert not (run / "learning_curve.png").is_symlink()


@pytest.mark.parametrize("call", ["mkdir", "write"])
def test_a_disk_that_is_full_at_the_start_fails_the_run_and_leaves_nothing(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "mkdir") if call == "mkdir" else (directory_module, "write_text")), full)
    done = command(*START, "--run-dir", "new/run")
    assert (done.code, done.out, done.err.count("\n")) == (1, "", 1), done.err
    assert "the run stopped: [Errno 28] No space left on device. Nothing was saved yet in new/run." in done.err
    assert os.listdir(tmp_path) == []


def test_a_name_that_is_too_long_is_one_line(command: Any, tmp_path: Path):
    name = "a" * 300
    for arguments in (
        ("eval", name),
        ("train", "CartPole-v1", "--run-dir", name),
        ("train", "--resume", "--run-dir", name),
    ):
        assert f"{name} can't be opened: File name too long" in refused(command, tmp_path, *arguments)
