"""Worker processes. Environments are local classes, which travel to a worker by value."""

import multiprocessing
import os
import signal
import time

import numpy as np
import pytest
from counter_env import make_class
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics

from multippo.envs.host import workers
from multippo.envs.host.host_env import GymnasiumEnv
from multippo.envs.host.vector_forms import vectorize
from multippo.envs.make import make_env

NO_ACTION = np.zeros(2, int)
SECOND = np.array([0, 1])
"""Actions of which the second sets off a fault."""


def in_worker():
    return multiprocessing.parent_process() is not None


def ours(fault=None, timeout=10.0):
    env = GymnasiumEnv(vectorize([make_class(fault)] * 2, "async"), worker_timeout=timeout)
    return env, env.vector_env


def users(fault=None, timeout=10.0):
    """An environment whose workers the user has started, and wrapped."""
    base = AsyncVectorEnv([make_class(fault)] * 2, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
    return GymnasiumEnv(RecordEpisodeStatistics(base), worker_timeout=timeout), base


def is_alive(base):
    return any(process.is_alive() for process in base.processes)


@pytest.fixture(autouse=True)
def nobody_is_left_behind():
    before = set(multiprocessing.active_children())
    yield
    assert set(multiprocessing.active_children()) <= before


@pytest.mark.parametrize("make", [ours, users])
def test_steps_and_ends(make):
    env, base = make()
    state = env.reset(0)
    for time_ in (1, 2, 3, 1):
        state = env.step(state, NO_ACTION)
        np.testing.assert_array_equal(state.final_obs, np.full((2, 1), time_))
        np.testing.assert_array_equal(state.truncated, time_ == 3)
        np.testing.assert_array_equal(state.obs, 0 if time_ == 3 else time_)
    env.close()
    env.close()
    assert not is_alive(base)


def test_workers_share_no_random_state():
    class Drawing(make_class()):
        def reset(self, *, seed=None, options=None):
            return np.random.rand(1).astype(np.float32), {}  # noqa: NPY002

    env = make_env([Drawing, Drawing], vectorization="async")
    first, second = env.reset(0).obs
    assert first != second
    env.close()


@pytest.mark.parametrize("make", [ours, users])
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda: os._exit(7), r"died.*\{1: 7\}"),
        (lambda: time.sleep(60), r"environments \[1\] gave no answer within 1 s.*worker_timeout"),
    ],
)
def test_a_worker_that_dies_or_hangs_is_named(make, fault, message):
    env, base = make(fault, timeout=1.0)
    state = env.reset(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=f"In step of.*{message}"):
        env.step(state, SECOND)
    assert time.monotonic() - began < 10
    assert not is_alive(base)


def failing(fault):
    """A constructor that fails in a worker, though not in this process."""

    def make():
        if in_worker():
            fault()
        return make_class()()

    return make


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda: time.sleep(60), r"the workers of environments \[1\].*a lock, a po"),
        (lambda: os._exit(3), r"a worker.*\{1: 3\}.*__main__"),
    ],
)
def test_a_constructor_that_hangs_or_dies_is_named(fault, message):
    with pytest.raises(RuntimeError, match=f"In the start of .*{message}"):
        make_env([make_class(), failing(fault)], vectorization="async", worker_timeout=3.0)


def no_licence():
    raise SystemExit("no licence")


def test_an_exception_of_a_constructor_is_named_with_its_place():
    with pytest.raises(RuntimeError, match="SystemExit: no licence") as caught:
        make_env([make_class(), failing(no_licence)], vectorization="async")
    (note,) = caught.value.__notes__
    assert "environment 1" in note and "in no_licence" in note


def test_a_worker_that_does_not_close_is_ended(caplog):
    class Staying(make_class()):
        def close(self):
            if in_worker():
                time.sleep(60)

    env = GymnasiumEnv(vectorize([make_class(), Staying], "async"), worker_timeout=1.0)
    env.step(env.reset(0), NO_ACTION)
    began = time.monotonic()
    env.close()
    assert 1 <= time.monotonic() - began < 10
    assert "workers of environments [1], which did not close within 1 s" in caplog.text


def test_workers_that_ignore_being_terminated_are_killed_together(monkeypatch):
    monkeypatch.setattr(workers, "CLOSE_S", 0.5)

    class Deaf(make_class(lambda: os._exit(1))):
        def __init__(self):
            if in_worker():
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

    env = GymnasiumEnv(vectorize([Deaf] * 2, "async"))
    state = env.reset(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="a worker process died"):
        env.step(state, SECOND)
    assert time.monotonic() - began < 4


def test_what_is_refused_after_the_start_leaves_no_worker():
    class Other(make_class()):
        action_space = spaces.Text(3)

    with pytest.raises(ValueError, match="Text") as kept:
        make_env([Other] * 2, vectorization="async")
    assert not multiprocessing.active_children()
    del kept


def local():
    class LocalError(Exception):
        pass

    raise LocalError("the sim")


def lost():
    raise ConnectionResetError("the sim")


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        (lost, ConnectionResetError, "the sim"),  # also what the pipe of a worker that died would raise
        (local, RuntimeError, "LocalError: the sim"),  # which can't be pickled
    ],
)
def test_an_exception_arrives_with_its_traceback(fault, kind, text):
    env, base = ours(fault)
    state = env.reset(0)
    with pytest.raises(kind, match=text) as caught:
        env.step(state, SECOND)
    notes = "\n".join(caught.value.__notes__)
    assert "environment 1" in notes and f"in {fault.__name__}" in notes
    assert not is_alive(base)


def test_workers_of_the_user_can_lose_an_exception_but_not_hang(monkeypatch):
    monkeypatch.setattr(workers, "NOTICE_S", 0.5)
    env, base = users(local)
    state = env.reset(0)
    with pytest.raises(RuntimeError, match=r"environments \[1\] raised exceptions that can't be pickled"):
        env.step(state, SECOND)
    assert not is_alive(base)
