"""A run killed at any moment, again and again, ends as if nothing had happened, and its latest checkpoint is whole."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import pytest
from short_runs import numbers

import multippo as mp
from multippo.algorithms.checkpointing.manifest import latest_checkpoint, step_directories

ROOT = Path(__file__).resolve().parents[2]

# Two environments and rollouts of 2 steps: an iteration is 4 steps, of which saving takes a good part.
ITERATION = 4
RUN = ("train", "brax/fast", "--backend", "torch", "--num-envs", "2", "--rollout-length", "2", "--num-epochs", "1")
SMALL = ("--num-minibatches", "1", "--actor-hidden-sizes", "4", "--critic-hidden-sizes", "4")
SAVING = ("--checkpoint-every-steps", "1", "--keep-last", "2", "--final-eval-episodes", "0", "--progress", "off")


def environment(tmp_path: Path) -> dict[str, str]:
    """One thread; and what XLA compiled in one life is not compiled in the next."""
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), *sys.path])),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "xla"),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


PATIENCE_S = 120.0
"""With a life that ended by itself, or does nothing: this test would wait for ever."""


# Imports everything once, PyTorch's compiler among it, by a run in an environment that needs no JAX: threads of XLA's
# would not survive a fork.
SERVER = """
import json, os, sys, tempfile
import brax.envs, jax, torch
from multippo.cli import main
import multippo.envs.functional.brax
with tempfile.TemporaryDirectory() as folder:
    warm = "--num-envs 2 --rollout-length 4 --num-epochs 1 --num-minibatches 1 --total-steps 8 --final-eval-episodes 0"
    assert main(["train", "CartPole-v1", "--backend", "torch", *warm.split(), "--run-dir", folder + "/warm"]) == 0
print("ready", flush=True)
for line in sys.stdin:
    pid = os.fork()
    if pid == 0:
        os.dup2(2, 1)
        os._exit(main(json.loads(line)))
    print(pid, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), flush=True)
"""


class Lives:
    """Processes that call the command, one after another: children of one that has imported all there is to import,
    which takes longer than their lives.
    """

    def __init__(self, tmp_path: Path) -> None:
        self._server = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", SERVER],
            env=environment(tmp_path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        while self._read() != "ready":
            pass

    def start(self, arguments: Sequence[str]) -> int:
        """The process's number."""
        print(json.dumps(arguments), file=self._server.stdin, flush=True)
        return int(self._read())

    def wait(self) -> int:
        """How it ended: its exit code, or the negative number of the signal."""
        return int(self._read())

    def close(self) -> None:
        self._server.communicate()

    def _read(self) -> str:
        line = self._server.stdout.readline()
        assert line, "the server has ended"
        return line.strip()


def latest_iteration(run: Path) -> int:
    path = latest_checkpoint(run / "checkpoints")
    return 0 if path is None else int(path.name.removeprefix("step_")) // ITERATION


def left_unfinished(run: Path) -> set[Path]:
    return {*run.glob(".*.tmp"), *(run / "checkpoints").glob(".*.tmp")}


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


def kill_at_a_random_moment(lives: Lives, arguments: Sequence[str], run: Path, draw: random.Random, early: bool) -> int:
    """One life: killed while it starts, or within an iteration some iterations later. Returns its iterations."""
    before = latest_iteration(run)
    with killed_after(lives, arguments):
        if early:
            time.sleep(draw.uniform(0.0, 0.6))
        else:
            target, seen = before + 1 + draw.randrange(5), [(time.monotonic(), before)]
            while seen[-1][1] < target:
                assert time.monotonic() < seen[0][0] + PATIENCE_S, "no iteration was saved"
                time.sleep(0.001)
                with contextlib.suppress(FileNotFoundError):  # removed between two looks
                    now = latest_iteration(run)
                    if now > seen[-1][1]:
                        seen.append((time.monotonic(), now))
            # What an iteration took, if there were several; the first has begun long before.
            took = (seen[-1][0] - seen[1][0]) / (seen[-1][1] - seen[1][1]) if len(seen) > 2 else 0.03
            time.sleep(draw.uniform(0.0, took))
    return latest_iteration(run) - before


@contextlib.contextmanager
def killed_after(lives: Lives, arguments: Sequence[str]) -> Generator[int]:
    """Starts a process that is killed at the end of the block, or if something goes wrong in it."""
    pid = lives.start(arguments)
    try:
        yield pid
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        code = lives.wait()
    assert code == -signal.SIGKILL, "it ended before it was killed"


def wait_until_stopped(pid: int) -> None:
    """Every thread has come out of the system's call that it was in; only Linux tells."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        time.sleep(0.01)
        tasks = [path / "stat" for path in Path(f"/proc/{pid}/task").glob("*")]
        if all(task.read_text().rpartition(")")[2].split()[0] in "TZ" for task in tasks):
            return


def kill_amid_a_save(lives: Lives, arguments: Sequence[str], run: Path) -> int:
    """One life: killed while what it writes or removes has a temporary name. It is stopped to see whether that is still
    so, whereby it does not matter how fast the two processes are. Returns its iterations.
    """
    before, lying_there = latest_iteration(run), left_unfinished(run)
    given_up = time.monotonic() + PATIENCE_S
    with killed_after(lives, arguments) as pid:
        while True:
            while left_unfinished(run) <= lying_there:
                assert time.monotonic() < given_up, "no save was seen"
                time.sleep(0.0005)
            os.kill(pid, signal.SIGSTOP)
            wait_until_stopped(pid)
            if not left_unfinished(run) <= lying_there:
                break
            os.kill(pid, signal.SIGCONT)
    return latest_iteration(run) - before


def go(lives: Lives, tmp_path: Path, kills: int, saves: int, iterations: int) -> None:
    """Kills a run ``kills`` times at random moments and ``saves`` times amid a save, lets it end, and compares it with
    one that was not killed.
    """
    total = ("--total-steps", str(iterations * ITERATION))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    begin = (*RUN, *SMALL, *SAVING, *total, "--run-dir")
    lives.start([*begin, str(whole)])
    assert lives.wait() == 0
    draw = random.Random(kills)
    resume = ["train", "--run-dir", str(killed), "--resume", "--progress", "off"]
    for number in range(kills + saves):
        first = not (killed / "config.json").exists()
        arguments = [*begin, str(killed)] if first else resume
        if number < kills:
            gained = kill_at_a_random_moment(lives, arguments, killed, draw, early=number % 5 == 0)
        else:
            gained = kill_amid_a_save(lives, arguments, killed)
            assert left_unfinished(killed)
        assert gained >= 0  # what was saved is not lost
        check(killed)
    assert latest_iteration(killed) < iterations
    lives.start(resume)
    assert lives.wait() == 0
    name = f"step_{iterations * ITERATION:012d}"
    files = sorted(path.name for path in (whole / "checkpoints" / name).iterdir())
    assert len(files) == 5
    for file in files:  # parameters and statistics, moments, keys and carry, environment, counts
        one, other = ((run / "checkpoints" / name / file).read_bytes() for run in (whole, killed))
        assert one == other, file
    assert numbers(killed) == numbers(whole)
    assert [record["iteration"] for record in numbers(whole)] == list(range(1, iterations + 1))
    assert not left_unfinished(killed)
    check(killed)


@pytest.mark.nightly
def test_a_run_killed_fifty_times_ends_as_one_that_was_not(tmp_path: Path):
    with contextlib.closing(Lives(tmp_path)) as lives:
        go(lives, tmp_path, kills=50, saves=5, iterations=300)
