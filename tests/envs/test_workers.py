"""Worker processes. Environments are local classes, which travel to a worker by value."""

import inspect
import math
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
import warnings

import gymnasium
import numpy as np
import pytest
from counter_env import make_class
from gymnasium import spaces
from gymnasium.vector import AsyncVectorEnv, AutoresetMode

from multippo.envs.host import GymnasiumEnv
from multippo.envs.make import make_env as make_env_by_name
from multippo.envs.vectorize import vectorize, vectorize_id
from multippo.envs.workers import CLOSE_S, NOTICE_S, WORKER_TIMEOUT_S, without_tracebacks


def make_env(fault=None, timeout=10.0):
    return GymnasiumEnv(vectorize([make_class(fault)] * 2, "async"), worker_timeout=timeout)


def processes(env):
    return env.vector_env.processes


def test_steps_and_ends():
    env = make_env()
    state = env.reset(0)
    for time_ in (1, 2, 3, 1):
        state = env.step(state, np.zeros(2, int))
        np.testing.assert_array_equal(state.final_obs, np.full((2, 1), time_))
        np.testing.assert_array_equal(state.truncated, time_ == 3)
        np.testing.assert_array_equal(state.obs, 0 if time_ == 3 else time_)
    env.close()
    env.close()
    assert not any(process.is_alive() for process in processes(env))


def test_a_worker_that_dies_is_named():
    env = make_env(lambda: os._exit(7))
    state = env.reset(0)
    with pytest.raises(RuntimeError, match=r"In step of.*died.*\{1: 7\}"):
        env.step(state, np.array([0, 1]))
    assert not any(process.is_alive() for process in processes(env))
    env.close()


def test_a_worker_that_hangs_is_named():
    env = make_env(lambda: time.sleep(60), timeout=1.0)
    state = env.reset(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"environments \[1\] gave no answer within 1 s.*worker_timeout"):
        env.step(state, np.array([0, 1]))
    assert time.monotonic() - began < 10
    assert not any(process.is_alive() for process in processes(env))


def test_a_worker_is_named_and_gone_within_30_s_unless_another_limit_is_set():
    # The wait for an answer; then for an announced exception, or the end of one that died; then the others are ended.
    assert WORKER_TIMEOUT_S + NOTICE_S + CLOSE_S <= 30
    for function in (GymnasiumEnv, vectorize, vectorize_id):
        assert inspect.signature(function).parameters["worker_timeout"].default == WORKER_TIMEOUT_S


def test_members_with_other_spaces_are_named():
    class Other(make_class()):
        action_space = spaces.Discrete(3)

    with pytest.raises(
        ValueError, match=r"environments \[1\] have other spaces than environment 0, Counter, .*Discrete"
    ):
        make_env_by_name([make_class(), Other], vectorization="async")
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("seconds", [0, -1, math.nan, math.inf, None, "20", True, 1e300, 1e7])
def test_a_limit_that_is_no_time_is_refused_before_a_worker_is_started(seconds):
    text = re.escape(f"worker_timeout={seconds!r} is not possible: expected a finite number of seconds, more than 0")
    for environment in ([make_class()] * 2, "CartPole-v1"):
        with pytest.raises(ValueError, match=text):
            make_env_by_name(environment, num_envs=2, vectorization="async", worker_timeout=seconds)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("obstacle", ["close", "thread"])
def test_a_worker_that_does_not_end_is_ended(caplog, obstacle):
    class Staying(make_class()):
        def __init__(self):
            if obstacle == "thread" and multiprocessing.parent_process() is not None:
                threading.Thread(target=time.sleep, args=(60,)).start()

        def close(self):
            if obstacle == "close" and multiprocessing.parent_process() is not None:
                time.sleep(60)

    env = GymnasiumEnv(vectorize([make_class(), Staying], "async"), worker_timeout=2.0)
    env.step(env.reset(0), np.zeros(2, int))
    began = time.monotonic()
    env.close()
    assert 2 <= time.monotonic() - began < 10
    assert "workers of environments [1] did not end within worker_timeout=2 s" in caplog.text
    assert not multiprocessing.active_children()
    env.close()


def test_workers_that_ignore_being_terminated_are_killed_together():
    class Deaf(make_class(lambda: os._exit(1))):
        def __init__(self):
            if multiprocessing.parent_process() is not None:
                signal.signal(signal.SIGTERM, signal.SIG_IGN)

    env = GymnasiumEnv(vectorize([Deaf] * 6, "async"), worker_timeout=10.0)
    state = env.reset(0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match="a worker process died"):
        env.step(state, np.array([1, 0, 0, 0, 0, 0]))
    assert time.monotonic() - began < 8
    assert not any(process.is_alive() for process in processes(env))


def test_gymnasium_speaks_again_after_threads_have_wanted_it_quiet():
    before = gymnasium.logger.min_level
    inside, leave = threading.Barrier(3), [threading.Event(), threading.Event()]

    def be_quiet(place):
        with without_tracebacks():
            inside.wait(5)
            leave[place].wait(5)

    threads = [threading.Thread(target=be_quiet, args=(place,)) for place in range(2)]
    for thread in threads:
        thread.start()
    inside.wait(5)
    for thread, event in zip(threads, leave, strict=True):  # the one that came first goes first
        assert gymnasium.logger.min_level > gymnasium.logger.ERROR
        event.set()
        thread.join()
    assert gymnasium.logger.min_level == before


@pytest.mark.parametrize(
    ("space", "options", "kind"),
    [(spaces.Text(3), {}, ValueError), (spaces.Discrete(2), {"reward_dtype": "no"}, TypeError)],
)
def test_what_is_refused_after_the_start_leaves_no_worker(space, options, kind):
    class Other(make_class()):
        action_space = space

    with pytest.raises(kind, match=r"Text|reward_dtype='no' is not possible") as kept:
        make_env_by_name([Other] * 2, vectorization="async", **options)
    assert not multiprocessing.active_children()
    del kept


def test_an_exception_brings_its_traceback():
    def fault():
        raise ZeroDivisionError("100% in the worker")

    env = make_env(fault)
    state = env.reset(0)
    with pytest.raises(ZeroDivisionError, match="100% in the worker") as caught:
        env.step(state, np.array([0, 1]))
    notes = "\n".join(caught.value.__notes__)
    assert "environment 1 of the batch" in notes
    assert "in fault" in notes
    assert not any(process.is_alive() for process in processes(env))


def test_no_process_is_forked_from_one_that_runs_jax(tmp_path):
    # JAX warns of a fork once it runs threads; in a process of its own, since this one may hold others' threads.
    script = textwrap.dedent(
        """
        import warnings
        import gymnasium, jax, numpy as np
        from multippo.envs.make import make_env

        if __name__ == "__main__":
            jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
            warnings.simplefilter("error")
            env = make_env("CartPole-v1", num_envs=2, vectorization="async")
            env.step(env.reset(0), np.zeros(2, int))
            env.close()
            print("done")
        """
    )
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py")]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert run.stdout == "done\n", run.stderr
    assert "fork" not in run.stderr


class TwoArgumentsError(Exception):
    """Can be pickled and not unpickled: ``args`` holds one argument, and the class wants two."""

    def __init__(self, code, where):
        super().__init__(f"code {code} at {where}")


def faults():
    class LocalError(Exception):
        pass

    def unpicklable():
        raise RuntimeError("sim failed", threading.Lock())

    def local():
        raise LocalError("sim failed")

    def two_arguments():
        raise TwoArgumentsError(7, "sim failed")

    def wants_five():  # pickles well, but gymnasium makes one with one argument
        raise UnicodeDecodeError("ascii", b"x", 0, 1, "sim failed")

    return {function.__name__: function for function in (unpicklable, local, two_arguments, wants_five)}


@pytest.mark.parametrize(
    ("fault", "place", "text"),
    [
        ("unpicklable", "step", "RuntimeError: "),
        ("unpicklable", "reset", "RuntimeError: "),
        ("unpicklable", "construction", "RuntimeError: "),
        ("local", "step", "LocalError: sim failed"),
        ("two_arguments", "step", "TwoArgumentsError: code 7 at sim failed"),
        ("wants_five", "step", "UnicodeDecodeError: "),
    ],
)
def test_an_exception_that_cannot_be_pickled_is_retold(fault, place, text):
    function, parent = faults()[fault], os.getpid()
    base = make_class(function)

    class Faulty(base):
        def __init__(self, index):
            self.index = index
            if place == "construction" and index == 1 and os.getpid() != parent:
                function()

        def reset(self, *, seed=None, options=None):
            if place == "reset" and self.index == 1:
                function()
            return super().reset(seed=seed, options=options)

    makers = [lambda index=index: Faulty(index) for index in range(2)]
    before, began = set(multiprocessing.active_children()), time.monotonic()
    with pytest.raises(RuntimeError, match="sim failed") as caught:
        env = GymnasiumEnv(vectorize(makers, "async"), worker_timeout=3.0)
        state = env.reset(0)
        assert place == "step"
        env.step(state, np.array([0, 1]))
    assert time.monotonic() - began < 10
    message = str(caught.value)
    assert text in message
    assert "environment 1 of the batch" in message
    assert f"in {fault}" in message
    assert set(multiprocessing.active_children()) <= before


def test_workers_of_the_user_can_lose_an_exception_but_not_hang():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = [make_class(faults()["unpicklable"])] * 2
        vector_env = AsyncVectorEnv(makers, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
        env = GymnasiumEnv(vector_env, worker_timeout=1.0)
        state = env.reset(0)
        with pytest.raises(RuntimeError, match=r"environments \[1\] raised exceptions that can't be pickled"):
            env.step(state, np.array([0, 1]))
    assert not any(process.is_alive() for process in processes(env))


def test_an_exception_of_a_constructor_keeps_its_type():
    parent = os.getpid()

    class Faulty(make_class()):
        def __init__(self):
            if os.getpid() != parent:
                raise ZeroDivisionError("in the worker only")

    before = set(multiprocessing.active_children())
    with pytest.raises(ZeroDivisionError, match="in the worker only") as caught:
        vectorize([Faulty] * 2, "async")
    assert "in __init__" in "\n".join(caught.value.__notes__)
    assert set(multiprocessing.active_children()) <= before


def test_a_constructor_that_cannot_travel_keeps_its_exception():
    lock = threading.Lock()

    class Locked(make_class()):
        lock_ = lock

    with pytest.raises(TypeError, match="pickle"):
        vectorize([Locked] * 2, "async")
