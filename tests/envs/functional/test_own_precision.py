"""An environment made in double precision computes in it, whichever engine and mode it is called from."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import multippo as mp
from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.testing.environments import State


class Draws:
    """Shows a number of the widest type, and a third more after each step."""

    action_size = 1

    def reset(self, key):
        return State(jax.random.uniform(key, (2,)), jnp.zeros(()), jnp.zeros(()), {}, {})

    def step(self, state, action):
        return state._replace(obs=state.obs + 1.0 / 3.0, reward=jnp.sum(action))


def rolled(name: str, precision: str) -> list[np.ndarray]:
    with mp.use_backend(name) as engine, engine.precision(precision):
        env = FunctionalEnv(Draws(), 2, truncation_key=None)
    # Out of the engine's precision: the environment keeps its own.
    shown = [env.reset(np.array([0, 7], np.uint32))]
    for _ in range(2):
        shown.append(env.step(shown[-1], jnp.zeros((2, 1))))
    # What is observed is of the space's type; what is simulated is not.
    return [np.asarray(state.internal.simulator.obs) for state in shown]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_engine_sees_the_same_numbers(precision):
    found = {name: rolled(name, precision) for name in ("jax", "torch")}
    for shown in found.values():
        assert all(obs.dtype == precision for obs in shown)
        np.testing.assert_array_equal(shown, found["jax"])
    # A third of double precision, not one of single precision: the steps are computed in it, too.
    np.testing.assert_allclose(found["jax"][2] - found["jax"][0], 2 / 3, atol=1e-6 if precision == "float32" else 1e-15)


def test_an_engine_that_knows_double_precision_alone_plays_what_others_do():
    np.testing.assert_array_equal(rolled("numpy", "float64"), rolled("jax", "float32"))


def test_the_users_own_mode_stays():
    with jax.enable_x64(True):
        env = FunctionalEnv(Draws(), 2, truncation_key=None)
        assert env.reset(np.array([0, 7], np.uint32)).internal.simulator.obs.dtype == np.float64
