import warnings

import jax.numpy as jnp
import pytest

from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.envs.functional.truncation import find_truncation_key, own_episode_limit


class Raw:
    pass


class Limited:
    """Wraps an environment and ends its episodes after three steps, as ``was_cut`` tells."""

    def __init__(self, env):
        self.env, self.episode_length = env, 3
        self.action_space = env.action_space

    def reset(self, key):
        return self._state(self.env.reset(key), jnp.zeros(()))

    def step(self, state, action):
        return self._state(self.env.step(state, action), state.info["own_steps"] + 1)

    def _state(self, state, steps):
        over = steps >= 3
        info = {**state.info, "own_steps": steps, "was_cut": over * (1 - state.done)}
        del info["truncation"]
        return state._replace(done=jnp.where(over, 1.0, state.done), info=info)


def ends(env, num_steps=9):
    state = env.reset(0)
    terminated, truncated = [], []
    for t in range(1, num_steps + 1):
        state = env.step(state, jnp.zeros(1, int))
        terminated += [t] * bool(state.terminated[0])
        truncated += [t] * bool(state.truncated[0])
    return terminated, truncated


def test_an_unknown_name_can_be_given(jax_clock):
    env = Limited(jax_clock(99, "terminated"))
    with pytest.raises(
        ValueError, match=r"limit of its own \(3 steps\).*\['own_steps', 'time', 'was_cut'\].*truncation_key="
    ):
        FunctionalEnv(env, 1)
    with pytest.raises(ValueError, match="limit of its own"):
        FunctionalEnv(env, 1, episode_length=3)
    assert ends(FunctionalEnv(env, 1, truncation_key="was_cut")) == ([], [3, 6, 9])
    # The user's word counts: every end is a termination.
    assert ends(FunctionalEnv(env, 1, truncation_key=None)) == ([3, 6, 9], [])
    # A limit that the adapter's own always comes before is never reached.
    assert ends(FunctionalEnv(env, 1, episode_length=2)) == ([], [2, 4, 6, 8])
    with pytest.raises(ValueError, match="'other' is not in the info"):
        FunctionalEnv(env, 1, truncation_key="other")


def test_no_sign_of_a_time_limit_is_announced():
    with pytest.warns(UserWarning, match="every end counts as a termination.*truncation_key=None"):
        assert find_truncation_key(Raw(), {"steps"}, "auto", None) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_truncation_key(Raw(), {"steps"}, None, None) is None
        assert find_truncation_key(Raw(), {"steps"}, "auto", 10) is None
        assert find_truncation_key(Raw(), {"time_out", "truncation"}, "auto", None) == "truncation"
        for key in ("time_out", "truncated"):
            assert find_truncation_key(Raw(), {key, "steps"}, "auto", None) == key


def test_limits_that_can_be_seen():
    env = Raw()
    assert own_episode_limit(env) is None
    env.max_steps = 0
    assert own_episode_limit(env) is None
    env.max_episode_steps = 7
    assert own_episode_limit(env) == 7
