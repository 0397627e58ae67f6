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
