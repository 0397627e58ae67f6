"""Ctrl-C loses no finished iteration, a killed or failed save loses no earlier one, and neither passes in silence.

Seen in Unity-Technologies/ml-agents#980, zylo117/Yet-Another-EfficientDet-Pytorch#101, keras-team/keras#23609,
google/orbax#605, LucasAlegre/morl-baselines#186.
"""

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
from multippo.algorithms.checkpointing.manifest import step_directories
from multippo.algorithms.metrics import read_metrics
from multippo.files import remove_leftovers
from multippo.testing import Clock, TableNet

ROOT = Path(__file__).resolve().parents[2]
SMALL = ("--actor-hidden-sizes", "8", "--critic-hidden-sizes", "8")
PATHS = os.pathsep.join(filter(None, [str(ROOT), *sys.path]))
ENVIRONMENT = {**os.environ, "PYTHONPATH": PATHS, "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    """Starts ``multippo train CartPole-v1`` in a process group of its own, as a terminal does."""
    started: list[subprocess.Popen[str]] = []

    def begin(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "multippo.cli", "train", "CartPole-v1", "--run-dir", str(tmp_path / "run")]
        command += ["--total-steps", "1e7", "--progress", "plain", *SMALL, *arguments]
        pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        started.append(subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, start_new_session=True, **pipes))
        return started[-1]

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


def wait_for(process: Any, start: str) -> None:
    while not (line := process.stderr.readline()).startswith(start):
        assert line, f"the run ended before it wrote {start!r}"


def last_words(process: Any, number: int = signal.SIGINT, *, group: bool = True) -> str:
    """What it ends with after a signal, sent as a terminal sends Ctrl-C, to the whole group; or to it alone."""
    began = time.monotonic()
    (os.killpg if group else os.kill)(process.pid, number)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 128 + number, err
    assert time.monotonic() - began < 10
    assert out == "" and "Traceback" not in err
    return err.splitlines()[-1]


def assert_last_iteration_is_loadable(run: Path) -> None:
    logged = [line for line in read_metrics(run / "metrics.jsonl") if "iteration" in line]
    state = mp.load_checkpoint(run)
    assert (state.manifest.step, state.manifest.iteration) == (logged[-1]["step"], logged[-1]["iteration"])
    assert state.weights()


WORKERS = ("--backend", "torch", "--vectorization", "async", "--num-envs", "2", "--num-minibatches", "1")


# SIGTERM is what a batch system sends before the time is up, to one process or to all: the workers then die of it.
@pytest.mark.parametrize(
    ("arguments", "number", "group"),
    [
        (("--backend", "torch"), signal.SIGINT, True),
        *(
            pytest.param(*case, marks=pytest.mark.nightly)
            for case in [
                (WORKERS, signal.SIGINT, True),
                (("--backend", "jax"), signal.SIGINT, True),
                (("--backend", "torch"), signal.SIGTERM, False),
                (WORKERS, signal.SIGTERM, True),
            ]
        ),
    ],
)
def test_a_signal_in_the_middle_of_an_iteration(start: Any, tmp_path: Path, arguments: Any, number: int, group: bool):
    process = start(*arguments, "--rollout-length", "256")
    wait_for(process, "step ")
    word = "interrupted" if number == signal.SIGINT else "terminated"
    assert last_words(process, number, group=group).startswith(f"multippo: {word}. Saved: ")
    assert_last_iteration_is_loadable(tmp_path / "run")


@pytest.mark.nightly
def test_ctrl_c_while_the_first_iteration_compiles(start: Any, tmp_path: Path):
    process = start("--backend", "jax", "--num-epochs", "1", "--rollout-length", "8")
    wait_for(process, "Training ")
    time.sleep(1.0)
    last = last_words(process)
    if (tmp_path / "run/checkpoints").exists():
        assert_last_iteration_is_loadable(tmp_path / "run")
    else:
        assert "Nothing was saved yet" in last


# Saves over an earlier checkpoint and beside it, with a removal after it: once for each call of the system that this
# takes, in a child killed right before that call. NumPy alone is imported, so that a child is quickly made.
MOMENTS = """
import checkpoints, dataclasses, os, signal, sys
from pathlib import Path
import multippo as mp
from multippo.testing import Clock

root, left = Path(sys.argv[1]), 0
with mp.use_backend("numpy"):
    network = checkpoints.table_net()
    state = dataclasses.replace(checkpoints.state_of(network, Clock(3, num_envs=4)), env_state=None)

def save(folder, iteration):
    folder.save(dataclasses.replace(state, iteration=iteration, step=iteration), iteration)

def count(event="", arguments=()):
    global left
    if event and not event.startswith(("open", "os.", "shutil.", "ctypes.dlsym")):
        return
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

os.fsync = lambda descriptor: None  # for the machine's sake, which is not stopped
def counted(call):
    def wrapped(*arguments, **options):
        count()
        return call(*arguments, **options)
    return wrapped

for kind in ("beside", "over"):
    moment = code = 0
    while moment == 0 or code != 0:
        moment += 1
        path = root / kind / str(moment)
        save(mp.CheckpointFolder(path, network), 1)
        pid = os.fork()
        if pid == 0:
            os.fsync, os.close = counted(os.fsync), counted(os.close)
            folder = mp.CheckpointFolder(path, network, keep_last=1)
            left = moment
            sys.addaudithook(count)
            save(folder, 2 if kind == "beside" else 1)
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        assert code in (0, -signal.SIGKILL), code
    print(kind, moment)
"""


def test_killed_before_any_call_of_the_system_that_saving_takes(tmp_path: Path):
    done = subprocess.run(
        [sys.executable, "-c", MOMENTS, str(tmp_path)], env=ENVIRONMENT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    for kind, results in (("beside", [1, 2]), ("over", [1])):
        found: list[int] = []
        leftovers: list[list[str]] = []
        for moment in range(1, len(os.listdir(tmp_path / kind)) + 1):
            path = tmp_path / kind / str(moment)
            for checkpoint in step_directories(path):
                mp.load_checkpoint(checkpoint).arrays()  # whole
            latest = mp.load_checkpoint(path)
            found.append(latest.manifest.iteration)
            leftovers.append([entry.name for entry in path.iterdir() if entry.name.startswith(".")])
            assert latest.manifest.iteration == max(int(entry.name[5:]) for entry in step_directories(path))
        assert found == sorted(found) and sorted({*found}) == results  # the old one up to some moment, then the new
        assert len(found) > 30
        assert not leftovers[-1]  # that child was not killed
        assert sum(map(bool, leftovers)) > 10
    # What each left is gone after the next save.
    for path in [*(tmp_path / "beside").iterdir(), *(tmp_path / "over").iterdir()]:
        remove_leftovers(path)
        assert all(entry.name.startswith("step_") for entry in path.iterdir())


def test_a_disk_that_is_full(tmp_path: Path):
    # No file may grow beyond 64 KiB: the weights do not fit, and that is no success.
    limit = "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN);"
    limit += "resource.setrlimit(resource.RLIMIT_FSIZE, (2**16, 2**16)); import sys;"
    limit += "from multippo.cli import main; sys.exit(main(sys.argv[1:]))"
    sizes = "--total-steps 32 --num-envs 2 --rollout-length 8 --num-minibatches 1 --actor-hidden-sizes 256,256"
    arguments = ["train", "CartPole-v1", "--backend", "torch", "--run-dir", str(tmp_path / "run"), *sizes.split()]
    command = [sys.executable, "-c", limit, *arguments, "--progress", "plain"]
    done = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert done.returncode not in (0, 130), done.stderr
    assert "Traceback" not in done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert list((tmp_path / "run").rglob("*.safetensors")) == []


def saved_at(path: Path, network: Any, iterations: int = 1) -> int:
    run = training.train(Clock(3, num_envs=4), network, iterations=iterations)
    mp.save_checkpoint(path, run.state, network)
    return run.state.step


def test_a_target_that_can_not_be_written_is_an_error(torch_engine: Any, tmp_path: Path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(OSError):
        saved_at(tmp_path / "file/below", TableNet([0.0] * 4))
    assert (tmp_path / "file").read_text() == "mine"


def test_relative_paths_and_a_second_save(torch_engine: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    network, other = TableNet([0.0] * 4), TableNet([1.0] * 4)
    # The second takes the place of the first, whole.
    for iterations in (1, 2):
        step = saved_at(Path("runs/a"), network, iterations)
        assert mp.load_checkpoint("./runs/../runs/a", other).step == step == 16 * iterations
        support.assert_trees_close(mp.to_portable(other), mp.to_portable(network), 0.0)
    assert os.listdir("runs") == ["a"]
    assert json.loads(Path("runs/a/checkpoint.json").read_text())["step"] == 32
