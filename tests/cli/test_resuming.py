"""``multippo train --resume``: what goes on, from where, and what is refused."""

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from short_runs import numbers, train

from multippo.algorithms.run import Run


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


def test_a_finished_run_goes_on_to_more_steps(command: Any, run: Path):
    step = int(numbers(run)[-1]["step"])
    for progress in ("plain", "off"):
        done = command("train", "--run-dir", "run", "--resume", "--progress", progress)
        assert done.code == 0
        said = f"Nothing is left to train: {step} steps in 5 iterations are done, and total_steps=160 asks for 5"
        assert done.err.count(said) == 1
        assert "--total-steps" in done.err
    done = command("train", "--run-dir", "run", "--resume", "--total-steps", 192)
    assert done.code == 0, done.err
    assert [record["iteration"] for record in numbers(run) if "iteration" in record] == [1, 2, 3, 4, 5, 6]
    assert json.loads(Path("run/config.json").read_text())["train"]["ppo"]["total_steps"] == 192


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--num-envs", 8), "num_envs can't become 8 in a run that began with 4"),
        (("--actor-hidden-sizes", 4), "actor_hidden_sizes can't become 4 in a run that began with 8"),
    ],
)
def test_a_resumed_run_stays_the_run_it_was(command: Any, five: Path, arguments: tuple[object, ...], message: str):
    before = (five / "config.json").read_text()
    command("train", *arguments, "--run-dir", five, "--resume").assert_refused(message)
    assert (five / "config.json").read_text() == before
