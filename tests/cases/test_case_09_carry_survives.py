"""A carry is reset at every end of an episode, of either kind, also one that a user's module has added.

Seen in ikostrikov/pytorch-a2c-ppo-acktr-gail#206, openai/baselines#340, instadeepai/Mava#951.
"""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalClock

STEPS = 10
EXPECTED = np.arange(STEPS) % 3


ENVS = {
    "same_step": lambda end: (Clock(3, end, autoreset="same_step"), STEPS),
    "next_step": lambda end: (Clock(3, end, autoreset="next_step"), STEPS + 3),
    "functional": lambda end: (mp.make_env(FunctionalClock(3, end), num_envs=2), STEPS),
}


@pytest.mark.parametrize("end", ["terminated", "truncated"])
@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.nightly_if("jax-functional-terminated", "jax-functional-truncated")
def test_the_policy_counts_from_0_in_each_episode(engine: Any, kind: str, end: str):
    env, steps = ENVS[kind](end)
    found = support.roll(env, CountNet(), steps)
    np.testing.assert_array_equal(found.network_output.value_estimates[found.valid[:, 0], 0] - 10, EXPECTED)


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
    stored, found = support.rolled_and_replayed(Clock(3, end), network, STEPS)
    for output in (stored.network_output, found):
        np.testing.assert_array_equal(output.value_estimates[:, 0], EXPECTED)
