"""Rollouts: which carry a step saw, where it was reset, and what the end of an episode is worth."""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.algorithms.rollout import Actor, collect
from multippo.envs.api import EnvState
from multippo.testing import Clock, CountNet, FunctionalClock, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


# -- what training asks of it besides


@pytest.mark.parametrize("kind", ["host", "functional"])
def test_the_carries_at_the_starts_of_sequences(engine, kind):
    env: Any = Clock(3, num_envs=2) if kind == "host" else mp.make_env(FunctionalClock(3), num_envs=2)
    network = CountNet()
    parts = engine.split(network)
    actor = Actor(engine, env, parts.definition, "off")
    state, env_state = network.initialize_state(2), env.reset(0)
    *_, starts = collect(actor, parts.params, parts.variables, state, env_state, 8, 2)
    starts = support.to_numpy(starts)
    # Counts before steps 0, 2, 4, 6 of episodes of 3.
    np.testing.assert_array_equal(starts["memory"][:, 0], [0, 2, 1, 0])
    np.testing.assert_array_equal(starts["sampler"].count[:, 0], [0, 2, 4, 6])
    assert starts["sampler"].tape is None


class Reusing(Spy):
    """Writes every answer into the arrays of the first."""

    def _into_the_same(self, state: EnvState) -> EnvState:
        names = ("obs", "final_obs", "reward", "terminated", "truncated", "valid")
        if not hasattr(self, "held"):
            self.held = {name: np.array(getattr(state, name)) for name in names}
        for name, array in self.held.items():
            array[...] = getattr(state, name)
        return state._replace(**self.held)

    def reset(self, key: Any) -> EnvState:
        return self._into_the_same(super().reset(key))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        return self._into_the_same(super().step(env_state, action))


def test_an_environment_may_reuse_its_arrays(engine: Any) -> None:
    # Observations of 129 numbers: small arrays are copied anyway somewhere, and hide the fault.
    found = []
    for kind in (Spy, Reusing):
        env = kind(Clock((3, 128), "truncated", 2))
        network = TableNet(np.arange(129.0))
        state = network.initialize_state(2)
        found.append(support.to_numpy(mp.unroll_env(env, env.reset(0), network, state, 6, mp.random.key(1))[2]))
    np.testing.assert_array_equal(found[1].obs, found[0].obs)
    np.testing.assert_array_equal(found[1].rewards, found[0].rewards)
    np.testing.assert_array_equal(found[1].truncated, found[0].truncated)
    np.testing.assert_array_equal(found[1].bootstrap_values, found[0].bootstrap_values)
    assert found[0].truncated[2, 0] and not found[0].truncated[3, 0]
