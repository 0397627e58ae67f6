import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs.functional.declarations import (
    find_truncation_key,
    functional_action_space,
    functional_observation_space,
)
from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.testing import FunctionalClock


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


def test_what_the_user_says_of_a_time_limit_counts():
    # The environment calls it a truncation; with no key given every end is a termination.
    env = FunctionalEnv(FunctionalClock(1, "truncated"), 1, truncation_key=None)
    state = env.step(env.reset(0), jnp.zeros(1, int))
    assert state.terminated.all() and not state.truncated.any()


def test_no_sign_of_a_time_limit_is_announced():
    with pytest.warns(UserWarning, match="every end counts as a termination.*truncation_key=None"):
        assert find_truncation_key(Bare(), {"steps"}, "auto", None) is None
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert find_truncation_key(Bare(), {"steps"}, None, None) is None
        assert find_truncation_key(Bare(), {"steps"}, "auto", 10) is None
        assert find_truncation_key(Bare(), {"time_out", "truncation"}, "auto", None) == "truncation"
        for key in ("time_out", "truncated"):
            assert find_truncation_key(Bare(), {key, "steps"}, "auto", None) == key
