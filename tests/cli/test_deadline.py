"""A process that was asked to end, and whose main thread hears nothing, ends all the same."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from multippo.cli.deadline import Deadline

# With the signal blocked in the main thread, another thread gets it, and nothing wakes the sleep: so it is with a main
# thread inside a compiler.
DEAF = """
import signal, sys, time
from multippo.cli.deadline import Deadline

for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: None)

def last_words():
    open(sys.argv[1], "w").write("saved")
    {fault}
    return "Saved: it."

with Deadline(last_words, 0.3):
    signal.pthread_sigmask(signal.SIG_BLOCK, {{signal.SIGINT, signal.SIGTERM}})
    print("ready", flush=True)
    time.sleep({sleep})
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {{signal.SIGINT, signal.SIGTERM}})
print("by itself", flush=True)
time.sleep(1.0)
"""


def ended(tmp_path, number: int, fault: str = "pass", sleep: float = 60.0) -> tuple[int, str, str]:
    process = subprocess.Popen(
        [sys.executable, "-c", DEAF.format(fault=fault, sleep=sleep), str(tmp_path / "saved")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    began = time.monotonic()
    out, err = process.communicate(timeout=50)
    assert time.monotonic() - began < 30
    return process.returncode, out, err


@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_a_main_thread_that_hears_nothing(tmp_path, number, code, word):
    assert ended(tmp_path, number) == (code, "", f"\nmultippo: {word}. Saved: it.\n")
    assert (tmp_path / "saved").read_text() == "saved"


def test_a_failure_to_save_does_not_keep_it_alive(tmp_path):
    assert ended(tmp_path, signal.SIGINT, fault="raise OSError('full')") == (130, "", "\nmultippo: interrupted.\n")


def test_whoever_ends_by_himself_is_left_alone(tmp_path):
    code, out, err = ended(tmp_path, signal.SIGTERM, sleep=0.05)
    assert (code, out, err) == (0, "by itself\n", "")
    assert not (tmp_path / "saved").exists()


# The command, in whose preparation an environment takes for ever, and what holds it may swallow the exception, as JAX
# does where Python's garbage collector calls it.
PREPARING = """
import signal, sys, time
from multippo.cli import main
from multippo.cli.deadline import Deadline
from multippo.cli.settings import RunSettings

signal.signal(signal.SIGINT, signal.default_int_handler)
Deadline.__init__.__defaults__ = (str, 0.5)

def make_env(self, num_envs=None):
    print("ready", flush=True)
    while True:
        try:
            time.sleep(60)
        except BaseException:
            if {honest}:
                raise

RunSettings.make_env = make_env
sys.exit(main(["train", "CartPole-v1", "--backend=torch", "--run-dir", sys.argv[1]]))
"""


@pytest.mark.parametrize("honest", [True, False])
@pytest.mark.parametrize(
    ("number", "code", "word"), [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")]
)
def test_it_ends_before_the_training_begins(tmp_path, number, code, word, honest):
    process = subprocess.Popen(
        [sys.executable, "-c", PREPARING.format(honest=honest), str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    _, err = process.communicate(timeout=50)
    assert (process.returncode, err.strip()) == (code, f"multippo: {word}.")
    assert not (tmp_path / "run").exists()


def test_the_previous_listener_is_put_back():
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    before = signal.set_wakeup_fd(writing)
    try:
        with Deadline(lambda: "", 60.0):
            pass
        assert signal.set_wakeup_fd(before) == writing
    finally:
        signal.set_wakeup_fd(before)
        os.close(reading)
        os.close(writing)


def test_no_thread_is_left_to_be_ended_with_the_process():
    with Deadline():
        assert any(thread.name == "deadline" for thread in threading.enumerate())
    assert not any(thread.name == "deadline" for thread in threading.enumerate())
