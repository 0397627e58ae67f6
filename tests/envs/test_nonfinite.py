"""Numbers too large for the type that networks compute in are found before an engine casts them."""

import numpy as np
import pytest
import support
from gymnasium import spaces

import multippo as mp
from multippo.envs.nonfinite import restart_broken, restart_unsound
from multippo.testing import Clock, CountNet


class Huge(Clock):
    """Shows its time in double precision; environment 1 shows ``value`` instead of time 2."""

    def __init__(self, value=1e299, autoreset="same_step", at=2, restarts=True):
        super().__init__(5, "truncated", 2, autoreset)
        self.observation_space = spaces.Box(-np.inf, np.inf, (1,), np.float64)
        self.value, self.at, self.can = value, at, restarts

    def _observe(self):
        shown = self.time[:, None].astype(np.float64)
        shown[1, 0] = self.value if self.time[1] == self.at else shown[1, 0]
        return shown

    def restart(self, env_state, which):
        return super().restart(env_state, which) if self.can else None


@pytest.mark.parametrize("value", [-1e299, 3.5e38])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_what_float32_can_not_hold_is_a_broken_step(engine, value, autoreset):
    network = CountNet()
    state = network.initialize_state(2)
    env = Huge(value, autoreset)
    transition = support.to_numpy(mp.unroll_env(env, env.reset(0), network, state, 5, engine.random.key(1))[2])
    np.testing.assert_array_equal(transition.broken, [[0, 0], [0, 2], [0, 0], [0, 2], [0, 0]])
    np.testing.assert_array_equal(transition.obs[:, :, 0], [[0, 0], [1, 1], [2, 0], [3, 1], [4, 0]])
    np.testing.assert_array_equal(transition.rewards, [[1, 1], [1, 0], [1, 1], [1, 0], [1, 1]])


@pytest.mark.usefixtures("float64")
def test_in_double_precision_it_is_a_number(engine):
    env = Huge()
    state = restart_broken(env, env.step(env.step(env.reset(0), np.zeros(2)), np.zeros(2)))
    np.testing.assert_array_equal(state.obs, [[2], [1e299]])
    assert state.broken is None


def test_where_nothing_can_be_restarted_every_engine_is_shown_an_infinity(torch_engine):
    env = Huge(-1e299, restarts=False)
    state = env.step(env.step(env.reset(0), np.zeros(2)), np.zeros(2))
    guarded = restart_broken(env, state)
    np.testing.assert_array_equal(guarded.obs, [[2], [-np.inf]])
    np.testing.assert_array_equal(guarded.final_obs, guarded.obs)
    np.testing.assert_array_equal(state.obs, [[2], [-1e299]])
    env = Huge(at=0, restarts=False)
    np.testing.assert_array_equal(restart_unsound(env, env.reset(0)).obs, [[0], [np.inf]])
    env = Huge(at=0)
    np.testing.assert_array_equal(restart_unsound(env, env.reset(0)).broken, [0, -2])
