"""Extreme standard deviations and likelihood ratios give numbers; what is not finite reaches no weight.

Seen in leggedrobotics/rsl_rl#33, #124, #190, unitreerobotics/unitree_rl_mjlab#8, radixark/miles#1363,
OpenRLHF/OpenRLHF#1314.
"""

import math
from typing import Any

import numpy as np
import pytest
import support
import training
from loss_samples import evaluate

import multippo as mp
from multippo.testing import Goal

SAMPLERS = ("NormalTanhSampler", "NormalSampler")


class Raw(mp.StatefulModule):
    """Yields its parameters ``[1, 2 A]`` for every environment: means, and raw standard deviations."""

    def __init__(self, mean: float, raw_std: float) -> None:
        self.row = mp.Param(np.array([[mean, -mean, raw_std, raw_std]]))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, self.xp.broadcast_to(self.row[...], (x.shape[0], 4)))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("raw_std", [-200.0, -1.0, 200.0])
@pytest.mark.parametrize("mean", [0.3, 50.0])
@pytest.mark.nightly_if("jax")
def test_sampling_likelihood_entropy_and_gradients(engine: Any, sampler: str, raw_std: float, mean: float):
    network = mp.Sequential([Raw(mean, raw_std), getattr(mp, sampler)(mp.Rngs(0), 0.01)])
    x = engine.zeros((3, 1))
    state = network.initialize_state(3)
    step = support.compiled(network, lambda net, s, x, extras: tuple(net(s, x, extras)))
    out = mp.StatefulModuleOutput(*step(state, x, None))
    again = mp.StatefulModuleOutput(*step(state, x, out.rollout_extras))
    for found in (out, again):
        for name, leaf in support.named_leaves(support.to_numpy((found.output, found.regularization_loss))):
            assert np.isfinite(leaf).all(), name

    def loss(net: Any) -> Any:
        replayed = net(state, x, out.rollout_extras)
        return net.xp.sum(replayed.output["log_likelihood"]) + net.xp.sum(replayed.regularization_loss)

    for name, grad in support.gradients(network, loss).items():
        assert np.isfinite(grad).all(), name


@pytest.mark.parametrize("difference", [100.0, -100.0, 1e4])
@pytest.mark.parametrize("advantage", [0.0, 1.0, -1.0])
def test_a_likelihood_far_from_the_stored_one(engine: Any, difference: float, advantage: float):
    samples = {"old": [0.0, 0.0], "values": [0.5, 0.5], "returns": [1.0, 1.0]}
    for normalize in (False, True):
        config = mp.PPOConfig(normalize_advantages=normalize)
        loss, metrics, grads, _ = evaluate(engine, [difference, 0.0], [advantage, 0.3], config=config, **samples)
        assert math.isfinite(loss)
        for name, value in metrics.items():
            assert math.isfinite(value), name
        for name, grad in grads.items():
            assert np.isfinite(grad).all(), name


def test_policies_that_sharpen_for_long_stay_finite(torch_engine: Any):
    # Much too large a rate on a policy that only has to stand still at the goal: its deviation falls to the least.
    network = mp.make_mlp_actor_critic(1, 1, (8,), (8,), mp.Rngs(0), min_std=1e-3)
    run = training.train(
        Goal(8), network, iterations=20, learning_rate=0.3, num_epochs=8, lr_schedule="constant", gradient_clipping=None
    )
    assert len(run.logs) == 20
    support.assert_finite(network)
