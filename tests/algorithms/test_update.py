"""What an update does to parameters, moments and statistics, and when it must do nothing."""

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.algorithms.types import EpisodeState
from multippo.algorithms.update import first_true, fold_episodes
from multippo.testing import Clock, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def test_a_minibatch_without_a_sample_moves_nothing(engine):
    # One environment of 1-step episodes with a step for each reset, one step a minibatch: every second one is empty.
    network = TableNet([0.0] * 2)
    env = Spy(Clock(1, num_envs=1, autoreset="next_step"))
    run = training.train(
        env,
        network,
        iterations=1,
        rollout_length=6,
        num_epochs=2,
        num_minibatches=6,
        sequence_length=1,
        weight_decay=0.1,
    )
    valid = np.stack([state.valid for state in env.states[1:]])
    assert valid.sum() == 3
    assert training.portable_moments(network, run.state)[2] == 2 * valid.sum()
    assert run.column("update/minibatches") == [2.0 * valid.sum()]


def test_an_optimiser_can_go_back(engine):
    network = TableNet([1.0, -2.0], num_actions=1)
    parts = engine.split(network)
    optimizer = engine.optimizer(mp.backends.api.OptimizerConfig())
    params, state = parts.params, optimizer.init(parts.params)
    yes, no = (engine.asarray(np.asarray(flag)) for flag in (True, False))
    ones = engine.tree_map(engine.xp.ones_like, params)
    kept_weights = []
    for _ in range(2):  # before there are any moments, and after
        kept = optimizer.keep(params, state)
        before = engine.snapshot(params), optimizer.export_state(state)
        grads = engine.tree_map(engine.xp.ones_like, ones)
        params, state, _ = optimizer.step(params, grads, state, engine.zeros(()) + 0.1, no)
        params, state = optimizer.restore(kept, params, state, yes)
        support.assert_trees_close(dict(engine.named_params(params)), dict(engine.named_params(before[0])), 0.0)
        assert optimizer.export_state(state)[2] == before[1][2]
        for key, moment in optimizer.export_state(state)[0].items():
            np.testing.assert_array_equal(moment, before[1][0][key])
        kept = optimizer.keep(params, state)
        grads = engine.tree_map(engine.xp.ones_like, ones)
        params, state, _ = optimizer.step(params, grads, state, engine.zeros(()) + 0.1, no)
        params, state = optimizer.restore(kept, params, state, no)
        kept_weights.append(optimizer.export_state(state)[2])
    assert kept_weights == [1, 2]


# -- sums over episodes


def test_returns_and_lengths_of_episodes_across_rollouts(engine):
    # Rewards 1, 2, 3, 4 with an end after the second, continuing an episode of reward 10 and length 5.
    put = engine.asarray
    column = lambda values, dtype: put(np.asarray(values, dtype)[:, None])  # noqa: E731
    transition = mp.Transition(
        obs=(),
        network_output=(),
        rewards=column([1, 2, 3, 4], np.float32),
        terminated=(),
        truncated=(),
        done=column([False, True, False, False], bool),
        valid=column([True] * 4, bool),
        metrics={},
        rollout_extras=(),
        bootstrap_values=(),
    )
    before = EpisodeState(put(np.asarray([10.0], np.float32)), put(np.asarray([5.0], np.float32)))
    after, sums = fold_episodes(engine.xp, before, transition)
    assert {name: float(value) for name, value in sums.items()} == {"count": 1.0, "reward": 13.0, "length": 7.0}
    assert (float(after.reward[0]), float(after.length[0])) == (7.0, 2.0)
    # With the second step none, whatever it holds, and the third an end: 10 + 1 + 3, 5 + 2 steps.
    transition = transition._replace(
        rewards=column([1, np.nan, 3, 4], np.float32),
        done=column([False, False, True, False], bool),
        valid=column([True, False, True, True], bool),
    )
    after, sums = fold_episodes(engine.xp, before, transition)
    assert {name: float(value) for name, value in sums.items()} == {"count": 1.0, "reward": 14.0, "length": 7.0}
    assert (float(after.reward[0]), float(after.length[0])) == (4.0, 1.0)


@pytest.mark.parametrize(("flags", "expected"), [([False, True, True], 1), ([False] * 3, -1), ([True], 0)])
def test_first_true(engine, flags, expected):
    assert int(first_true(engine.xp, engine.asarray(np.asarray(flags)))) == expected
