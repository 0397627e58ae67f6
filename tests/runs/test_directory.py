"""A run's directory: who may write in it and when, and what may lie in the place of its files."""

import errno
from pathlib import Path
from typing import Any

import pytest
from short_runs import SHORT, SMALL, checkpoints, contents

from multippo.algorithms import run as run_module
from multippo.errors import UsageError
from multippo.runs import directory as directory_module
from multippo.runs.directory import RunDirectory

START = ("train", "CartPole-v1", "--backend", "torch", *SHORT, *SMALL, "--final-eval-episodes", 0)
RESUME = ("train", "--resume", "--total-steps", 192, "--run-dir")


def refused(command: Any, tmp_path: Path, *arguments: object) -> str:
    """The one line with which a command is refused that has changed nothing."""
    before = contents(tmp_path)
    done = command(*arguments)
    done.assert_refused()
    assert contents(tmp_path) == before
    return done.err


def test_two_processes_can_not_train_in_one_directory(command: Any, tmp_path: Path, run: Path):
    (tmp_path / "new").mkdir()
    with RunDirectory(run).held(), RunDirectory(tmp_path / "new").held():
        said = f"another process is training in {run}: wait for it or stop it"
        assert said in refused(command, tmp_path, *RESUME, run)
        # The winner of two that begin at once has not written its config.json yet.
        assert "another process is training" in refused(command, tmp_path, *START, "--run-dir", tmp_path / "new")
    assert command(*RESUME, run).code == 0


def test_a_resume_that_is_refused_late_has_changed_nothing(
    command: Any, tmp_path: Path, run: Path, monkeypatch: pytest.MonkeyPatch
):
    def refuse(*_: Any) -> None:
        raise UsageError("not with me")

    with (run / "metrics.jsonl").open("a") as file:
        file.write('{"step": 99')  # which a resume would drop
    monkeypatch.setattr(run_module, "check_initial_state", refuse)
    assert "not with me" in refused(command, tmp_path, *RESUME, run, "--learning-rate", 0.5)


def test_the_commands_to_go_on_with_can_be_copied_into_a_shell(command: Any, run: Path):
    run = run.rename(run.with_name("a run"))
    assert command(*RESUME, run).out.splitlines()[-1] == f"Evaluate it with: multippo eval '{run}'"
    path = checkpoints(run)[0]
    done = command("eval", path)
    done.assert_refused(f"{path} is a checkpoint, not a run's directory", f"--checkpoint '{path}'")


@pytest.mark.parametrize("call", ["mkdir", "write"])
def test_a_disk_that_is_full_at_the_start_fails_the_run_and_leaves_nothing(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(*((Path, "mkdir") if call == "mkdir" else (directory_module, "write_text")), full)
    done = command(*START, "--run-dir", "new/run")
    words = "the run stopped: [Errno 28] No space left on device. Nothing was saved yet in new/run."
    done.assert_refused(words, code=1)
    assert list(tmp_path.iterdir()) == []
