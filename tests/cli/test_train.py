"""``multippo train`` and ``multippo eval``: what they write, and how they end."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from multippo.algorithms import checkpoint_folder
from multippo.algorithms.metrics import JsonlWriter, read_metrics
from multippo.cli import train as train_module
from multippo.cli.runs import RunDirectory
from multippo.cli.settings import RunSettings, settings_from

ROOT = Path(__file__).resolve().parents[2]

# Two iterations of 4 x 8 steps.
SHORT = ("--num-envs", 4, "--rollout-length", 8, "--num-epochs", 1, "--num-minibatches", 2, "--total-steps", 64)
SMALL = ("--actor-hidden-sizes", 8, "--critic-hidden-sizes", 8)


def train(command: Any, *arguments: object, env: str = "CartPole-v1", backend: str = "torch") -> Any:
    return command("train", env, "--backend", backend, "--progress", "plain", *SHORT, *SMALL, *arguments)


def numbers(path: Path) -> list[dict[str, Any]]:
    """What was logged, without what the clock says."""
    return [
        {name: value for name, value in record.items() if not name.startswith(("time/", "throughput/"))}
        for record in read_metrics(path / "metrics.jsonl")
    ]


@pytest.mark.parametrize(("backend", "other"), [("jax", "torch"), ("torch", "jax")])
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


def test_a_run_evaluates_where_neither_framework_is_installed_and_none_is_trained_there(command: Any):
    assert train(command, "--run-dir", "run", "--final-eval-episodes", 4).code == 0
    done = subprocess.run([sys.executable, "-c", WITHOUT_FRAMEWORKS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["backend"] == "numpy"
    assert report["episode_reward_mean"] == pytest.approx(numbers(Path("run"))[-1]["eval/episode_reward/mean"])
    assert done.stderr.count("\n") == 1 and "can't train: it has no gradients" in done.stderr
    assert "pip install 'multippo[jax]'" in done.stderr


def test_a_gru_is_trained_on_one_engine_and_goes_on_on_the_other(command: Any):
    options = ("--network", "gru", "--hidden-features", 4, "--encoder-sizes", 4)
    done = train(command, "--run-dir", "run", "--final-eval-episodes", 0, *options)
    assert done.code == 0, done.err
    more = ("--resume", "--run-dir", "run", "--total-steps", 96, "--final-eval-episodes", 0)
    done = command("train", *more, "--backend", "jax", "--progress", "plain")
    assert done.code == 0, done.err
    logged = numbers(Path("run"))
    assert [record["iteration"] for record in logged] == [1, 2, 3]
    assert max(record["ratio/first_max_dev"] for record in logged) <= 1e-5


def test_one_seed_is_one_run(command: Any):
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        assert train(command, "--run-dir", name, "--seed", seed, "--final-eval-episodes", 0).code == 0
    assert numbers(Path("a")) == numbers(Path("b"))
    assert numbers(Path("a"))[0]["losses/critic"] != numbers(Path("c"))[0]["losses/critic"]


def test_a_directory_is_found_for_a_run_that_names_none(command: Any):
    done = train(command, "--final-eval-episodes", 0)
    (path,) = Path("runs/CartPole-v1").iterdir()
    assert f"Run: {path}" in done.out
    assert (path / "config.json").exists()
    assert command("eval", path, "--episodes", 2).out.startswith("Evaluation: return ")


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
    assert (second / "config.json").exists()


def test_flags_override_the_file(command: Any):
    Path("c.yaml").write_text(
        'env: CartPole-v1\nlearning_rate: 1e-4\nnormalize_obs: "false"\ntotal_steps: 1e3\nfinal_eval_episodes: 0\n'
    )
    done = command("train", "--config", "c.yaml", "--run-dir", "run", "--backend", "torch", *SHORT, "--seed", 4)
    assert done.code == 0, done.err
    config = json.loads(Path("run/config.json").read_text())
    assert config["train"]["ppo"]["learning_rate"] == 1e-4
    assert config["train"]["ppo"]["total_steps"] == 64
    assert config["train"]["seed"] == 4
    assert config["network"]["options"]["normalize_obs"] is False
    # A run's own file is such a file, too.
    assert command("train", "--config", "run/config.json", "--run-dir", "again").code == 0
    assert numbers(Path("again")) == numbers(Path("run"))


def test_evaluation_during_training(command: Any):
    done = train(command, "--run-dir", "run", "--eval-every-steps", 20, "--eval-num-episodes", 2)
    assert done.code == 0
    assert [("eval/episodes" in record) for record in numbers(Path("run"))] == [False, True, False, True, True]
    assert "evaluation: return" in done.err


def test_eval_refuses_what_is_no_run_and_takes_a_step(command: Any):
    train(command, "--run-dir", "run", "--final-eval-episodes", 0, "--checkpoint-every-steps", 1)
    steps = sorted(int(path.name.removeprefix("step_")) for path in Path("run/checkpoints").iterdir())
    assert len(steps) == 2
    for which in (steps[0], f"step_{steps[0]:012d}", f"run/checkpoints/step_{steps[0]:012d}"):
        found = command("eval", "run", "--checkpoint", which, "--json", "--episodes", 2, "--stochastic", "--seed", 3)
        assert json.loads(found.out)["step"] == steps[0]
        assert json.loads(found.out)["deterministic"] is False
    for arguments, message in (
        (("run", "--checkpoint", 7), "no checkpoint '7'"),
        (("run", "--episodes", 0), "episodes=0"),
        (("run", "--seed", -1), "seed=-1"),
        (("nowhere",), "nothing is there"),
        ((".",), "no config.json"),
        (("run/config.json",), "it is a file"),
        ((), "a run is missing"),
    ):
        done = command("eval", *arguments)
        assert (done.code, done.out) == (2, "")
        assert message in done.err
        assert done.err.count("\n") == 1


# -- how a run ends


def interrupt_after(monkeypatch: pytest.MonkeyPatch, iteration: int) -> None:
    """Ctrl-C while an iteration is logged."""
    write = JsonlWriter.write

    def interrupted(self: JsonlWriter, metrics: Any) -> None:
        write(self, metrics)
        if metrics.get("iteration") == iteration:
            signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(JsonlWriter, "write", interrupted)


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
        save = killed_at_the_second_call(checkpoint_folder.save_checkpoint)
        patched.setattr(checkpoint_folder, "save_checkpoint", save)
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
        patched.setattr(train_module._Training, "_train", lambda *_: signal.raise_signal(signal.SIGINT))
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
        (("--num-envs", 8), "num_envs=8 can't be changed in a run that began with 4"),
        (("--seed", 8), "seed=8 can't be changed"),
        (("--network", "lstm"), "network='lstm' can't be changed"),
        (("Pendulum-v1",), "env='Pendulum-v1' can't be changed"),
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
    settings = settings_from({"env": "CartPole-v1", "network": "lstm", "hidden_features": 4})
    RunDirectory(Path("run")).create(settings, "torch")
    done = command("train", "--run-dir", "run", "--resume", "--network", "mlp")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "network='mlp' can't be changed in a run that began with 'lstm'" in done.err


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


def test_ctrl_c_in_the_last_evaluation_says_where_the_run_is(command: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(train_module, "evaluate", lambda *_: signal.raise_signal(signal.SIGINT))
    done = train(command, "--run-dir", "run", "--final-eval-episodes", 3)
    assert (done.code, done.out) == (130, "")
    assert "Evaluating over 3 episodes" in done.err
    last = done.err.splitlines()[-1]
    (checkpoint,) = Path("run/checkpoints").iterdir()
    assert last.startswith("multippo: interrupted. Saved: ")
    assert checkpoint.name in last
    assert last.endswith("multippo eval run")


@pytest.fixture(scope="module")
def run_to_resume(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from multippo.cli import main

    path = tmp_path_factory.mktemp("runs") / "run"
    arguments = ["train", "CartPole-v1", "--backend", "torch", "--run-dir", path, "--final-eval-episodes", 0]
    assert main([str(argument) for argument in (*arguments, *SHORT, *SMALL)]) == 0
    return path


class Failing(gymnasium.Env[Any, Any]):
    """Shows NaN, or raises, from one of its steps on."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, error: BaseException | None = None) -> None:
        self.error, self.count = error, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if self.count > 12 and self.error is not None:
            raise self.error
        return np.full(2, np.nan if self.count > 12 else 0.1, np.float32), 1.0, False, False, {}


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Registers the environment with an error to raise."""

    def register(error: BaseException | None) -> str:
        monkeypatch.setitem(
            gymnasium.registry, "Failing-v0", gymnasium.envs.registration.EnvSpec("Failing-v0", Failing)
        )
        gymnasium.registry["Failing-v0"].kwargs = {"error": error}
        return "Failing-v0"

    return register


def test_a_number_that_is_not_finite_ends_the_run_with_the_last_good_state_saved(command: Any, failing: Any):
    done = train(command, "--run-dir", "run", env=failing(None))
    assert done.code == 1
    complaint = done.err.splitlines()[-1]
    # The first iteration takes 8 steps, the next 4 are good; the 13th, step 4 from 0, shows it in all environments.
    assert "The next observation is not finite at step 4" in complaint
    assert "step_000000000032" in complaint
    assert "Traceback" not in done.err
    (checkpoint,) = Path("run/checkpoints").iterdir()
    assert checkpoint.name == "step_000000000032"
    # In the first iteration that is the state before any.
    done = train(command, "--run-dir", "first", "--rollout-length", 16, env=failing(None))
    assert done.code == 1
    assert done.err.splitlines()[-1].endswith("step_000000000000.")


def test_a_fault_keeps_its_traceback(command: Any, failing: Any):
    # The same kind of error that a refusal is, but nothing that the library said.
    with pytest.raises(ValueError, match="from the simulator"):
        train(command, "--run-dir", "run", env=failing(ValueError("from the simulator")))


def test_a_disk_that_is_full_is_no_fault(command: Any, monkeypatch: pytest.MonkeyPatch):
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device", "checkpoints")

    monkeypatch.setattr(checkpoint_folder, "save_checkpoint", full)
    done = train(command, "--run-dir", "run")
    assert done.code == 1
    assert "No space left on device" in done.err.splitlines()[-1]
    assert "Nothing was saved yet" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPol-v1",), "'CartPol-v1' is not known. Did you mean 'CartPole-v1'"),
        (("brax/annt",), "Did you mean 'brax/ant'"),
        (("os:CartPole-v1",), "asks to import the module 'os'"),
        (("CartPole-v1", "--total-steps", -5), "total_steps=-5 is not possible: expected an integer of at least 1"),
        (("CartPole-v1", "--num-minibatches", 7), "num_minibatches=7 equal parts"),
        (("CartPole-v1", "--network", "lstm", "--num-minibatches", 3), "num_minibatches=3"),
        (("CartPole-v1", "--backend", "foo"), "'foo'; known backends: jax, torch"),
        (("CartPole-v1", "--backend", "numpy"), "The numpy backend can't train: it has no gradients"),
        (("CartPole-v1", "--actor-hidden-sizes", 0), "expected an integer of at least 1"),
        (("CartPole-v1", "--activation", "tanhh"), "'tanhh'; expected one of"),
        (("CartPole-v1", "--config", "nowhere.yaml"), "nowhere.yaml can't be read"),
        (("CartPole-v1", "--run-dir", "file"), "file is a file"),
        (("CartPole-v1", "--run-dir", "file/below"), "can't be made: Not a directory"),
        (("CartPole-v1", "--run-dir", "full"), "holds other files"),
        (("CartPole-v1", "--run-dir", "run"), "holds a run already: add --resume"),
        (("CartPole-v1", "--resume"), "--resume needs --run-dir"),
        (("--resume", "--run-dir", "full"), "no config.json"),
        (("--resume", "--run-dir", "new/run"), "nothing is there"),
        (("CartPole-v1", "--max-episode-steps", 0), "max_episode_steps=0 is not possible"),
        (("CartPole-v1", "--keep-last", 0), "keep_last=0 is not possible: expected at least 1"),
        (("CartPole-v1", "--keep-best", -1), "keep_best=-1 is not possible: expected at least 1"),
        (("CartPole-v1", "--keep-best", 1, "--no-eval-enabled"), "keep_best=1 needs evaluations during training"),
        (("CartPole-v1", "--on-save-error", "ignore"), "on_save_error='ignore' is not known"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(command: Any, arguments: tuple[object, ...], message: str):
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/mine").touch()
    Path("run").mkdir()
    Path("run/config.json").touch()
    before = sorted(Path().rglob("*"))
    for where in ((), ("--run-dir", "new/run")):
        if {"--run-dir", "--resume"} & {*arguments} and where:
            continue
        done = command("train", *arguments, *where)
        assert (done.code, done.out) == (2, ""), done.err
        assert message in done.err
        assert done.err.count("\n") == 1
        assert sorted(Path().rglob("*")) == before


def test_what_train_ppo_refuses_leaves_no_run_behind(command: Any, monkeypatch: pytest.MonkeyPatch):
    make = RunSettings.make_network
    monkeypatch.setattr(RunSettings, "make_network", lambda self, env: make(self, env).layers[0])
    done = train(command, "--run-dir", "new/run")
    assert done.code == 2
    assert "PPONetworkOutput" in done.err.splitlines()[-1]
    assert list(Path().iterdir()) == []


def test_ctrl_c_in_a_process_of_its_own(tmp_path: Path):
    line = ["CartPole-v1", "--backend", "torch", "--run-dir", tmp_path / "run", "--total-steps", "1e7", *SMALL]
    arguments = [sys.executable, "-m", "multippo.cli", "train", *map(str, line)]
    with subprocess.Popen(arguments, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while not (line := process.stderr.readline()).startswith("step "):
            assert line, "the run ended before its first iteration"
        process.send_signal(signal.SIGINT)
        start = time.monotonic()
        out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert time.monotonic() - start < 10
    assert out == ""
    assert err.splitlines()[-1].startswith("multippo: interrupted. Saved: ")
    assert "Traceback" not in err
    logged = read_metrics(tmp_path / "run/metrics.jsonl")
    (checkpoint,) = (tmp_path / "run/checkpoints").iterdir()
    assert checkpoint.name == f"step_{logged[-1]['step']:012d}"
