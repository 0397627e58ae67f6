"""A run killed at any moment, again and again, ends as if nothing had happened, and its latest checkpoint is whole."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from short_runs import numbers

import multippo as mp
from multippo.algorithms.checkpointing.manifest import latest_checkpoint, step_directories

ROOT = Path(__file__).resolve().parents[2]
KILLS, ITERATIONS = 25, 150

# Two environments and rollouts of 2 steps: an iteration is 4 steps, of which saving takes a good part.
ITERATION = 4
SIZES = "--num-envs 2 --rollout-length 2 --num-epochs 1 --num-minibatches 1"
NETWORK = "--backend torch --actor-hidden-sizes 4 --critic-hidden-sizes 4"
SAVING = "--checkpoint-every-steps 1 --keep-last 2 --final-eval-episodes 0 --progress off"
BEGIN = f"brax/fast {SIZES} {NETWORK} {SAVING} --total-steps {ITERATIONS * ITERATION} --run-dir"


def latest_iteration(run: Path) -> int:
    try:
        path = latest_checkpoint(run / "checkpoints")
    except FileNotFoundError:  # removed between two looks
        return latest_iteration(run)
    return 0 if path is None else int(path.name.removeprefix("step_")) // ITERATION


def check(run: Path) -> None:
    """Every checkpoint there is whole, arrays and all."""
    found = step_directories(run / "checkpoints")
    assert len(found) <= 3  # one is saved before another is removed
    for path in found:
        checkpoint = mp.load_checkpoint(path)
        assert {"weights", "optimizer", "carry", "environment"} == checkpoint.arrays().keys()
        assert path.name == f"step_{checkpoint.manifest.iteration * ITERATION:012d}"
    if found:
        assert mp.load_checkpoint(run).path == found[0]


def kill(process: Any, run: Path, draw: random.Random, early: bool) -> None:
    """Kills a life while it starts, or within an iteration some iterations later."""
    target = latest_iteration(run) + draw.randrange(1, 6)
    deadline = time.monotonic() + (draw.uniform(0.0, 10.0) if early else 120.0)
    while latest_iteration(run) < target and time.monotonic() < deadline:
        assert process.poll() is None, "it ended before it was killed"
        time.sleep(0.001)
    assert early or latest_iteration(run) >= target, "no iteration was saved"
    time.sleep(draw.uniform(0.0, 0.03))
    process.kill()
    assert process.wait() == -signal.SIGKILL, "it ended before it was killed"


@pytest.mark.nightly
def test_a_run_killed_many_times_ends_as_one_that_was_not(tmp_path: Path):
    # One thread; and what XLA compiled in one life is not compiled in the next.
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }

    def start(arguments: str, run: Path) -> Any:
        command = [sys.executable, "-W", "ignore", "-m", "multippo.cli", "train", *arguments.split(), str(run)]
        return subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=subprocess.DEVNULL)

    whole, killed, draw = tmp_path / "whole", tmp_path / "killed", random.Random(KILLS)
    assert start(BEGIN, whole).wait() == 0
    for number in range(KILLS):
        before = latest_iteration(killed)
        begun = (killed / "config.json").exists()
        kill(start("--resume --progress off --run-dir" if begun else BEGIN, killed), killed, draw, number % 5 == 0)
        assert latest_iteration(killed) >= before  # what was saved is not lost
        check(killed)
    assert latest_iteration(killed) < ITERATIONS
    assert start("--resume --progress off --run-dir", killed).wait() == 0
    name = f"checkpoints/step_{ITERATIONS * ITERATION:012d}"
    files = {file.name: file.read_bytes() for file in (whole / name).iterdir()}
    assert len(files) == 5  # parameters and statistics, moments, keys and carry, environment, counts
    assert {file.name: file.read_bytes() for file in (killed / name).iterdir()} == files
    assert numbers(killed) == numbers(whole)
    assert [record["iteration"] for record in numbers(whole)] == list(range(1, ITERATIONS + 1))
    assert not [*killed.glob(".*.tmp"), *(killed / "checkpoints").glob(".*.tmp")]
    check(killed)
