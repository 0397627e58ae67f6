"""Advantages of one sample, or equal ones, are normalised to numbers.

Seen in DLR-RM/stable-baselines3#265, #325, #440, #1028.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import Spy, TableNet


def network_for(env: Any) -> Any:
    size = env.observation_space.shape[0]
    network = TableNet(np.zeros(size))
    rows = np.linspace(0.1, 0.4, 2 * size).reshape(size, 2)
    mp.load_portable(network, {**mp.to_portable(network), "logits": rows})
    return network


def assert_finite(network: Any, run: training.Run) -> None:
    for name, value in mp.to_portable(network).items():
        assert np.isfinite(value).all(), name
    for moment in training.portable_moments(network, run.state)[:2]:
        for name, value in moment.items():
            assert np.isfinite(value).all(), name
    for line in run.logs:
        for name, value in line.items():
            # A mean over no episode at all is documented as NaN.
            assert np.isfinite(value) or (line["rollout/episodes"] == 0 and name.endswith("/mean")), name


@pytest.mark.parametrize(
    ("engine", "time", "num_envs", "minibatches"),
    [
        # One sample in all; one in each minibatch.
        ("jax", 1, 1, 1),
        ("torch", 1, 1, 1),
        ("torch", 2, 1, 2),
        ("jax", 2, 1, 2),
    ],
    indirect=["engine"],
)
def test_a_minibatch_of_one_sample(engine: Any, time: int, num_envs: int, minibatches: int):
    env = probing.Script(np.zeros((time, num_envs), int))
    network = network_for(env)
    before = mp.to_portable(network)
    run = training.train(
        env,
        network,
        rollout_length=time,
        num_minibatches=minibatches,
        iterations=1,
        scale_rewards=False,
        discounting_factor=0.0,
    )
    assert_finite(network, run)
    # The critic learns; the actor has nothing to learn from: relative to itself, no sample is better.
    after = mp.to_portable(network)
    assert np.abs(after["values"] - before["values"]).max() > 0
    support.assert_trees_close(after["logits"], before["logits"].astype(np.float32), 1e-6)


def test_equal_advantages(engine: Any):
    # Reward 1 and value 0 everywhere, gamma 0: every advantage is 1.
    env = probing.Script(np.zeros((4, 2), int))
    network = network_for(env)
    before = mp.to_portable(network)
    run = training.train(env, network, iterations=1, scale_rewards=False, discounting_factor=0.0, num_epochs=1)
    assert_finite(network, run)
    assert run.logs[0]["losses/actor"] == pytest.approx(0.0, abs=1e-6)
    support.assert_trees_close(mp.to_portable(network)["logits"], before["logits"].astype(np.float32), 1e-6)


@pytest.mark.parametrize(("time", "num_envs", "minibatches"), [(5, 1, 2), (5, 3, 7), (1, 1, 4)])
def test_an_uneven_split_that_leaves_one_sample_is_refused_before_any_step(
    engine: Any, time: int, num_envs: int, minibatches: int
):
    env = Spy(probing.Script(np.zeros((time, num_envs), int)))
    with pytest.raises(ValueError, match=f"{num_envs}.*{minibatches}"):
        training.train(env, network_for(env), rollout_length=time, num_minibatches=minibatches)
    assert not env.actions
