"""A functional environment starts its episodes at fresh places, not at one that was stored.

Seen in google/brax#167, #275, #443, google-deepmind/mujoco_playground#169, MichalBortkiewicz/JaxGCRL#53.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.envs import FunctionalEnv
from multippo.testing import FunctionalGoal

LENGTH, EPISODES = 2, 5


def make_network() -> Any:
    rngs = mp.Rngs(0)
    action = mp.Sequential([mp.Dense(1, 2, rngs), mp.NormalTanhSampler(rngs)])
    return mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))


def goals(env: Any, rollouts: int, length: int) -> np.ndarray:
    """The goals of the episodes of environment 0, over some rollouts."""
    network = make_network()
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


@pytest.mark.nightly_if("jax")
def test_in_training(engine: Any):
    # The goal is shown as it is: what the normaliser has seen has the spread of many goals, not of one.
    network = mp.Sequential([mp.Normalizer(1), make_network()])
    env = mp.make_env(FunctionalGoal(LENGTH), num_envs=1)
    training.train(env, network, iterations=EPISODES, rollout_length=LENGTH, num_minibatches=1, num_epochs=1)
    assert network[0].count == EPISODES * LENGTH
    assert float(support.to_numpy(network[0].variance)[0]) > 0.05  # that of a uniform goal is 1/3


def test_brax_by_name(engine: Any):
    pytest.importorskip("brax")
    env = mp.make_env("brax/fast", num_envs=1, episode_length=LENGTH)
    assert isinstance(env, FunctionalEnv)
    assert env.max_episode_steps == LENGTH
