"""``multippo train --resume``: what goes on, from where, and what is refused."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
from short_runs import SHORT, SMALL, numbers, train

from multippo.algorithms.checkpointing import folder
from multippo.algorithms.metrics import JsonlWriter
from multippo.algorithms.run import Run
from multippo.runs.directory import RunDirectory
from multippo.runs.settings import RunSettings


@pytest.fixture(scope="module")
def run_to_resume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from multippo.cli import main

    path = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["train", "CartPole-v1", "--backend", "torch", "--run-dir", path, "--final-eval-episodes", 0]
    assert main([str(argument) for argument in (*arguments, *SHORT, *SMALL)]) == 0
    return path


def interrupt_after(monkeypatch: pytest.MonkeyPatch, iteration: int) -> None:
    """Ctrl-C while an iteration is logged."""
    write = JsonlWriter.write

    def interrupted(self: JsonlWriter, metrics: Any) -> None:
        write(self, metrics)
        if metrics.get("iteration") == iteration:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonlWriter, "write", interrupted)


@pytest.mark.nightly
def test_a_functional_run_goes_on_as_if_nothing_had_happened(command: Any, monkeypatch: pytest.MonkeyPatch):
    options = ("--total-steps", 128, "--final-eval-episodes", 0, "--checkpoint-every-steps", 64)
    fast = {"env": "brax/fast", "backend": "torch"}
    assert train(command, *options, "--run-dir", "whole", **fast).code == 0
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        done = train(command, *options, "--run-dir", "interrupted", **fast)
        assert done.code == 130
        assert done.err.count("interrupted. Saved: ") == 1
        assert "multippo train --run-dir interrupted --resume" in done.err
    with monkeypatch.context() as patched:  # after it logged an iteration that it had not saved
        save = killed_at_the_second_call(folder.save_checkpoint)
        patched.setattr(folder, "save_checkpoint", save)
        with pytest.raises(Killed):
            train(command, *options, "--run-dir", "killed", **fast)
        assert numbers(Path("killed"))[-1]["iteration"] == 4
    name = "checkpoints/step_000000000128"
    for run in ("interrupted", "killed"):
        done = command("train", "--resume", "--run-dir", run)
        assert done.code == 0, done.err
        assert "from step 64" in done.err
        assert numbers(Path(run)) == numbers(Path("whole"))
        for file in Path("whole", name).iterdir():
            assert Path(run, name, file.name).read_bytes() == file.read_bytes(), file


class Killed(BaseException):
    """Like a signal that can't be caught."""


def killed_at_the_second_call(save: Any) -> Any:
    calls: list[Any] = []

    def saved(*arguments: Any, **options: Any) -> Any:
        calls.append(arguments)
        if len(calls) == 2:
            raise Killed
        return save(*arguments, **options)

    return saved


def test_a_run_stopped_before_its_first_checkpoint_starts_again(command: Any, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        patched.setattr(Run, "go", lambda _: signal.raise_signal(signal.SIGINT))
        assert train(command, "--run-dir", "run").code == 130
    done = command("train", "--run-dir", "run", "--resume", "--final-eval-episodes", 0)
    assert done.code == 0, done.err
    assert [record["iteration"] for record in numbers(Path("run"))] == [1, 2]


def test_a_run_killed_before_it_began_starts_anew(command: Any):
    Path("run").mkdir()
    Path("run/.config.json.0a1b2c3d.tmp").write_text('{"format": "multi')
    done = train(command, "--run-dir", "run", "--final-eval-episodes", 0)
    assert done.code == 0, done.err
    assert not list(Path("run").glob(".*"))


def test_a_finished_run_goes_on_to_more_steps(command: Any):
    train(command, "--run-dir", "run", "--final-eval-episodes", 0)
    for progress in ("plain", "off"):
        done = command("train", "--run-dir", "run", "--resume", "--progress", progress)
        assert done.code == 0
        step = numbers(Path("run"))[-1]["step"]
        said = f"Nothing is left to train: {int(step)} steps in 2 iterations are done, and total_steps=64 asks for 2"
        assert done.err.count(said) == 1
        assert "--total-steps" in done.err
    done = command("train", "--run-dir", "run", "--resume", "--total-steps", 96, "--final-eval-episodes", 0)
    assert done.code == 0, done.err
    assert [record["iteration"] for record in numbers(Path("run")) if "iteration" in record] == [1, 2, 3]
    assert json.loads(Path("run/config.json").read_text())["train"]["ppo"]["total_steps"] == 96


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-envs", 8), "num_envs can't become 8 in a run that began with 4"),
        (("--seed", 8), "seed can't become 8"),
        (("--network", "lstm"), "network can't become lstm"),
        (("Pendulum-v1",), "env can't become Pendulum-v1"),
        (("--actor-hidden-sizes", 4), "actor_hidden_sizes can't become 4 in a run that began with 8"),
        (("--max-episode-steps", 4), "max_episode_steps can't become 4 in a run that began with none"),
    ],
)
def test_a_resumed_run_stays_the_run_it_was(
    command: Any, run_to_resume: Path, arguments: tuple[object, ...], message: str
):
    before = (run_to_resume / "config.json").read_text()
    done = command("train", *arguments, "--run-dir", run_to_resume, "--resume")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert message in done.err
    assert (run_to_resume / "config.json").read_text() == before


def test_another_network_is_refused_by_its_own_name(command: Any):
    settings = RunSettings.of({"env": "CartPole-v1", "network": "lstm", "hidden_features": 4})
    Path("run").mkdir()
    RunDirectory(Path("run")).write_settings(settings, "torch")
    done = command("train", "--run-dir", "run", "--resume", "--network", "mlp")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "network can't become mlp in a run that began with lstm" in done.err


@pytest.mark.parametrize("missing", ["weights.safetensors", "optimizer.safetensors", "checkpoint.json"])
def test_a_checkpoint_that_lacks_a_file(command: Any, run_to_resume: Path, missing: str):
    shutil.copytree(run_to_resume, "run")
    (checkpoint,) = Path("run/checkpoints").iterdir()
    (checkpoint / missing).unlink()
    before = {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()}
    commands: list[tuple[object, ...]] = [("train", "--run-dir", "run", "--resume", "--total-steps", 1000)]
    if missing != "optimizer.safetensors":  # which nobody needs to play
        commands.append(("eval", "run", "--episodes", 1))
    for arguments in commands:
        done = command(*arguments)
        assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
        assert f"{missing} is missing" in done.err
        assert checkpoint.name in done.err
        assert {path: path.read_bytes() for path in Path("run").rglob("*") if path.is_file()} == before


def test_the_last_evaluation_that_a_signal_prevented_is_made_up(command: Any, monkeypatch: pytest.MonkeyPatch):
    with monkeypatch.context() as patched:
        interrupt_after(patched, 2)
        more = ("--eval-every-steps", 1000, "--eval-num-episodes", 2, "--final-eval-episodes", 0)
        assert train(command, "--run-dir", "run", *more).code == 130
    assert not any("eval/episodes" in record for record in numbers(Path("run")))
    for _ in range(2):  # once
        done = command("train", "--run-dir", "run", "--resume")
        assert done.code == 0, done.err
        (evaluated,) = (record for record in numbers(Path("run")) if "eval/episodes" in record)
        (checkpoint,) = Path("run/checkpoints").iterdir()
        about = json.loads((checkpoint / "checkpoint.json").read_text())
        assert (about["eval_return"], about["eval_due"]) == (evaluated["eval/episode_reward/mean"], False)
    assert "Nothing is left to train" in done.err
