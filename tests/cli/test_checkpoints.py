"""``multippo train`` and ``eval``: checkpoints that stay, that are damaged, and that could not be saved."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import multippo as mp
from multippo.algorithms.checkpointing import writing
from multippo.algorithms.checkpointing.checkpoint import Checkpoint
from multippo.algorithms.metrics import JsonlWriter, TensorBoardWriter, read_metrics
from multippo.cli import main

SMALL = ("--backend", "torch", "--actor-hidden-sizes", 4, "--critic-hidden-sizes", 4, "--num-envs", 4)
SHORT = ("--rollout-length", 8, "--num-epochs", 1, "--num-minibatches", 1, "--progress", "plain")
# CartPole in four environments: an iteration is at most 32 steps, of which those that only reset do not count.
FIVE = ("--total-steps", 160, "--final-eval-episodes", 0, "--checkpoint-every-steps", 1)


@pytest.fixture(scope="module")
def five(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint after each of five iterations."""
    path = tmp_path_factory.mktemp("runs") / "run"
    arguments = ("train", "CartPole-v1", *SMALL, *SHORT, *FIVE, "--run-dir", path)
    assert main([str(argument) for argument in arguments]) == 0
    return path


@pytest.fixture
def run(five: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(five, tmp_path / "run"))


def checkpoints(run: Path) -> list[Path]:
    return sorted((run / "checkpoints").glob("step_*"))


def flip(file: Path) -> None:
    content = bytearray(file.read_bytes())
    content[-1] ^= 4
    file.write_bytes(content)


def logged(run: Path) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run / "metrics.jsonl") if "iteration" in record]


# -- damaged


def test_resume_skips_what_is_damaged_and_says_why(command: Any, run: Path):
    whole = checkpoints(run)
    flip(whole[4] / "carry.safetensors")
    (whole[3] / "optimizer.safetensors").unlink()
    (whole[2] / "checkpoint.json").write_text("{")
    step = mp.load_checkpoint(whole[1]).manifest.step
    done = command("train", "--run-dir", run, "--resume", "--progress", "plain")
    assert done.code == 0, done.err
    lines = done.err.splitlines()
    skipped = [line for line in lines if line.startswith("Skipped ")]
    assert [line.split()[1] for line in skipped] == [f"{path.name}:" for path in whole[:1:-1]]
    for line, why in zip(
        skipped,
        ("carry.safetensors is damaged. Its SHA-256", "optimizer.safetensors is missing", "it is not JSON"),
        strict=True,
    ):
        assert why in line
    assert f"from step {step:,}" in done.err
    assert [record["iteration"] for record in logged(run)] == [1, 2, 3, 4, 5]
    # The damaged ones made way for those of the same steps, if the run came to the same.
    assert sorted(path.name for path in (run / "checkpoints").glob("damaged_*")) == [
        f"damaged_{path.name}" for path in whole[2:]
    ]
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(run)] == [1, 2, 3, 4, 5]
    for path in checkpoints(run):
        mp.load_checkpoint(path).arrays()
    # And again, at the same step.
    flip(checkpoints(run)[-1] / "weights.safetensors")
    done = command("train", "--run-dir", run, "--resume", "--progress", "plain")
    assert done.code == 0, done.err
    assert len(list((run / "checkpoints").glob("damaged_*"))) == 4


def test_links_and_files_in_the_place_of_checkpoints_are_skipped_too(command: Any, run: Path, tmp_path: Path):
    whole = checkpoints(run)
    whole[4].rename(tmp_path / "elsewhere")
    whole[4].symlink_to(tmp_path / "elsewhere")
    shutil.rmtree(whole[3])
    whole[3].write_text("a file")
    step = mp.load_checkpoint(whole[2]).manifest.step
    done = command("eval", run, "--episodes", 1)
    assert done.code == 0 and f"checkpoint of step {step}:" in done.out
    done = command("train", "--run-dir", run, "--resume", "--progress", "plain")
    assert done.code == 0, done.err
    assert f"from step {step:,}" in done.err
    for path in whole[3:]:
        assert f"Skipped {path.name}: it is a link or a file, and a checkpoint is a directory." in done.err
        assert (run / "checkpoints" / f"damaged_{path.name}").exists()
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(run)] == [1, 2, 3, 4, 5]
    assert sorted(path.name for path in (tmp_path / "elsewhere").iterdir()) == sorted(
        path.name for path in whole[2].iterdir()
    )


def test_a_directory_of_checkpoints_behind_a_link_is_refused_and_left_as_it_is(command: Any, run: Path, tmp_path: Path):
    (run / "checkpoints").rename(tmp_path / "disk")
    (run / "checkpoints").symlink_to(tmp_path / "disk")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    commands = (("train", "--run-dir", run, "--resume", "--total-steps", 320), ("eval", run), ("compare", run, run))
    for arguments in commands:
        done = command(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
        assert "checkpoints is a symbolic link, and none is followed inside a run" in done.err
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
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


def test_a_checkpoint_given_as_a_run(command: Any, run: Path):
    path = checkpoints(run)[0]
    done = command("eval", path)
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert f"{path} is a checkpoint, not a run's directory" in done.err and f"--checkpoint {path}" in done.err


def test_where_all_are_damaged_nothing_is_changed(command: Any, run: Path):
    for path in checkpoints(run):
        flip(path / "weights.safetensors")
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    done = command("train", "--run-dir", run, "--resume", "--total-steps", 320)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert f"no checkpoint of {run} can be read" in done.err
    assert done.err.count("weights.safetensors is damaged") == 3 and "and 2 more" in done.err
    done = command("eval", run, "--episodes", 1)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    assert "weights.safetensors is damaged" in done.err and "No other can be read" in done.err
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


def test_another_network_or_a_later_format_is_not_taken_for_damage(command: Any, run: Path):
    path = checkpoints(run)[-1] / "checkpoint.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": 2}))
    done = command("train", "--run-dir", run, "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "checkpoint format 2" in done.err and "Skipped" not in done.err
    config = json.loads((run / "config.json").read_text())
    config["network"]["options"]["actor_hidden_sizes"] = [5]
    (run / "config.json").write_text(json.dumps(config))
    shutil.rmtree(path.parent)
    done = command("train", "--run-dir", run, "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "has shape (4,)" in done.err and "expected (5,)" in done.err
    assert len(checkpoints(run)) == 4


@pytest.mark.parametrize("file", ["weights.safetensors", "checkpoint.json"])
def test_eval_names_the_damaged_file_and_the_last_whole_checkpoint(command: Any, run: Path, file: str):
    whole = checkpoints(run)
    for path in whole[3:]:
        if file == "checkpoint.json":
            (path / file).write_text("{")
        else:
            flip(path / file)
    done = command("eval", run, "--episodes", 1)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1)
    step = mp.load_checkpoint(whole[2]).manifest.step
    assert f"{whole[4].name}/{file} is damaged" in done.err
    assert done.err.strip().endswith(f"The last whole one: --checkpoint {step}")
    done = command("eval", run, "--episodes", 1, "--checkpoint", step)
    assert done.code == 0 and f"step {step}" in done.out


# -- which stay


def test_the_best_and_the_last_stay_through_interruptions(command: Any, monkeypatch: pytest.MonkeyPatch):
    # The returns of the evaluations are made up: of iterations 1 to 7.
    returns = dict(zip(range(1, 8), (20.0, 50.0, 30.0, 60.0, 60.0, 10.0, 0.0), strict=True))
    from multippo.algorithms import run as run_module

    evaluate = run_module.Run._evaluate

    def made_up(self: Any) -> Any:
        original = self.evaluator
        value = returns[self.iteration]

        class Evaluator:
            def run(self, *arguments: Any) -> Any:
                return {**original.run(*arguments), "eval/episode_reward/mean": value}

        self.evaluator = Evaluator()
        found = evaluate(self)
        self.evaluator = original
        return found

    monkeypatch.setattr(run_module.Run, "_evaluate", made_up)
    arguments = ("train", "CartPole-v1", *SMALL, *SHORT, "--run-dir", "run", "--keep-best", 2, "--eval-every-steps", 1)
    more = ("--eval-num-episodes", 1, "--eval-num-envs", 1, "--eval-max-episode-steps", 3, "--final-eval-episodes", 0)
    kept: dict[int, list[int]] = {}
    write = JsonlWriter.write

    def interrupted(self: JsonlWriter, metrics: Any) -> None:
        write(self, metrics)
        kept[len(kept)] = [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))]
        if metrics.get("iteration") == 4 and "resumed" not in os.environ:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonlWriter, "write", interrupted)
    assert command(*arguments, *more, "--total-steps", 192).code == 130
    # The interrupt comes before the evaluation of iteration 4, which is saved as it is.
    iterations = [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))]
    assert iterations == [2, 3, 4]
    monkeypatch.setenv("resumed", "1")
    done = command("train", "--run-dir", "run", "--resume", "--progress", "plain")
    assert done.code == 0, done.err
    iterations = [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))]
    # The evaluation that was prevented is made up, and 60 in iteration 4 pushes out 50 in iteration 2.
    assert iterations == [4, 5, 6]
    best = checkpoints(Path("run"))[1]
    assert f"Evaluate the best, {best.name}, with: multippo eval run --checkpoint best" in done.out
    report = json.loads(command("eval", "run", "--checkpoint", "best", "--episodes", 1, "--json").out)
    assert Path(report["checkpoint"]).name == best.name
    assert all(len(names) <= 4 for names in kept.values())
    # Asked for anew, fewer stay.
    done = command(
        "train", "--run-dir", "run", "--resume", "--total-steps", 193, "--keep-last", 1, "--keep-best", "none"
    )
    assert done.code == 0, done.err
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [7]


def test_only_the_last_stay(command: Any):
    done = command("train", "CartPole-v1", *SMALL, *SHORT, *FIVE, "--run-dir", "run", "--keep-last", 2)
    assert done.code == 0, done.err
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [4, 5]
    done = command("eval", "run", "--checkpoint", "best")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no checkpoint that was saved at an evaluation: train with --keep-best 1" in done.err
    # The resumed run keeps as many, unless it is told otherwise.
    done = command("train", "--run-dir", "run", "--resume", "--total-steps", 192)
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [5, 6]
    done = command("train", "--run-dir", "run", "--resume", "--total-steps", 256, "--keep-last", 3)
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [6, 7, 8]
    assert json.loads(Path("run/config.json").read_text())["keep_last"] == 3


# -- disks


class Disk:
    """Full while ``full`` says so for the number of the save or line, counted from 1."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, saves: set[int], lines: set[int] | None = None) -> None:
        counts = {"saves": 0, JsonlWriter: 0, TensorBoardWriter: 0}
        write_tensors = writing.write_tensors

        def save(path: Path, arrays: Any) -> str:
            if path.name.startswith("weights"):
                counts["saves"] += 1
            if path.name.startswith("carry") and counts["saves"] in saves:
                raise OSError(errno.ENOSPC, "No space left on device", str(path))
            return write_tensors(path, arrays)

        monkeypatch.setattr(writing, "write_tensors", save)
        for kind in (JsonlWriter, TensorBoardWriter):

            def write(self: Any, metrics: Any, kind: Any = kind, original: Any = kind.write) -> None:
                counts[kind] += 1
                if counts[kind] in (lines or ()):
                    raise OSError(errno.ENOSPC, "No space left on device")
                original(self, metrics)

            monkeypatch.setattr(kind, "write", write)


def test_a_full_disk_stops_the_run_with_the_last_good_checkpoint(command: Any, monkeypatch: pytest.MonkeyPatch):
    Disk(monkeypatch, saves={3})
    done = command("train", "CartPole-v1", *SMALL, *SHORT, *FIVE, "--run-dir", "run")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert "the run stopped: [Errno 28] No space left on device" in last
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [1, 2]
    assert (
        f"Saved: {checkpoints(Path('run'))[-1].absolute()}. Go on with: multippo train --run-dir run --resume" in last
    )
    assert "Traceback" not in done.err
    assert sorted(path.name for path in Path("run/checkpoints").iterdir()) == [
        path.name for path in checkpoints(Path("run"))
    ]
    assert command("train", "--run-dir", "run", "--resume").code == 0
    assert [record["iteration"] for record in logged(Path("run"))] == [1, 2, 3, 4, 5]


def test_a_run_may_go_on_over_a_full_disk(
    command: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    Disk(monkeypatch, saves={2, 3}, lines={1, 3, 4})
    done = command("train", "CartPole-v1", *SMALL, *SHORT, *FIVE, "--run-dir", "run", "--on-save-error", "continue")
    assert done.code == 0, done.err
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [1, 4, 5]
    assert [record["iteration"] for record in logged(Path("run"))] == [2, 5]
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "was not saved" in text and "[Errno 28]" in text].__len__() == 2
    # Once for each file and time that it began to fail.
    assert sum("Metrics are missing in metrics.jsonl" in text for text in said) == 2
    assert sum("Metrics are missing in TensorBoard's events" in text for text in said) == 2
    assert json.loads(Path("run/config.json").read_text())["on_save_error"] == "continue"


def test_a_run_whose_last_state_could_not_be_saved_has_failed(command: Any, monkeypatch: pytest.MonkeyPatch):
    Disk(monkeypatch, saves={4, 5})
    done = command("train", "CartPole-v1", *SMALL, *SHORT, *FIVE, "--run-dir", "run", "--on-save-error", "continue")
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert "the training is done. The last state could not be saved: [Errno 28]" in last
    assert f"Saved: {checkpoints(Path('run'))[-1].absolute()}" in last
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(Path("run"))] == [1, 2, 3]


@pytest.fixture
def unprivileged(five: Path) -> Iterator[Path]:
    """A directory of a user who is not root."""
    del five  # after a run: the user may not read what it imports
    path, user = Path(tempfile.mkdtemp()), os.geteuid()
    path.chmod(0o755)
    if user == 0:
        os.chown(path, 65534, 65534)
        os.seteuid(65534)
    yield path
    os.seteuid(user)
    for folder, _, _ in os.walk(path):
        Path(folder).chmod(0o755)
    shutil.rmtree(path)


@pytest.mark.parametrize("on_save_error", ["stop", "continue"])
def test_a_directory_that_becomes_read_only(
    command: Any, unprivileged: Path, monkeypatch: pytest.MonkeyPatch, on_save_error: str
):
    run, write = unprivileged / "run", JsonlWriter.write

    def locks(self: JsonlWriter, metrics: Any) -> None:
        write(self, metrics)
        if metrics["iteration"] == 3:
            for folder in (run / "checkpoints", run):
                folder.chmod(0o555)

    monkeypatch.setattr(JsonlWriter, "write", locks)
    done = command("train", "CartPole-v1", *SMALL, *SHORT, *FIVE, "--run-dir", run, "--on-save-error", on_save_error)
    assert (done.code, done.out) == (1, "")
    last = done.err.splitlines()[-1]
    assert "[Errno 13] Permission denied" in last and "step_" in last
    assert "Traceback" not in done.err
    assert [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(run)] == [1, 2]
    # What was open already can be written on.
    assert len(logged(run)) == (3 if on_save_error == "stop" else 5)
    assert f"Saved: {checkpoints(run)[-1]}" in last
