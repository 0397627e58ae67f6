"""A functional environment starts its episodes at fresh places, not at one that was stored.

Seen in google/brax#167, #275, #443, google-deepmind/mujoco_playground#169, MichalBortkiewicz/JaxGCRL#53.
"""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.envs import FunctionalEnv
from multippo.testing import FunctionalGoal

LENGTH, EPISODES = 2, 5


def goals(env: Any, rollouts: int, length: int) -> np.ndarray:
    """The goals of the episodes of environment 0, over some rollouts."""
    network = support.actor_critic(1, "NormalTanhSampler")
    state, env_state, shown = network.initialize_state(env.num_envs), env.reset(0), []
    for number in range(rollouts):
        state, env_state, transition = mp.unroll_env(env, env_state, network, state, length, mp.random.key(number))
        shown.append(support.to_numpy(transition.obs)[::LENGTH, 0, 0])
    return np.concatenate(shown)


@pytest.mark.nightly
def test_every_episode_of_one_rollout_has_its_own(engine: Any):
    found = goals(mp.make_env(FunctionalGoal(LENGTH), num_envs=1), 1, LENGTH * EPISODES)
    assert len(np.unique(found)) == EPISODES


@pytest.mark.parametrize("pool_size", [None, 1])
@pytest.mark.nightly
def test_over_rollouts_even_from_the_smallest_pool(engine: Any, pool_size: int | None):
    # A pool of one start serves every end within a rollout, and is drawn anew for the next; the documentation says so.
    env = mp.make_env(FunctionalGoal(LENGTH), num_envs=1, pool_size=pool_size)
    found = goals(env, EPISODES, LENGTH)
    assert len(np.unique(found)) >= EPISODES - 1
    assert "pool_size: Number of fresh starts" in (FunctionalEnv.__doc__ or "")
