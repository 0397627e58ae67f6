import warnings

import jax.numpy as jnp
import pytest

from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.envs.functional.truncation import find_truncation_key, own_episode_limit


class Raw:
    pass


class Limited:
    """Wraps an environment and ends its episodes after three steps, as ``report`` tells."""

    def __init__(self, env, report):
        self.env, self.report, self.episode_length = env, report, 3
        self.action_space = env.action_space

    def reset(self, key):
        return self._state(self.env.reset(key), jnp.zeros(()))

    def step(self, state, action):
        return self._state(self.env.step(state, action), state.info["own_steps"] + 1)

    def _state(self, state, steps):
        over = steps >= 3
        info = {**state.info, "own_steps": steps, **self.report(over * (1 - state.done))}
        info.pop("truncation" if "truncation" not in self.report(0) else "", None)
        return state._replace(done=jnp.where(over, 1.0, state.done), info=info)


REPORTS = {
    "brax": lambda cut: {"truncation": cut},
    "gymnasium": lambda cut: {"truncated": cut},
    "rsl_rl": lambda cut: {"time_out": cut},
}


def ends(env, num_steps=9):
    state = env.reset(0)
    terminated, truncated = [], []
    for t in range(1, num_steps + 1):
        state = env.step(state, jnp.zeros(1, int))
        terminated += [t] * bool(state.terminated[0])
        truncated += [t] * bool(state.truncated[0])
    return terminated, truncated


@pytest.mark.parametrize("report", REPORTS.values(), ids=REPORTS)
def test_a_wrappers_time_limit_is_read_as_such(jax_clock, report):
    assert ends(FunctionalEnv(Limited(jax_clock(99, "terminated"), report), 1)) == ([], [3, 6, 9])
    assert ends(FunctionalEnv(Limited(jax_clock(2, "terminated"), report), 1)) == ([2, 4, 6, 8], [])
    assert FunctionalEnv(Limited(jax_clock(99, "terminated"), report), 1).max_episode_steps == 3


def test_an_unknown_name_can_be_given(jax_clock):
    env = Limited(jax_clock(99, "terminated"), lambda cut: {"was_cut": cut})
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
        assert find_truncation_key(Raw(), {"time_out"}, "auto", None) == "time_out"


def test_limits_that_can_be_seen():
    env = Raw()
    assert own_episode_limit(env) is None
    env.max_steps = 0
    assert own_episode_limit(env) is None
    env.max_episode_steps = 7
    assert own_episode_limit(env) == 7
