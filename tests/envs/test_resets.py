"""What a vector environment may get wrong where episodes end, and nobody would notice by its values."""

from typing import ClassVar

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorObservationWrapper, VectorWrapper
from gymnasium.wrappers.vector import DictInfoToList, RecordEpisodeStatistics
from probing import Small

from multippo.envs import make_env
from multippo.testing import check_env


class Clocks(VectorEnv):
    """Shows the time; environment i is truncated at time ``length + i``. In mode DISABLED."""

    metadata: ClassVar = {"autoreset_mode": AutoresetMode.DISABLED}
    single_observation_space = spaces.Box(-100, 100, (1,), np.float32)
    single_action_space = spaces.Discrete(2)

    def __init__(self, length=2, num_envs=2, heeds=True, noise=0.0):
        self.num_envs, self.heeds, self.noise = num_envs, heeds, noise
        self.lengths = length + np.arange(num_envs)
        self.time = np.zeros(num_envs, int)

    def _obs(self):
        return (self.time + np.where(self.time > 0, self.noise, 0))[:, None].astype(np.float32)

    def reset(self, *, seed=None, options=None):
        every = np.ones(self.num_envs, bool)
        mask = (options or {}).get("reset_mask", every) if self.heeds else every
        self.time = np.where(mask, 0, self.time)
        return self._obs(), {}

    def step(self, actions):
        self.time = self.time + 1
        return self._obs(), np.ones(self.num_envs), np.zeros(self.num_envs, bool), self.time >= self.lengths, {}


class Forgetful(VectorWrapper):
    def reset(self, *, seed=None, options=None):
        return self.env.reset(seed=seed)


class Drifting(VectorObservationWrapper):
    """As a normaliser, shows the same otherwise at a later time."""

    calls = 0

    def observations(self, observations):
        self.calls += 1
        return observations + np.float32(0.001 * self.calls)


def play(env, num_steps):
    states = [env.reset(0)]
    for _ in range(num_steps):
        states.append(env.step(states[-1], np.zeros(env.num_envs, np.int64)))
    return [state.obs[:, 0].tolist() for state in states], [state.final_obs[:, 0].tolist() for state in states]


@pytest.mark.parametrize("noise", [0.0, np.nan])
def test_a_reset_of_some_leaves_the_others(noise):
    # Lengths 2 and 3: env 0 ends at steps 2, 4, 6, env 1 at 3, 6.
    obs, final = play(make_env(Clocks(noise=noise)), 6)
    add = lambda times: [[t and t + noise for t in row] for row in times]  # noqa: E731
    np.testing.assert_array_equal(obs, add([[0, 0], [1, 1], [0, 2], [1, 0], [0, 1], [1, 2], [0, 0]]))
    np.testing.assert_array_equal(final, add([[0, 0], [1, 1], [2, 2], [1, 3], [2, 1], [1, 2], [2, 3]]))


@pytest.mark.parametrize("wrap", [lambda env: env, DictInfoToList, Forgetful])
def test_a_reset_of_all_instead_of_some_is_refused(wrap):
    ignores = wrap(Clocks(heeds=wrap is Forgetful))
    with pytest.raises(ValueError, match=r"reset the environments \[0\] by .*reset_mask.*of \[1\]: heed the mask"):
        play(make_env(ignores), 2)
    assert not (report := check_env(ignores, num_steps=10))
    assert "heed the mask" in str(report)
    # A restart resets some as well.
    env = make_env(wrap(Clocks(9, heeds=wrap is Forgetful)), max_episode_steps=5)
    state = env.step(env.reset(0), np.zeros(2, int))
    with pytest.raises(ValueError, match=r"\[1\] by .*of \[0\]"):
        env.restart(state, np.array([False, True]))


def test_all_may_be_reset_where_all_have_ended():
    together = Clocks(heeds=False)
    together.lengths = np.array([2, 2])
    obs, final = play(make_env(together), 4)
    assert obs == [[0, 0], [1, 1], [0, 0], [1, 1], [0, 0]]
    assert final == [[0, 0], [1, 1], [2, 2], [1, 1], [2, 2]]


def test_a_wrapper_may_show_the_same_otherwise():
    obs, _ = play(make_env(Drifting(Clocks())), 3)
    # The fourth call is the reset of environment 0, which alone is shown of it.
    np.testing.assert_allclose(obs, [[0.001, 0.001], [1.002, 1.002], [0.004, 2.003], [1.005, 0.006]], rtol=1e-5)


# -- arrays that are returned again and again


class OneArray(Small):
    """Shows the time in an array that is always the same, but for copies where told; ends by truncation."""

    def __init__(self, length, copies, parts):
        self.length, self.copies, self.parts = length, copies, parts
        self.buffer = np.zeros(1, np.float32)
        if parts:
            self.observation_space = spaces.Dict({"x": Small.observation_space})

    def observe(self):
        self.buffer[:] = self.time
        where = "step" if self.time else "reset"
        obs = self.buffer.copy() if where in self.copies else self.buffer
        return {"x": obs} if self.parts else obs

    def outcome(self):
        return 1.0, False, self.time >= self.length


@pytest.mark.parametrize(
    ("copies", "parts"), [((), False), ((), True), (("step",), False), (("reset",), False), (("step", "reset"), True)]
)
def test_an_array_that_is_used_again_does_not_overwrite_the_last_observation(copies, parts):
    makers = [lambda n=n: OneArray(n, copies, parts) for n in (1, 2, 9)]
    vector_env = SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP)
    for _ in range(2):  # it may be passed in again
        env = make_env(RecordEpisodeStatistics(vector_env))
        states = [env.reset(0)]
        for _ in range(4):
            states.append(env.step(states[-1], np.zeros(3, np.int64)))
        obs, final = ([getattr(state, name) for state in states] for name in ("obs", "final_obs"))
        if parts:
            obs, final = [tree["x"] for tree in obs], [tree["x"] for tree in final]
        np.testing.assert_array_equal(np.hstack(obs), [[0, 0, 0, 0, 0], [0, 1, 0, 1, 0], [0, 1, 2, 3, 4]])
        np.testing.assert_array_equal(np.hstack(final), [[0, 1, 1, 1, 1], [0, 1, 2, 1, 2], [0, 1, 2, 3, 4]])
