"""Advantages of one sample, or equal ones, are normalised to numbers.

Seen in DLR-RM/stable-baselines3#265, #325, #440, #1028.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import TableNet


def network_for(env: Any) -> Any:
    size = env.observation_space.shape[0]
    network = TableNet(np.zeros(size))
    rows = np.linspace(0.1, 0.4, 2 * size).reshape(size, 2)
    mp.load_portable(network, {**mp.to_portable(network), "logits": rows})
    return network


@pytest.mark.parametrize(
    ("time", "num_envs", "minibatches"),
    # One sample in all; one in each minibatch; and eight that are equal: reward 1, value 0, gamma 0.
    [(1, 1, 1), (2, 1, 2), (4, 2, 1)],
)
@pytest.mark.nightly_if("jax")
def test_advantages_of_one_sample_and_equal_ones(engine: Any, time: int, num_envs: int, minibatches: int):
    env = probing.Script(np.zeros((time, num_envs), int))
    network = network_for(env)
    before = mp.to_portable(network)
    options = {"scale_rewards": False, "discounting_factor": 0.0, "num_epochs": 1, "iterations": 1}
    run = training.train(env, network, rollout_length=time, num_minibatches=minibatches, **options)
    support.assert_finite(network, run.state)
    for name, value in run.logs[0].items():
        # A mean or deviation over no episode at all is documented as NaN.
        assert np.isfinite(value) or name.endswith(("/mean", "_100/std")), name
    assert run.logs[0]["losses/actor"] == pytest.approx(0.0, abs=1e-6)
    # The critic learns; the actor has nothing to learn from: relative to itself, no sample is better.
    after = mp.to_portable(network)
    assert np.abs(after["values"] - before["values"]).max() > 0
    support.assert_trees_close(after["logits"], before["logits"].astype(np.float32), 1e-6)
