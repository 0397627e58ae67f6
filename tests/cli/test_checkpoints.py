"""``multippo train`` and ``eval``: checkpoints that stay, that are damaged, and that could not be saved."""

import errno
import itertools
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from short_runs import FIVE, checkpoints, contents, iterations, numbers, train

import multippo as mp
from multippo.algorithms.checkpointing import folder
from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.metrics import JsonlWriter, TensorBoardWriter

RESUME = ("train", "--run-dir", "run", "--resume", "--progress", "plain")


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 4
    file.write_bytes(content)


def logged() -> list[int]:
    return [record["iteration"] for record in numbers(Path("run")) if "iteration" in record]


# -- damaged


def test_resume_skips_what_is_damaged_and_says_why(command: Any, run: Path, tmp_path: Path):
    whole = checkpoints(run)
    whole[4].rename(tmp_path / "elsewhere")
    whole[4].symlink_to(tmp_path / "elsewhere")
    shutil.rmtree(whole[3])
    whole[3].write_text("a file")
    flip(whole[2] / "carry.safetensors")
    (whole[1] / "optimizer.safetensors").unlink()
    done = command("eval", run, "--episodes", 1)
    assert done.code == 0 and whole[2].name in done.out  # the carry is not needed to play
    done = command(*RESUME)
    assert done.code == 0, done.err
    no_directory = "it is a link or a file, and a checkpoint is a directory."
    why = (no_directory, no_directory, "carry.safetensors is damaged. Its SHA-256", "optimizer.safetensors is missing")
    skipped = [line for line in done.err.splitlines() if line.startswith("Skipped ")]
    for line, path, words in zip(skipped, whole[:0:-1], why, strict=True):
        assert line.startswith(f"Skipped {path.name}:") and words in line
    assert f"from step {mp.load_checkpoint(whole[0]).manifest.step:,}" in done.err
    assert logged() == [1, 2, 3, 4, 5]
    # The damaged ones made way for those of the same steps, if the run came to the same.
    damaged = sorted((run / "checkpoints").glob("damaged_*"))
    assert [path.name for path in damaged] == [f"damaged_{path.name}" for path in whole[1:]]
    assert iterations() == [1, 2, 3, 4, 5]
    for path in checkpoints(run):
        mp.load_checkpoint(path).arrays()
    assert len(list((tmp_path / "elsewhere").iterdir())) == len(list(whole[0].iterdir()))
    # And again, at the same step.
    flip(checkpoints(run)[-1] / "weights.safetensors")
    assert command(*RESUME).code == 0
    assert len(list((run / "checkpoints").glob("damaged_*"))) == 5


def test_a_checkpoint_that_is_taken_away_while_it_is_read_is_no_damage(
    command: Any, run: Path, monkeypatch: pytest.MonkeyPatch
):
    restore, last = Checkpoint.restore_weights, checkpoints(run)[-1]

    def removed(self: Checkpoint, network: Any) -> None:
        if self.path.name == last.name:  # as --keep-last does, when a later one is saved
            shutil.rmtree(self.path)
        restore(self, network)

    monkeypatch.setattr(Checkpoint, "restore_weights", removed)
    done = command("eval", run, "--episodes", 1)
    assert done.code == 0, done.err
    assert checkpoints(run)[-1].name in done.out


def test_where_all_are_damaged_nothing_is_changed(command: Any, run: Path):
    for path in checkpoints(run):
        flip(path / "weights.safetensors")
    before = contents(run)
    done = command(*RESUME, "--total-steps", 320)
    done.assert_refused("no checkpoint of run can be read")
    assert done.err.count("weights.safetensors is damaged") == 5
    done = command("eval", run, "--episodes", 1)
    done.assert_refused("weights.safetensors is damaged", "No other can be read")
    assert contents(run) == before


def test_another_network_or_a_later_format_is_not_taken_for_damage(command: Any, run: Path):
    path = checkpoints(run)[-1] / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    done = command(*RESUME)
    done.assert_refused("checkpoint format 2")
    assert "Skipped" not in done.err
    config = json.loads((run / "config.json").read_text())
    config["network"]["options"]["actor_hidden_sizes"] = [5]
    (run / "config.json").write_text(json.dumps(config))
    shutil.rmtree(path.parent)
    command(*RESUME).assert_refused("has shape (8,)", "expected (5,)")
    assert len(checkpoints(run)) == 4


@pytest.mark.parametrize("file", ["weights.safetensors", "checkpoint.json"])
def test_eval_names_the_damaged_file_and_the_last_whole_checkpoint(command: Any, run: Path, file: str):
    whole = checkpoints(run)
    for path in whole[3:]:
        flip(path / file) if file != "checkpoint.json" else (path / file).write_text("{")
    step = mp.load_checkpoint(whole[2]).manifest.step
    done = command("eval", run, "--episodes", 1)
    done.assert_refused(f"{whole[4].name}/{file} is damaged", f"The last whole one: --checkpoint {step}\n")
    done = command("eval", run, "--episodes", 1, "--checkpoint", step)
    assert done.code == 0 and f"step {step}" in done.out


# -- which stay


def test_the_best_and_the_last_stay(command: Any):
    evaluated = ("--eval-every-steps", 1, "--eval-num-episodes", 1, "--eval-num-envs", 1)
    assert train(command, *FIVE, *evaluated, "--run-dir", "run", "--keep-best", 1).code == 0
    returns = [line["eval/episode_reward/mean"] for line in numbers(Path("run")) if "eval/episodes" in line]
    best = max(range(5), key=lambda index: (returns[index], index)) + 1
    assert iterations() == sorted({best, 5})
    report = json.loads(command("eval", "run", "--checkpoint", "best", "--episodes", 1, "--json").out)
    assert mp.load_checkpoint(report["checkpoint"]).manifest.iteration == best
    # Asked for anew, fewer stay.
    done = command(*RESUME, "--total-steps", 193, "--keep-last", 1, "--keep-best", "none")
    assert done.code == 0, done.err
    assert len(iterations()) == 1


def test_only_the_last_stay(command: Any):
    assert train(command, *FIVE, "--run-dir", "run", "--keep-last", 2).code == 0
    assert iterations() == [4, 5]
    done = command("eval", "run", "--checkpoint", "best")
    done.assert_refused("no checkpoint that was saved at an evaluation: train with --keep-best 1")
    # The resumed run keeps as many, unless it is told otherwise.
    command(*RESUME, "--total-steps", 192)
    assert iterations() == [5, 6]
    command(*RESUME, "--total-steps", 256, "--keep-last", 3)
    assert iterations() == [6, 7, 8]
    assert json.loads(Path("run/config.json").read_text())["keep_last"] == 3


# -- disks


def failing_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, numbers: set[int], error: int) -> None:
    """Makes calls fail by their number, counted from 1."""
    original, count = getattr(owner, name), itertools.count(1)

    def call(*arguments: Any, **keywords: Any) -> Any:
        if next(count) in numbers:
            raise OSError(error, os.strerror(error))
        return original(*arguments, **keywords)

    monkeypatch.setattr(owner, name, call)


def test_a_run_may_go_on_over_a_full_disk(command: Any, monkeypatch: Any, caplog: pytest.LogCaptureFixture):
    failing_at(monkeypatch, folder, "save_checkpoint", {2, 3}, errno.ENOSPC)
    for kind in (JsonlWriter, TensorBoardWriter):
        failing_at(monkeypatch, kind, "write", {1, 3, 4}, errno.ENOSPC)
    done = train(command, *FIVE, "--run-dir", "run", "--on-save-error", "continue")
    assert done.code == 0, done.err
    assert iterations() == [1, 4, 5]
    assert logged() == [2, 5]
    said = [record.getMessage() for record in caplog.records]
    assert sum("was not saved" in text and "[Errno 28]" in text for text in said) == 2
    # Once for each file and time that it began to fail.
    assert sum("Metrics are missing in metrics.jsonl" in text for text in said) == 2
    assert sum("Metrics are missing in TensorBoard's events" in text for text in said) == 2
    assert json.loads(Path("run/config.json").read_text())["on_save_error"] == "continue"


def test_a_run_whose_last_state_could_not_be_saved_has_failed(command: Any, monkeypatch: Any):
    # As in a directory that has become read-only.
    failing_at(monkeypatch, folder, "save_checkpoint", {4, 5}, errno.EACCES)
    done = train(command, *FIVE, "--run-dir", "run", "--on-save-error", "continue")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert "the training is done. The last state could not be saved: [Errno 13] Permission denied" in last
    assert f"Saved: {checkpoints()[-1].absolute()}" in last
    assert iterations() == [1, 2, 3]
