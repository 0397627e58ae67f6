"""Worker processes that die, fail or hang while they make their environments."""

import multiprocessing
import os
import tempfile
import time
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs import worker_starts
from multippo.envs.make import make_env as make_env_by_name


class Quiet(gymnasium.Env):
    observation_space = spaces.Box(0, 100, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, np.float32), {}

    def step(self, action):
        return np.zeros(1, np.float32), 1.0, False, False, {}


def make_class():
    """A class of its own, which travels to a worker by value."""

    class Own(Quiet):
        pass

    return Own


def hanging():
    if multiprocessing.parent_process() is not None:
        time.sleep(60)
    return make_class()()


def test_constructors_that_hang_in_their_workers_are_named_however_many_there_are():
    makers = [*[make_class()] * 30, hanging, hanging]
    # The last one is named too where it has started within a second of the other.
    pattern = r"workers of environments \[30(, 31)?\] did not make.*within 1\S+ s.*larger worker_timeout"
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=pattern):
        make_env_by_name(makers, vectorization="async", worker_timeout=10.0)
    assert time.monotonic() - began < 35
    assert not multiprocessing.active_children()


def test_many_constructors_that_hang_are_named_within_the_limit_of_the_first(monkeypatch):
    # Four for each core start at a time. If each of four waves took its limit, it would be 8 s.
    monkeypatch.setattr(worker_starts, "_num_cores", lambda: 1)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"workers of environments \[0[],].* did not make"):
        make_env_by_name([hanging] * 16, vectorization="async", worker_timeout=2.0)
    assert time.monotonic() - began < 6
    assert not multiprocessing.active_children()


def test_one_that_hangs_is_named_while_others_are_still_being_started(monkeypatch):
    # As where a process takes longer to start than its environment to be made: there is always room for another.
    monkeypatch.setattr(worker_starts, "_num_cores", lambda: 1000)
    context = multiprocessing.get_context("forkserver").Process
    start, started = context.start, []

    def start_slowly(process):
        started.append(process)
        time.sleep(0.3)
        start(process)

    monkeypatch.setattr(context, "start", start_slowly)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"workers of environments \[0[],].* did not make"):
        make_env_by_name([hanging, *[make_class()] * 60], vectorization="async", worker_timeout=3.0)
    assert time.monotonic() - began < 12
    assert 1 < len(started) < 40
    assert not multiprocessing.active_children()


class Unanswering(spaces.Discrete):
    """Does not say in a worker whether it is equal to another."""

    def __init__(self, n, answer):
        super().__init__(n)
        self.answer = answer

    def __eq__(self, other):
        if multiprocessing.parent_process() is not None:
            self.answer()
        return True

    __hash__ = None


@pytest.mark.parametrize(
    ("answer", "timeout", "message"),
    [
        (lambda: time.sleep(60), 6.0, r"worker of environment 1, which had made it, gave no answer within 6\S* s"),
        (lambda: os._exit(3), 20.0, r"worker of environment 1, which had made it, died when it was asked"),
    ],
    ids=["hangs", "dies"],
)
def test_one_that_is_lost_before_it_has_told_its_spaces_is_named(answer, timeout, message):
    def make():
        env = make_class()()
        env.action_space = Unanswering(2, answer)
        return env

    began = time.monotonic()
    with pytest.raises(RuntimeError, match=message):
        make_env_by_name([make_class(), make], vectorization="async", worker_timeout=timeout)
    assert time.monotonic() - began < 20
    assert not multiprocessing.active_children()


def test_one_that_dies_or_fails_is_found_before_all_are_started():
    def dying():
        if multiprocessing.parent_process() is not None:
            os._exit(3)
        return make_class()()

    def failing():
        if multiprocessing.parent_process() is not None:
            raise OSError("no display")
        return make_class()()

    rest = [make_class()] * 10_000
    with pytest.raises(RuntimeError, match=r"process of environment 1 died while it made.*exit code 3"):
        make_env_by_name([make_class(), dying, *rest], vectorization="async")
    with pytest.raises(OSError, match="no display"):
        make_env_by_name([make_class(), failing, *rest], vectorization="async")
    assert not multiprocessing.active_children()


def test_a_constructor_that_ends_its_process_is_told_as_an_exception():
    def leaving():
        if multiprocessing.parent_process() is not None:
            raise SystemExit("no licence")
        return make_class()()

    with pytest.raises(RuntimeError, match=r"environment 1 ended its process: SystemExit\('no licence'\)"):
        make_env_by_name([make_class(), leaving], vectorization="async")
    assert not multiprocessing.active_children()


class Arriving:
    """Fails where it is unpickled."""

    def __reduce__(self):
        return (_arrive, (os.getpid(),))


def _arrive(parent):
    if os.getpid() != parent:
        raise OSError("the file is on the other machine")
    return Arriving()


def test_a_lock_travels_with_a_constructor():
    lock = multiprocessing.get_context("spawn").Lock()

    def make(lock=lock):
        with lock:
            return make_class()()

    env = make_env_by_name([make] * 2, vectorization="async")
    assert env.reset(0).obs.shape == (2, 1)
    env.close()


@pytest.mark.parametrize("size", [10, 10**6])
def test_a_constructor_arrives_or_says_why_it_does_not_however_large_it_is(size, monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    table, arriving = np.arange(size), Arriving()

    def make(payload=table):
        env = make_class()()
        env.table = payload
        return env

    def failing(payload=(table, arriving)):
        return make_class()()

    env = make_env_by_name([make] * 3, vectorization="async")
    assert [len(table) for table in env.vector_env.get_attr("table")] == [size] * 3
    env.close()
    with pytest.raises(OSError, match="on the other machine"):
        make_env_by_name([make, failing], vectorization="async")
    assert not multiprocessing.active_children()
    assert not [path for path in Path(tmp_path).iterdir() if path.name.startswith("multippo-")]
