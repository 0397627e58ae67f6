"""The state of a functional environment goes into named arrays and comes back, keys of either style included."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from multippo.envs.api import Env, EnvState
from multippo.envs.functional.saving import SavedEnvState, read_env_state


class Keyed(Env):
    """Its state holds an old-style key, a typed key, a bfloat16 number and a truth value."""

    id, num_envs, functional = "keyed", 2, True

    def reset(self, key: Any) -> EnvState:
        typed = jax.random.split(jax.random.wrap_key_data(key), 2)
        internal = {"raw": key, "typed": typed, "low": jnp.ones(2, jnp.bfloat16) / 3, "on": jnp.array(True)}
        zeros, never = jnp.zeros(2), jnp.zeros(2, jnp.bool_)
        obs = jax.vmap(jax.random.normal)(typed)
        return EnvState(obs, zeros, never, never, obs, ~never, {"m": zeros}, internal)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return env_state


def reader(arrays: dict[str, np.ndarray]) -> SavedEnvState:
    def read(expected: Any) -> dict[str, np.ndarray]:
        assert {name: array.shape for name, array in arrays.items()} == {name: e.shape for name, e in expected.items()}
        return arrays

    return SavedEnvState(read)


def test_a_state_comes_back_with_its_keys_and_types():
    state = Keyed().reset(jnp.array([1, 2**32 - 1], jnp.uint32))
    arrays = read_env_state(state)
    assert arrays[".internal['typed']"].dtype == np.uint32
    restored = reader(arrays).restore(Keyed())
    assert jax.tree.structure(restored) == jax.tree.structure(state)
    for got, expected in zip(jax.tree.leaves(restored), jax.tree.leaves(state), strict=True):
        assert (got.dtype, got.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(restored.internal["raw"], state.internal["raw"])
    np.testing.assert_array_equal(restored.internal["low"], state.internal["low"])
    # The next draw is the same.
    for typed in (restored.internal["typed"], state.internal["typed"]):
        assert jax.dtypes.issubdtype(typed.dtype, jax.dtypes.prng_key)
    np.testing.assert_array_equal(
        jax.random.uniform(restored.internal["typed"][1]), jax.random.uniform(state.internal["typed"][1])
    )


def test_what_comes_back_is_no_view_of_what_was_read():
    read = read_env_state(Keyed().reset(jnp.array([1, 2], jnp.uint32)))
    arrays = {name: np.array(array) for name, array in read.items()}
    restored = reader(arrays).restore(Keyed())
    before = np.array(restored.obs)
    arrays[".obs"][:] = 7.0
    np.testing.assert_array_equal(restored.obs, before)
