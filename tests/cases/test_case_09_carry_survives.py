"""A carry is reset at every end of an episode, of either kind, also one that a user's module has added.

Seen in ikostrikov/pytorch-a2c-ppo-acktr-gail#206, openai/baselines#340, instadeepai/Mava#951.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalClock

STEPS = 10
EXPECTED = np.arange(STEPS) % 3


def values(network: Any, env: Any, steps: int = STEPS) -> np.ndarray:
    """The network's values at each real step of environment 0."""
    state = network.initialize_state(env.num_envs)
    transition = mp.unroll_env(env, env.reset(0), network, state, steps, mp.random.key(0))[2]
    transition = support.to_numpy(transition)
    return transition.network_output.value_estimates[transition.valid[:, 0], 0]


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_policy_counts_from_0_in_each_episode(engine: Any, end: str, autoreset: str):
    steps = STEPS if autoreset == "same_step" else STEPS + 3
    found = values(CountNet(), Clock(3, end, autoreset=autoreset), steps)  # type: ignore[arg-type]
    np.testing.assert_array_equal(found - 10, EXPECTED)


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_in_a_functional_environment(engine: Any, end: str):
    env = mp.make_env(FunctionalClock(3, end), num_envs=2)  # type: ignore[arg-type]
    np.testing.assert_array_equal(values(CountNet(), env) - 10, EXPECTED)


class Counter(mp.StatefulModule):
    """A user's module: nothing but its own carry, and how that starts."""

    def initialize_state(self, batch_size: int) -> Any:
        return self.zeros((batch_size,))

    def reset_state(self, prev_state: Any) -> Any:
        return self.xp.zeros_like(prev_state)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state + 1, state[..., None])


class Reader(mp.StatefulModule):
    """Picks the counter's entry."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, x["count"])


@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_a_users_module_deep_inside_containers(engine: Any, end: str):
    rngs = mp.Rngs(0)
    trunk = mp.Parallel(count=mp.Sequential([mp.Dense(4, 2, rngs), Counter()]), other=mp.LSTM(4, 2, rngs))
    action = mp.Sequential([Reader(), mp.Dense(1, 2, rngs), mp.CategoricalSampler(rngs)])
    network = mp.Sequential([trunk, mp.PPOAdapter(action=action, value=Reader())])
    env = Clock(3, end)  # type: ignore[arg-type]
    np.testing.assert_array_equal(values(network, env), EXPECTED)
    # And in replay.
    state = network.initialize_state(1)
    transition = mp.unroll_env(env, env.reset(0), network, state, STEPS, mp.random.key(0))[2]
    found = support.to_numpy(mp.replay(network, state, transition).value_estimates)
    np.testing.assert_array_equal(found[:, 0], EXPECTED)
