"""Ctrl-C loses no finished iteration, a killed or failed save loses no earlier one, and neither passes in silence.

Seen in Unity-Technologies/ml-agents#980, zylo117/Yet-Another-EfficientDet-Pytorch#101, keras-team/keras#23609,
google/orbax#605, LucasAlegre/morl-baselines#186.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import support
import training

import multippo as mp
from multippo.algorithms.metrics import read_metrics
from multippo.testing import Clock, TableNet

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--actor-hidden-sizes", "8", "--critic-hidden-sizes", "8")
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path]))}


class Process:
    """``multippo train CartPole-v1`` in a process group of its own, as a terminal starts it."""

    def __init__(self, run_dir: Path, *arguments: str) -> None:
        command = [sys.executable, "-m", "multippo.cli", "train", "CartPole-v1", "--run-dir", str(run_dir)]
        self.process = subprocess.Popen(
            [*command, "--total-steps", "1e7", "--progress", "plain", *SMALL, *arguments],
            cwd=ROOT,
            env=ENVIRONMENT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def wait_for(self, start: str) -> None:
        assert self.process.stderr is not None
        while not (line := self.process.stderr.readline()).startswith(start):
            assert line, f"the run ended before it wrote {start!r}"

    def interrupt(self, whole_group: bool, number: int = signal.SIGINT) -> tuple[int, str, float]:
        """Exit code, last words and seconds after Ctrl-C, sent as a terminal does to the whole group or to it alone."""
        began = time.monotonic()
        if whole_group:
            os.killpg(self.process.pid, number)
        else:
            self.process.send_signal(number)
        _, err = self.process.communicate(timeout=60)
        return self.process.returncode, err, time.monotonic() - began

    def end(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[Process] = []

    def begin(*arguments: str) -> Process:
        started.append(Process(tmp_path / "run", *arguments))
        return started[-1]

    yield begin
    for process in started:
        process.end()


def assert_last_iteration_is_loadable(run: Path) -> None:
    logged = [line for line in read_metrics(run / "metrics.jsonl") if "iteration" in line]
    state = mp.load_checkpoint(run)
    assert (state.manifest.step, state.manifest.iteration) == (logged[-1]["step"], logged[-1]["iteration"])
    assert state.weights()


@pytest.mark.parametrize(
    "arguments",
    [
        ("--backend", "torch"),
        ("--backend", "torch", "--vectorization", "async", "--num-envs", "2", "--num-minibatches", "1"),
        ("--backend", "jax"),
    ],
    ids=["torch", "worker processes", "jax"],
)
def test_ctrl_c_in_the_middle_of_an_iteration(start: Any, tmp_path: Path, arguments: tuple[str, ...]):
    process = start(*arguments, "--rollout-length", "256")
    process.wait_for("step ")
    code, err, seconds = process.interrupt(whole_group=True)
    assert code == 130, err
    assert seconds < 10
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("multippo: interrupted. Saved: "), err
    assert_last_iteration_is_loadable(tmp_path / "run")


@pytest.mark.parametrize("whole_group", [False, True])
def test_sigterm_in_the_middle_of_an_iteration(start: Any, tmp_path: Path, whole_group: bool):
    # As a batch system sends it before the time is up, to one process or to all: the workers then die of it.
    workers = ("--vectorization", "async", "--num-envs", "2", "--num-minibatches", "1") if whole_group else ()
    process = start("--backend", "torch", *workers, "--rollout-length", "256")
    process.wait_for("step ")
    code, err, seconds = process.interrupt(whole_group, signal.SIGTERM)
    assert code == 143, err
    assert seconds < 10
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("multippo: terminated. Saved: "), err
    assert_last_iteration_is_loadable(tmp_path / "run")


def test_ctrl_c_while_the_first_iteration_compiles(start: Any, tmp_path: Path):
    process = start("--backend", "jax", "--num-epochs", "1", "--rollout-length", "8")
    process.wait_for("Training ")
    time.sleep(1.0)
    code, err, seconds = process.interrupt(whole_group=True)
    assert code == 130, err
    assert seconds < 10
    assert "Traceback" not in err
    if (tmp_path / "run/checkpoints").exists():
        assert_last_iteration_is_loadable(tmp_path / "run")
    else:
        assert "Nothing was saved yet" in err.splitlines()[-1]


SAVER = """
import sys
import multippo as mp
from multippo.testing import Clock, TableNet
with mp.use_backend("torch"):
    network = TableNet([0.0] * 4)
    run = mp.train_ppo(Clock(3, num_envs=4), network, mp.TrainConfig(ppo=mp.PPOConfig(
        rollout_length=4, total_steps=16, num_epochs=1, num_minibatches=1)))
    for number in range(10**9):
        for name in ("latest", f"step_{number % 50}"):
            mp.save_checkpoint(f"{sys.argv[1]}/{name}", run.training_state, network, extra={"number": number})
        print(number, flush=True)
"""


@pytest.mark.parametrize("moment", [0, *(pytest.param(number, marks=pytest.mark.nightly) for number in (1, 2, 3))])
def test_killed_while_saving(tmp_path: Path, moment: int):
    # Killed at any moment of a process that does nothing but save, over an earlier checkpoint or beside it.
    process = subprocess.Popen(
        [sys.executable, "-c", SAVER, str(tmp_path)], env=ENVIRONMENT, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    for _ in range(3 + moment):
        assert process.stdout.readline()
    time.sleep(0.0013 * (moment + 1))
    process.kill()
    process.communicate()
    with mp.use_backend("torch"):
        for path in (tmp_path / "latest", tmp_path):  # the one replaced again and again; the latest step
            state = mp.load_checkpoint(path, TableNet([1.0] * 4))
            assert (state.iteration, state.step) == (1, 16)
        assert mp.load_checkpoint(tmp_path / "latest").manifest.extra["number"] >= 2 + moment


def test_a_disk_that_is_full(tmp_path: Path):
    # No file may grow beyond 64 KiB: the weights do not fit, and that is no success.
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)); import sys;"
    limit += "from multippo.cli import main; sys.exit(main(sys.argv[1:]))"
    arguments = [
        "train",
        "CartPole-v1",
        "--backend",
        "torch",
        "--run-dir",
        str(tmp_path / "run"),
        "--total-steps",
        "32",
    ]
    sizes = ["--num-envs", "2", "--rollout-length", "8", "--num-minibatches", "1", "--actor-hidden-sizes", "256,256"]
    done = subprocess.run(
        [sys.executable, "-c", limit, *arguments, *sizes, "--progress", "plain"],
        env=ENVIRONMENT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode not in (0, 130), done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    left = list((tmp_path / "run").rglob("*.safetensors"))
    assert left == []


def saved_at(path: Path, network: Any, iterations: int) -> training.Run:
    run = training.train(Clock(3, num_envs=4), network, iterations=iterations)
    mp.save_checkpoint(path, run.state, network)
    return run


def test_a_target_that_can_not_be_written_is_an_error(torch_engine: Any, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    network = TableNet([0.0] * 4)
    with pytest.raises(OSError):
        saved_at(tmp_path / "file/below", network, 1)
    assert (tmp_path / "file").read_text() == "mine"
    if os.geteuid() != 0:
        (tmp_path / "locked").mkdir(mode=0o555)
        with pytest.raises(OSError):
            saved_at(tmp_path / "locked/a", network, 1)


def test_a_failing_checkpoint_function_is_not_swallowed(torch_engine: Any):
    def full(state: Any, step: int) -> None:
        raise OSError(28, "No space left on device")

    config = mp.TrainConfig(ppo=mp.PPOConfig(rollout_length=4, total_steps=16, num_minibatches=1, num_epochs=1))
    with pytest.raises(OSError, match="No space left"):
        mp.train_ppo(Clock(3, num_envs=4), TableNet([0.0] * 4), config, checkpoint_fn=full)


def test_relative_paths_and_a_second_save(torch_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    network = TableNet([0.0] * 4)
    first = saved_at(Path("runs/a"), network, 1)
    assert mp.load_checkpoint("runs/a", TableNet([1.0] * 4)).step == first.state.step
    # The second takes the place of the first, whole.
    second = saved_at(Path("runs/a"), network, 2)
    other = TableNet([1.0] * 4)
    assert mp.load_checkpoint("./runs/../runs/a", other).step == second.state.step == 32
    support.assert_trees_close(mp.to_portable(other), mp.to_portable(network), 0.0)
    assert os.listdir("runs") == ["a"]
    assert json.loads(Path("runs/a/checkpoint.json").read_text())["step"] == 32
