"""``multippo train`` and ``eval``: checkpoints that stay, that are damaged, and that could not be saved."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from short_runs import FIVE, checkpoints, contents, iterations, numbers, train

import multippo as mp
from multippo.algorithms.checkpointing import checkpoint as checkpoint_file
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


def test_a_directory_of_checkpoints_behind_a_link_is_refused_and_left_as_it_is(command: Any, run: Path, tmp_path: Path):
    (run / "checkpoints").rename(tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "disk")
    before = contents(tmp_path)
    for arguments in ((*RESUME, "--total-steps", 320), ("eval", run), ("compare", run, run)):
        command(*arguments).assert_refused("checkpoints is a symbolic link, and none is followed inside a run")
    assert contents(tmp_path) == before
    # The run itself may be reached by one.
    (run / "checkpoints").unlink()
    (tmp_path / "disk").rename(run / "checkpoints")
    (tmp_path / "link").symlink_to(run)
    assert command("eval", tmp_path / "link", "--episodes", 1).code == 0


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


def test_a_number_of_environments_that_is_not_the_checkpoints_is_refused_before_any_is_made(command: Any, run: Path):
    config = json.loads((run / "config.json").read_text())
    config["train"]["ppo"]["num_envs"] = 2**20
    (run / "config.json").write_text(json.dumps(config))
    done = command("train", "--run-dir", run, "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"num_envs=1048576, and {checkpoints(run)[-1].name} of 4 environments" in done.err
    assert json.loads((run / "config.json").read_text()) == config


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


def test_the_best_and_the_last_stay_through_interruptions(command: Any, monkeypatch: pytest.MonkeyPatch):
    # The returns of the evaluations are made up: of iterations 1 to 7.
    returns = dict(zip(range(1, 8), (20.0, 50.0, 30.0, 60.0, 60.0, 10.0, 0.0), strict=True))
    from multippo.algorithms import ppo as run_module

    evaluate = run_module.Run._evaluate

    def made_up(self: Any) -> Any:
        original = self.evaluator
        value = returns[self.iteration]

        class Evaluator:
            def play(self, *arguments: Any) -> Any:
                return {**original.play(*arguments), "eval/episode_reward/mean": value}

        self.evaluator = Evaluator()
        found = evaluate(self)
        self.evaluator = original
        return found

    monkeypatch.setattr(run_module.Run, "_evaluate", made_up)
    arguments = ("--run-dir", "run", "--keep-best", 2, "--eval-every-steps", 1, "--final-eval-episodes", 0)
    more = ("--eval-num-episodes", 1, "--eval-num-envs", 1, "--eval-max-episode-steps", 3)
    kept: list[list[int]] = []
    write = JsonlWriter.write

    def interrupted(self: JsonlWriter, metrics: Any) -> None:
        write(self, metrics)
        kept.append(iterations())
        if metrics.get("iteration") == 4 and "resumed" not in os.environ:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonlWriter, "write", interrupted)
    assert train(command, *arguments, *more, "--total-steps", 192).code == 130
    # The interrupt comes before the evaluation of iteration 4, which is saved as it is.
    assert iterations() == [2, 3, 4]
    monkeypatch.setenv("resumed", "1")
    done = command(*RESUME)
    assert done.code == 0, done.err
    # The evaluation that was prevented is made up, and 60 in iteration 4 pushes out 50 in iteration 2.
    assert iterations() == [4, 5, 6]
    best = checkpoints()[1]
    assert f"Evaluate the best, {best.name}, with: multippo eval run --checkpoint best" in done.out
    report = json.loads(command("eval", "run", "--checkpoint", "best", "--episodes", 1, "--json").out)
    assert Path(report["checkpoint"]).name == best.name
    assert all(len(saved) <= 4 for saved in kept)
    # Asked for anew, fewer stay.
    done = command(*RESUME, "--total-steps", 193, "--keep-last", 1, "--keep-best", "none")
    assert done.code == 0, done.err
    assert iterations() == [7]


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


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes saves and lines fail by their number, counted from 1."""

    def failing(saves: set[int], lines: set[int] | None = None, error: int = errno.ENOSPC) -> None:
        counts = {"saves": 0, JsonlWriter: 0, TensorBoardWriter: 0}
        write_tensors = checkpoint_file.write_tensors

        def save(path: Path, arrays: Any) -> str:
            if path.name.startswith("weights"):
                counts["saves"] += 1
            if path.name.startswith("carry") and counts["saves"] in saves:
                raise OSError(error, os.strerror(error), str(path))
            return write_tensors(path, arrays)

        monkeypatch.setattr(checkpoint_file, "write_tensors", save)
        for kind in (JsonlWriter, TensorBoardWriter):

            def write(self: Any, metrics: Any, kind: Any = kind, original: Any = kind.write) -> None:
                counts[kind] += 1
                if counts[kind] in (lines or ()):
                    raise OSError(error, os.strerror(error))
                original(self, metrics)

            monkeypatch.setattr(kind, "write", write)

    return failing


def test_a_full_disk_stops_the_run_with_the_last_good_checkpoint(command: Any, disk: Any):
    disk(saves={3})
    done = train(command, *FIVE, "--run-dir", "run")
    assert (done.code, done.out) == (1, "")
    assert iterations() == [1, 2]
    saved = f"Saved: {checkpoints()[-1].absolute()}. Go on with: multippo train --run-dir run --resume"
    for words in ("the run stopped: [Errno 28] No space left on device", saved):
        assert words in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
    assert sorted(Path("run/checkpoints").iterdir()) == checkpoints()
    assert command(*RESUME).code == 0
    assert logged() == [1, 2, 3, 4, 5]


def test_a_run_may_go_on_over_a_full_disk(command: Any, disk: Any, caplog: pytest.LogCaptureFixture):
    disk(saves={2, 3}, lines={1, 3, 4})
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


def test_a_run_whose_last_state_could_not_be_saved_has_failed(command: Any, disk: Any):
    disk(saves={4, 5}, error=errno.EACCES)  # as in a directory that has become read-only
    done = train(command, *FIVE, "--run-dir", "run", "--on-save-error", "continue")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert "the training is done. The last state could not be saved: [Errno 13] Permission denied" in last
    assert f"Saved: {checkpoints()[-1].absolute()}" in last
    assert iterations() == [1, 2, 3]
