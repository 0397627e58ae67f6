"""Rollouts: which carry a step saw, where it was reset, and what the end of an episode is worth."""

import functools
from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.algorithms.rollout import Actor, collect
from multippo.envs.api import EnvState
from multippo.testing import Clock, CountNet, FunctionalClock, NoisyNet, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

# Ends at every step; two in a row with the next; at the last step of 12; nowhere.
LENGTHS = (1, 2, 3, 12, 50)
STEPS = 12
ENDS = [
    ("terminated", "same_step"),
    ("truncated", "same_step"),
    ("terminated", "next_step"),
    ("truncated", "next_step"),
]


@functools.cache
def roll(name: str, end: str, autoreset: str) -> tuple[Any, mp.Transition, Spy]:
    """CountNet on clocks of LENGTHS: the carry afterwards, the transition in NumPy, and the environment's spy."""
    with mp.use_backend(name):
        env = Spy(Clock(LENGTHS, end, len(LENGTHS), autoreset))
        network = CountNet()
        state = network.initialize_state(len(LENGTHS))
        state, _, transition = mp.unroll_env(env, env.reset(0), network, state, STEPS, mp.random.key(1))
        return support.to_numpy(state), support.to_numpy(transition), env


def real_steps(transition: mp.Transition, env: int) -> np.ndarray:
    """Times at which a step counted."""
    return np.flatnonzero(transition.valid[:, env])


@pytest.mark.parametrize(("end", "autoreset"), ENDS)
def test_ends_are_where_the_clock_says(engine, end, autoreset):
    _, transition, _ = roll(engine.name, end, autoreset)
    for env, length in enumerate(LENGTHS):
        times = real_steps(transition, env)
        last = np.arange(1, len(times) + 1) % length == 0
        np.testing.assert_array_equal(transition.done[times, env], last)
        np.testing.assert_array_equal(transition.terminated[times, env], last & (end == "terminated"))
        np.testing.assert_array_equal(transition.truncated[times, env], last & (end == "truncated"))
        np.testing.assert_array_equal(transition.rewards[times, env], 1.0)
        none = ~transition.valid[:, env]
        assert not transition.done[none, env].any()
        assert not transition.rewards[none, env].any()
        if autoreset == "next_step":
            # Each end is followed by one step that is none: 3 + 1 steps a round, so 9 of 12 count in a clock of 3.
            np.testing.assert_array_equal(none[1:], transition.done[:-1, env])
        else:
            assert not none.any()


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_carry_afterwards(engine, autoreset):
    state, transition, _ = roll(engine.name, "terminated", autoreset)
    steps = transition.valid.sum(0)
    expected = steps % np.asarray(LENGTHS)
    np.testing.assert_array_equal(state["memory"], expected)
    # Random numbers used: one for each step that counted.
    np.testing.assert_array_equal(state["sampler"].count, steps)
    assert state["sampler"].tape is None


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_noise_drawn_ahead_is_the_noise_of_each_step(autoreset):
    # torch draws a whole rollout's noise in one call; the value of a final observation after the last step needs one
    # number more.
    found = []
    for name in support.ENGINES:
        with mp.use_backend(name):
            env, network = Clock([4, 50], "truncated", 2, autoreset), NoisyNet(51, 2, mp.Rngs(0))
            _, _, transition = mp.unroll_env(
                env, env.reset(0), network, network.initialize_state(2), 4, mp.random.key(0)
            )
            found.append(support.to_numpy(transition))
    assert found[0].truncated[-1, 0]
    support.assert_trees_close(found[1], found[0], 1e-5)


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
        if not hasattr(self, "arrays"):
            self.arrays = {name: np.array(getattr(state, name)) for name in names}
        for name, array in self.arrays.items():
            array[...] = getattr(state, name)
        return state._replace(**self.arrays)

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
