"""How ``multippo train`` ends: by a signal, a fault, a full disk, or before it began."""

import signal
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from probing import Small
from short_runs import train

from multippo.cli import train as train_module
from multippo.runs.settings import RunSettings


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_signal_in_the_last_evaluation_says_where_the_run_is(
    command: Any, monkeypatch: pytest.MonkeyPatch, number: int, code: int, word: str
):
    monkeypatch.setattr(train_module, "evaluate", lambda *_, **__: signal.raise_signal(number))
    done = train(command, "--run-dir", "run", "--final-eval-episodes", 3)
    assert (done.code, done.out) == (code, "")
    assert Path("run/learning_curve.png").exists()
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert "Evaluating over 3 episodes" in done.err
    last = done.err.splitlines()[-1]
    (checkpoint,) = Path("run/checkpoints").iterdir()
    assert last.startswith(f"multippo: {word}. Saved: ")
    assert checkpoint.name in last
    assert last.endswith("multippo eval run")


class Failing(Small):
    """Shows NaN, or raises, from one of its steps on."""

    def __init__(self, error: BaseException | None = None) -> None:
        self.error = error

    def observe(self) -> Any:
        if self.time > 12 and self.error is not None:
            raise self.error
        return np.full(1, np.nan if self.time > 12 else 0.1, np.float32)


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


# The same kinds of error that a refusal and a full disk are, but nothing that the library or the system said.
@pytest.mark.parametrize("error", [ValueError("from the simulator"), OSError("from the simulator")])
def test_a_fault_keeps_its_traceback_and_costs_one_iteration(command: Any, failing: Any, error: Exception):
    with pytest.raises(type(error), match="from the simulator") as caught:
        train(command, "--run-dir", "run", env=failing(error))
    (saved,) = Path("run/checkpoints").iterdir()
    assert saved.name == "step_000000000032"
    how = f"Saved: {saved.absolute()}. Go on with: multippo train --run-dir run --resume"
    assert how in caught.value.__notes__


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("CartPol-v1",), "'CartPol-v1' is not known. Did you mean 'CartPole-v1'"),
        (("CartPole-v1", "--backend", "numpy"), "The numpy backend can't train: it has no gradients"),
        (("CartPole-v1", "--run-dir", "file"), "the run directory file can't be made: File exists"),
        (("CartPole-v1", "--run-dir", "full"), "holds other files"),
        (("CartPole-v1", "--run-dir", "run"), "holds a run already: add --resume"),
        (("CartPole-v1", "--resume"), "--resume needs --run-dir"),
        (("--resume", "--run-dir", "full"), "no config.json"),
        (("CartPole-v1", "--keep-best", 1, "--no-eval-enabled"), "keep_best=1 needs evaluations during training"),
    ],
)
def test_a_mistake_is_one_line_and_leaves_nothing_behind(command: Any, arguments: tuple[object, ...], message: str):
    Path("file").write_text("mine")
    Path("full").mkdir()
    Path("full/mine").touch()
    Path("run").mkdir()
    Path("run/config.json").touch()
    before = sorted(Path().rglob("*"))
    where = () if {"--run-dir", "--resume"} & {*arguments} else ("--run-dir", "new/run")
    command("train", *arguments, *where).assert_refused(message)
    assert sorted(Path().rglob("*")) == before


def test_what_train_ppo_refuses_leaves_no_run_behind(command: Any, monkeypatch: pytest.MonkeyPatch):
    make = RunSettings.make_network
    monkeypatch.setattr(RunSettings, "make_network", lambda self, env: make(self, env).layers[0])
    done = train(command, "--run-dir", "new/run")
    assert done.code == 2
    assert "PPONetworkOutput" in done.err.splitlines()[-1]
    assert list(Path().iterdir()) == []
