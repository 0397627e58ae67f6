"""Workers of an environment that the user has wrapped: limits hold through the wrappers, and end with each call."""

import multiprocessing
import os
import time

import gymnasium
import numpy as np
import pytest
from counter_env import make_class
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from gymnasium.wrappers.vector import RecordEpisodeStatistics, TransformReward

from multippo.envs.host import GymnasiumEnv


class Held(gymnasium.vector.VectorWrapper):
    """Waits for its steps itself, for as long as it likes."""

    def step(self, actions):
        self.env.step_async(actions)
        return self.env.step_wait(2.0)


def make_wrapped(fault, wrap, timeout):
    maker = make_class(fault)
    base = AsyncVectorEnv([maker] * 2, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
    return GymnasiumEnv(wrap(base), worker_timeout=timeout), base


WRAPPERS = [
    RecordEpisodeStatistics,
    lambda env: RecordEpisodeStatistics(TransformReward(env, lambda reward: 2 * reward)),
    Held,
]


@pytest.mark.parametrize("wrap", WRAPPERS, ids=["one", "two", "its own time"])
def test_a_worker_that_hangs_in_a_step_is_named_through_wrappers(wrap):
    timeout = 20.0 if wrap is Held else 3.0
    env, base = make_wrapped(lambda: time.sleep(60), wrap, timeout)
    state = env.step(env.reset(0), np.array([0, 0]))
    began = time.monotonic()
    advice = r"2 s.*let the wrapper that waits" if wrap is Held else r"3 s.*pass a larger worker_timeout"
    with pytest.raises(RuntimeError, match=rf"In step of .*environments \[1\] gave no answer within {advice}"):
        env.step(state, np.array([0, 1]))
    assert time.monotonic() - began < 8
    assert not any(process.is_alive() for process in base.processes)


@pytest.mark.parametrize("wrap", [lambda env: env, *WRAPPERS[:2]], ids=["none", "one", "two"])
def test_a_worker_that_hangs_in_a_reset_is_named_through_wrappers(wrap):
    class Stuck(make_class()):
        def reset(self, *, seed=None, options=None):
            if multiprocessing.current_process().name.endswith("-0"):
                time.sleep(60)
            return super().reset(seed=seed, options=options)

    base = AsyncVectorEnv([Stuck] * 2, context="forkserver", autoreset_mode=AutoresetMode.SAME_STEP)
    env = GymnasiumEnv(wrap(base), worker_timeout=1.0)
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"In reset of .*environments \[0\] gave no answer within 1 s"):
        env.reset(0)
    assert time.monotonic() - began < 8
    assert not any(process.is_alive() for process in base.processes)


class Closing(gymnasium.vector.VectorWrapper):
    """Closes what has failed before it passes the error on."""

    def step(self, actions):
        try:
            return self.env.step(actions)
        except BaseException:
            self.env.close()
            raise


def test_a_wrapper_may_close_what_hangs():
    env, base = make_wrapped(lambda: time.sleep(60), Closing, 3.0)
    state = env.step(env.reset(0), np.array([0, 0]))
    began = time.monotonic()
    with pytest.raises(RuntimeError, match=r"In step of .*environments \[1\] gave no answer within 3 s"):
        env.step(state, np.array([0, 1]))
    assert time.monotonic() - began < 12
    assert not any(process.is_alive() for process in base.processes)


def test_a_worker_that_dies_is_named_through_a_wrapper():
    env, base = make_wrapped(lambda: os._exit(7), RecordEpisodeStatistics, 10.0)
    state = env.reset(0)
    with pytest.raises(RuntimeError, match=r"In step of.*died.*\{1: 7\}"):
        env.step(state, np.array([0, 1]))
    assert not any(process.is_alive() for process in base.processes)


def test_between_the_calls_the_users_environment_waits_as_long_as_it_did():
    env, base = make_wrapped(lambda: time.sleep(2), RecordEpisodeStatistics, 1.0)
    own = base.call_wait = lambda timeout=None: "the user's own"
    env.step(env.reset(0), np.array([0, 0]))
    assert vars(base)["call_wait"] is own
    assert not {"reset_wait", "step_wait", "close_extras"} & set(vars(base))
    _, reward, *_ = base.step(np.array([0, 1]))  # longer than worker_timeout
    np.testing.assert_array_equal(reward, 1.0)
    env.close()
