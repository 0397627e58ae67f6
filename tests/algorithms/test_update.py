"""What an update does to parameters, moments and statistics, and when it must do nothing."""

import numpy as np
import pytest
import training

import multippo as mp
from multippo.algorithms.advantages import mean_over
from multippo.algorithms.types import EpisodeState
from multippo.algorithms.update import explained_variance, fold_episodes
from multippo.testing import Clock, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def test_a_minibatch_without_a_sample_moves_nothing(engine):
    # One environment of 1-step episodes with a step for each reset, one step a minibatch: every second one is empty.
    network = TableNet([0.0] * 2)
    env = Spy(Clock(1, num_envs=1, autoreset="next_step"))
    sizes = {"iterations": 1, "rollout_length": 6, "num_minibatches": 6, "sequence_length": 1}
    run = training.train(env, network, **sizes, weight_decay=0.1)
    valid = np.stack([state.valid for state in env.states[1:]])
    assert valid.sum() == 3
    assert training.portable_moments(network, run.state)[2] == 2 * valid.sum()
    assert run.column("update/minibatches") == [2.0 * valid.sum()]


# -- sums over episodes


def test_returns_and_lengths_of_episodes_across_rollouts(engine):
    # Rewards 1, 2, 3, 4 with an end after the second, continuing an episode of reward 10 and length 5.
    put = engine.asarray
    column = lambda values, dtype: put(np.asarray(values, dtype)[:, None])  # noqa: E731
    transition = mp.Transition(*[()] * 10)._replace(
        rewards={"a": column([1, 1, 2, 3], np.float32), "b": column([0, 1, 1, 1], np.float32)},
        done=column([False, True, False, False], bool),
        valid=column([True] * 4, bool),
    )
    before = EpisodeState(put(np.asarray([10.0], np.float32)), put(np.asarray([5.0], np.float32)))
    after, ended = fold_episodes(engine.xp, before, transition)
    assert [ended[name][:, 0].tolist() for name in ("reward", "length")] == [[0, 13, 0, 0], [0, 7, 0, 0]]
    assert (float(after.reward[0]), float(after.length[0])) == (7.0, 2.0)
    # With the second step none, whatever it holds, and the third an end: 10 + 1 + 3, 5 + 2 steps.
    transition = transition._replace(
        rewards=column([1, np.nan, 3, 4], np.float32),
        done=column([False, False, True, False], bool),
        valid=column([True, False, True, True], bool),
    )
    after, ended = fold_episodes(engine.xp, before, transition)
    assert [ended[name][:, 0].tolist() for name in ("reward", "length")] == [[0, 0, 14, 0], [0, 0, 7, 0]]
    assert (float(after.reward[0]), float(after.length[0])) == (4.0, 1.0)


def test_explained_variance_by_hand(torch_engine):
    # Targets 1, 2, 3, and one that does not count: variance 2/3; errors 0, 0, 1 of variance 2/9.
    values, targets, constant = map(torch_engine.asarray, ([1.0, 2.0, 2.0, 9.0], [1.0, 2.0, 3.0, -9.0], [2.0] * 4))
    xp, counted = torch_engine.xp, torch_engine.asarray([True, True, True, False])
    mean = mean_over(xp, counted, values.dtype)
    pairs = (values, targets), (constant, targets), (values, constant)
    found = [float(explained_variance(xp, *pair, mean)) for pair in pairs]
    assert found == pytest.approx([2 / 3, 0, 0], abs=1e-6)
