"""Worker processes. Environments are local classes, which travel to a worker by value."""

import os
import subprocess
import sys
import textwrap
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs.host import GymnasiumEnv
from multippo.envs.vectorize import vectorize


def make_class(fault=None):
    class Counter(gymnasium.Env):
        observation_space = spaces.Box(0, 100, (1,), np.float32)
        action_space = spaces.Discrete(2)

        def reset(self, *, seed=None, options=None):
            super().reset(seed=seed)
            self.time = 0
            return np.zeros(1, np.float32), {}

        def step(self, action):
            self.time += 1
            if action == 1 and fault is not None:
                fault()
            return np.array([self.time], np.float32), 1.0, False, self.time == 3, {}

    return Counter


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
