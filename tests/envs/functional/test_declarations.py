import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs.functional.declarations import (
    as_declared,
    find_truncation_key,
    functional_action_space,
    functional_observation_space,
)
from multippo.envs.functional.functional_env import FunctionalEnv


class Bare:
    pass


def shaped(*shape, dtype=jnp.float32):
    return jax.ShapeDtypeStruct(shape, dtype)


def test_spaces_made_from_observations():
    obs = {"state": shaped(3), "pixels": shaped(4, 4, dtype=jnp.uint8), "pair": (shaped(), shaped(2, dtype=jnp.bool_))}
    space = functional_observation_space(Bare(), None, obs)
    assert space["state"] == spaces.Box(-np.inf, np.inf, (3,), np.float32)
    assert space["pixels"] == spaces.Box(0, 255, (4, 4), np.uint8)
    assert space["pair"][0].shape == ()
    assert space["pair"][1] == spaces.Box(-np.inf, np.inf, (2,), np.float32)
    batch = jax.tree.map(lambda leaf: jnp.ones((5, *leaf.shape), leaf.dtype), obs)
    converted = as_declared(space, batch)
    assert converted["pixels"].dtype == jnp.uint8
    assert converted["pair"][1].dtype == jnp.float32


def test_declared_spaces_are_kept_and_checked():
    env = Bare()
    env.observation_space = spaces.Box(-1, 1, (3,), np.float32)
    assert functional_observation_space(env, None, shaped(3)) is env.observation_space
    with pytest.raises(ValueError, match=r"Bare.reset.*received shape \(4,\), expected shape \(3,\)"):
        functional_observation_space(env, None, shaped(4))
    nested = spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 1, (1,), np.int32)])})
    with pytest.raises(ValueError, match=r"observation\['a'\]\[0\].*float32 values, expected int32 values"):
        functional_observation_space(env, nested, {"a": (shaped(1),)})
    with pytest.raises(ValueError, match=r"Discrete.*not supported"):
        functional_observation_space(env, spaces.Discrete(2), shaped())


def test_action_spaces():
    env = Bare()
    with pytest.raises(ValueError, match="Bare does not say which actions it takes"):
        functional_action_space(env, None)
    env.action_size = 2
    assert functional_action_space(env, None) == spaces.Box(-1, 1, (2,), np.float32)
    env.action_space = spaces.Discrete(4)
    assert functional_action_space(env, None) == spaces.Discrete(4)
    assert functional_action_space(env, spaces.Discrete(5)) == spaces.Discrete(5)


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
