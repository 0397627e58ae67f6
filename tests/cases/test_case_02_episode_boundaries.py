"""What happens in one episode changes no advantage of the one before; and its last state is not the only one to learn.

Seen in Toni-SM/skrl#224, pytorch/rl#4209, ray-project/ray#57895.
"""

from typing import Any

import numpy as np
import probing
import pytest
import training

from multippo.testing import TableNet


def advantages(rewards: Any, ends: Any, values: Any, **options: Any) -> np.ndarray:
    """The advantage of each real step, ``[T]``, of one environment; read from training."""
    ends = np.asarray(ends)[:, None]
    env = probing.Script(ends, np.asarray(rewards, float)[:, None])
    table = np.zeros(env.per_env)
    table[: len(values)] = values
    network = TableNet(table)
    run = training.train(env, network, rollout_length=len(ends), **probing.ONE_STEP, **options)
    found = probing.advantages_of(network, run, len(ends))
    # An ended episode has shown a final observation, which is no sample.
    numbers = np.arange(len(ends)) + np.concatenate([[0], np.cumsum(ends[:, 0] > 0)[:-1]])
    return found[numbers]


VALUES = [1.0, 2.0, 4.0, -3.0, 0.5, 7.0]


@pytest.mark.parametrize("end", [1, 2])
def test_the_next_episodes_rewards_do_not_leak(engine: Any, end: int):
    # Two episodes of two steps; lambda 1, so that a trace would go all the way.
    ends = [0, end, 0, 1]
    calm = advantages([1, 1, 0, 0], ends, VALUES, discounting_factor=0.9, gae_lambda=1.0)
    wild = advantages([1, 1, 1000, 1000], ends, VALUES, discounting_factor=0.9, gae_lambda=1.0)
    np.testing.assert_array_equal(wild[:2], calm[:2])
    assert (wild[2:] > calm[2:] + 900).all()
    # V of the final observation (number 2) is 4: 1 + 0.9 * 4 - 2, or 1 - 2 if terminated.
    last = 1 + 0.9 * 4 * (end == 2) - 2
    np.testing.assert_allclose(calm[:2], [1 + 0.9 * 2 - 1 + 0.9 * last, last], rtol=1e-5)


@pytest.mark.nightly_if("jax")
def test_without_a_trace_the_state_before_the_last_learns_too(engine: Any):
    # s0 -> s1 -> terminal, rewards 0 and 1, V(s1) = 1, V(s0) = 0, lambda 0: targets 0.9 * 1 and 1.
    values = [0.0, 1.0]
    found = advantages([0, 1], [0, 1], values, discounting_factor=0.9, gae_lambda=0.0)
    np.testing.assert_allclose(found + values, [0.9, 1.0], atol=1e-6)
