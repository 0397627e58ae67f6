"""``multippo train`` and ``multippo eval``: what they write, and how they end."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from short_runs import checkpoints, numbers, train

from multippo.cli import train as train_module
from multippo.runs.directory import RunDirectory


@pytest.mark.parametrize(("backend", "other"), [("jax", "torch"), ("torch", "jax")])
@pytest.mark.nightly_if("jax")
def test_a_run_is_written_and_evaluates_alike_on_every_engine(command: Any, backend: str, other: str):
    done = train(command, "--run-dir", "run", "--final-eval-episodes", 6, "--seed", 2, backend=backend)
    assert done.code == 0, done.err
    run = Path("run")
    assert {path.name.partition(".out")[0] for path in run.iterdir()} == {
        "checkpoints",
        "config.json",
        "events",
        "learning_curve.png",
        "metrics.jsonl",
    }
    first, second, last = numbers(run)
    assert (first["iteration"], second["iteration"]) == (1, 2)
    assert first["ratio/first_max_dev"] <= 1e-5
    assert [path.name for path in (run / "checkpoints").iterdir()] == [f"step_{second['step']:012d}"]
    assert (last["step"], last["eval/episodes"]) == (second["step"], 6)
    assert "Final evaluation: return" in done.out
    assert "multippo eval run" in done.out
    assert "Training CartPole-v1 on" in done.err

    found = command("eval", "run", "--json", "--episodes", 6)
    assert (found.code, found.err) == (0, "")
    report = json.loads(found.out)
    assert (report["backend"], report["step"], report["episodes"]) == (backend, second["step"], 6)
    assert report["episode_reward_mean"] == last["eval/episode_reward/mean"]
    assert report["episode_reward_std"] == last["eval/episode_reward/std"]
    for engine in (other, "numpy"):
        elsewhere = json.loads(command("eval", "run", "--json", "--episodes", 6, "--backend", engine).out)
        assert elsewhere["backend"] == engine
        for name in ("episode_reward_mean", "episode_reward_std", "episode_length_mean"):
            assert elsewhere[name] == pytest.approx(report[name], abs=1e-5), (engine, name)


WITHOUT_FRAMEWORKS = """
import importlib.util, sys
frameworks = ("jax", "jaxlib", "flax", "optax", "torch")
class Missing:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in frameworks:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing)
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in frameworks else find(name, *rest)
from multippo.cli import main
codes = main(["eval", "run", "--episodes", "4", "--json"]), main(["train", "CartPole-v1"])
assert codes == (0, 2), codes
"""


def test_a_run_evaluates_where_neither_framework_is_installed_and_none_is_trained_there(command: Any, run: Path):
    expected = json.loads(command("eval", run, "--episodes", 4, "--json").out)
    done = subprocess.run([sys.executable, "-c", WITHOUT_FRAMEWORKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == "numpy"
    assert report["episode_reward_mean"] == pytest.approx(expected["episode_reward_mean"])
    assert done.stderr.count("\n") == 1 and "can't train: it has no gradients" in done.stderr
    assert "pip install 'multippo[jax]'" in done.stderr


def test_runs_begun_in_one_second_get_directories_of_their_own(command: Any, monkeypatch: pytest.MonkeyPatch):
    choose, chosen = train_module.default_run_directory, []

    def taken_at_once(*arguments: Any) -> RunDirectory:
        directory = choose(*arguments)
        if not chosen:  # by another process, after it was found free
            directory.path.mkdir(parents=True)
        chosen.append(directory.path)
        return directory

    monkeypatch.setattr(train_module, "default_run_directory", taken_at_once)
    done = train(command, "--final-eval-episodes", 0)
    assert done.code == 0, done.err
    first, second = chosen
    assert not list(first.iterdir())
    assert f"Run: {second}" in done.out
    assert second.parent == Path("runs/CartPole-v1") and (second / "config.json").exists()
    assert command("eval", second, "--episodes", 2).out.startswith("Evaluation: return ")


def test_the_file_of_a_run_repeats_it(command: Any, five: Path):
    assert command("train", "--config", five / "config.json", "--run-dir", "again", "--backend", "torch").code == 0
    assert numbers(Path("again")) == numbers(five)


def test_evaluation_during_training(command: Any):
    done = train(command, "--run-dir", "run", "--eval-every-steps", 20, "--eval-num-episodes", 2)
    assert done.code == 0
    assert [("eval/episodes" in record) for record in numbers(Path("run"))] == [False, True, False, True, True]
    assert "evaluation: return" in done.err


def test_eval_refuses_what_is_no_run_and_takes_a_step(command: Any, run: Path):
    path = checkpoints(run)[1]
    step = int(path.name.removeprefix("step_"))
    for which in (step, path.name, path):
        found = command("eval", "run", "--checkpoint", which, "--json", "--episodes", 2, "--stochastic", "--seed", 3)
        assert (json.loads(found.out)["step"], json.loads(found.out)["deterministic"]) == (step, False)
    for arguments, message in (
        (("run", "--checkpoint", 7), "no checkpoint '7'"),
        (("run", "--episodes", 0), "episodes=0"),
        (("run", "--seed", -1), "seed=-1"),
        (("run/config.json",), "it has no config.json"),
        ((), "a run is missing"),
    ):
        command("eval", *arguments).assert_refused(message)
