"""Replay starts from the carry its sequence started from, in every epoch and minibatch.

Seen in ray-project/ray#2898, allenai/allenact#77, ikostrikov/pytorch-a2c-ppo-acktr-gail#278.
"""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, CountNet

EPISODE, STEPS = 10, 4


def test_the_second_rollout_is_replayed_from_its_stored_carry(engine: Any):
    env, network = Clock(EPISODE, num_envs=2), CountNet()
    env_state, state = env.reset(0), network.initialize_state(2)
    for first in (0, 4, 8):
        after, env_state, transition = mp.unroll_env(env, env_state, network, state, STEPS, mp.random.key(0))
        found = support.to_numpy(mp.replay(network, state, transition)).value_estimates[:, 0] - 10
        np.testing.assert_array_equal(found, (first + np.arange(STEPS)) % EPISODE)
        # From zeros, or from the carry afterwards, it would be another.
        for wrong in (network.initialize_state(2), after):
            other = support.to_numpy(mp.replay(network, wrong, transition)).value_estimates[:, 0] - 10
            assert first == 0 or not np.array_equal(other, found)
        state = after


@pytest.mark.parametrize(("engine", "length"), [("jax", 2), ("torch", 2), ("torch", 1)], indirect=["engine"])
@pytest.mark.nightly_if("jax")
def test_in_every_epoch_alike(engine: Any, length: int):
    options = {"num_epochs": 3, "num_minibatches": 2, "sequence_length": length, "learning_rate": 0.0}
    run = training.train(Clock(EPISODE, num_envs=2), CountNet(), iterations=4, **options)
    for metric in ("ratio/first_max_dev", "ratio/last_max_dev", "kl/approx", "ratio/clip_fraction"):
        # A rollout's products have fewer rows than those of a replay, and round otherwise.
        assert run.column(metric) == pytest.approx([0.0] * 4, abs=1e-6), metric


def test_no_graph_of_an_earlier_rollout_is_kept(torch_engine: Any):
    # Backward through a graph that the last update has freed raises in torch.
    network = mp.Sequential([mp.LSTM(11, 4, mp.Rngs(0), trainable_initial_state=True), support.actor_critic(4)])
    support.fill_randomly(network)
    run = training.train(Clock(EPISODE, num_envs=2), network, iterations=4, num_epochs=2)
    assert len(run.logs) == 4
    assert max(run.column("ratio/first_max_dev")) <= 1e-6
    for leaf in support.tree_leaves(run.state.network_state):
        assert not leaf.requires_grad
