"""The moving averages of the page on modules, against numbers worked out by hand, on both engines."""

import types

import numpy as np
import pytest
from pages import python_blocks
from support import actor_critic

import multippo as mp

# k = 2. Environment 0: an episode of three inputs, then one of two. Environment 1: episodes of one, two and two.
X = np.asarray([[2.0, 10.0], [4.0, 20.0], [9.0, 40.0], [5.0, 6.0], [7.0, 8.0]])
DONE = np.asarray([[False, True], [False, False], [True, True], [False, False], [False, True]])
MEANS = np.asarray(
    [
        [2.0, 10.0],
        [(2.0 + 4.0) / 2, 20.0],  # environment 1 started anew with 20
        [(4.0 + 9.0) / 2, (20.0 + 40.0) / 2],
        [5.0, 6.0],  # both started anew
        [(5.0 + 7.0) / 2, (6.0 + 8.0) / 2],
    ]
)
LAST = {"buffer": [[5.0, 7.0], [0.0, 0.0]], "seen": [2, 0]}


@pytest.fixture(scope="module")
def example():
    namespace = {}
    for block in python_blocks("docs/tutorials/own_module.md"):
        if "class MovingAverage" in block:
            exec(block, namespace)
    return types.SimpleNamespace(**namespace)


def inputs(engine):
    return engine.asarray(X[..., None]), engine.asarray(DONE)


def test_it_averages_within_the_episode(engine, precision, example):
    module = example.MovingAverage(1, 2)
    xs, done = inputs(engine)
    run = engine.jit(lambda state, xs, done: module.unroll(state, xs, done))
    for unroll in (module.unroll, run):
        out = unroll(module.initialize_state(2), xs, done)
        np.testing.assert_allclose(engine.to_numpy(out.output)[..., 0], MEANS, rtol=1e-5)
        np.testing.assert_allclose(engine.to_numpy(out.next_state["buffer"])[..., 0], LAST["buffer"], rtol=1e-5)
        np.testing.assert_array_equal(engine.to_numpy(out.next_state["seen"]), LAST["seen"])


def test_the_mean_moves_in_update_statistics_alone(engine, precision, example):
    module = example.MovingAverageWithStats(1, 2)
    xs, done = inputs(engine)
    out = module.unroll(module.initialize_state(2), xs, done)
    np.testing.assert_allclose(engine.to_numpy(out.output)[..., 0], MEANS, rtol=1e-5)  # the mean is still 0
    module.update_statistics(out.rollout_extras)
    # All ten inputs: environment 0 sums to 27, environment 1 to 84.
    np.testing.assert_allclose(engine.to_numpy(module.mean[...]), [111.0 / 10], rtol=1e-5)
    assert int(module.count[...]) == 10
    out = module.unroll(module.initialize_state(2), xs, done)
    np.testing.assert_allclose(engine.to_numpy(out.output)[..., 0], MEANS - 11.1, rtol=1e-5)


@pytest.mark.nightly_if("jax")
def test_it_trains_and_replay_repeats_the_rollout(engine, example):
    network = mp.Sequential([example.MovingAverageWithStats(2, 3), actor_critic(2)])
    logged: list[dict[str, float]] = []
    config = mp.PPOConfig(total_steps=256, num_envs=4, rollout_length=32, num_epochs=1)
    mp.train_ppo("multippo/CartPoleNoVel-v0", network, mp.TrainConfig(ppo=config), log_fn=logged.append)
    assert all(metrics["ratio/first_max_dev"] < 1e-5 for metrics in logged)
    # Two iterations of 128 steps, less those in which an environment only reset itself.
    assert 200 < int(network[0].count[...]) == int(logged[-1]["step"]) <= 256
