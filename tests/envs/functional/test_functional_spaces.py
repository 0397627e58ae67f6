import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs.functional.functional_spaces import (
    as_declared,
    functional_action_space,
    functional_observation_space,
)


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
    for obs, message in [
        (shaped(4), r"Bare.reset.*received shape \(4,\), expected shape \(3,\)"),
        ({"a": shaped(3)}, "received a dict, expected shape"),
    ]:
        with pytest.raises(ValueError, match=message):
            functional_observation_space(env, None, obs)
    nested = spaces.Dict({"a": spaces.Tuple([spaces.Box(0, 1, (1,), np.int32)])})
    with pytest.raises(ValueError, match=r"observation\['a'\]\[0\].*float32 values, expected int32 values"):
        functional_observation_space(env, nested, {"a": (shaped(1),)})
    with pytest.raises(ValueError, match=r"entries \['b'\], expected a dict with the entries \['a'\]"):
        functional_observation_space(env, nested, {"b": shaped(1)})
    with pytest.raises(ValueError, match=r"Discrete.*not supported"):
        functional_observation_space(env, spaces.Discrete(2), shaped())


def test_keys_that_name_no_entry_are_refused():
    obs = {"a": ({"": shaped(1)},)}
    for declared in (None, spaces.Dict(a=spaces.Tuple([spaces.Dict({"": spaces.Box(0, 1, (1,))})]))):
        with pytest.raises(ValueError, match=r"observation\['a'\]\[0\] space has the keys \[''\]"):
            functional_observation_space(Bare(), declared, obs)


def test_action_spaces():
    env = Bare()
    with pytest.raises(ValueError, match="Bare does not say which actions it takes"):
        functional_action_space(env, None)
    env.action_size = 2
    assert functional_action_space(env, None) == spaces.Box(-1, 1, (2,), np.float32)
    env.action_space = spaces.Discrete(4)
    assert functional_action_space(env, None) == spaces.Discrete(4)
    assert functional_action_space(env, spaces.Discrete(5)) == spaces.Discrete(5)
