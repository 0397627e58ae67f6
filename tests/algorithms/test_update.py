"""What an update does to parameters, moments and statistics, and when it must do nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.algorithms.types import EpisodeState
from multippo.algorithms.update import first_true, fold_episodes
from multippo.testing import Clock, CountNet, Goal, Spy, TableNet


def test_with_a_learning_rate_of_zero_nothing_moves_and_every_ratio_stays_one(engine):
    # Episodes of 10 in rollouts of 4: the second and third rollout start from a carry of 4 and 8.
    network = CountNet()
    before = mp.to_portable(network)
    run = training.train(
        Clock(10, num_envs=2), network, learning_rate=0.0, num_epochs=3, num_minibatches=2, sequence_length=2
    )
    assert run.column("ratio/first_max_dev") == [0.0] * 3
    # Averages and largest values of all epochs and minibatches.
    for name in ("ratio/last_max_dev", "kl/approx", "ratio/clip_fraction"):
        assert run.column(name) == [0.0] * 3, name
    assert run.column("update/minibatches") == [6.0] * 3
    after = mp.to_portable(network)
    for name, value in before.items():
        np.testing.assert_array_equal(after[name], value, err_msg=name)


def test_target_kl_stops_the_epochs(torch_engine):
    # With one minibatch an epoch, the second epoch is the first to see a divergence; nothing may move from there on.
    def run(**changes: Any) -> tuple[Any, training.Run]:
        network = TableNet([0.0] * 4)
        case = {"num_minibatches": 1, "learning_rate": 0.5, "iterations": 1}
        return network, training.train(Clock(3, num_envs=4), network, **{**case, **changes})

    stopped_network, stopped = run(num_epochs=5, target_kl=1e-6)
    single_network, single = run(num_epochs=1)
    assert stopped.column("update/minibatches") == [1.0]
    weights, expected = mp.to_portable(stopped_network), mp.to_portable(single_network)
    assert np.abs(expected["logits"]).max() > 0.1
    support.assert_trees_close(weights, expected, 1e-6)
    first, second, count = training.portable_moments(stopped_network, stopped.state)
    expected_first, expected_second, expected_count = training.portable_moments(single_network, single.state)
    support.assert_trees_close(first, expected_first, 1e-6)
    support.assert_trees_close(second, expected_second, 1e-6)
    assert count == expected_count == 1


@pytest.mark.nightly_if("jax")
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


class Recorder(mp.StatefulModule):
    """Counts its inputs in ``update_statistics``, which takes one argument."""

    def __init__(self) -> None:
        self.count = mp.Variable(np.zeros((), np.int32))
        self.total = mp.Variable(np.zeros(()))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, x, rollout_extras=x)

    def update_statistics(self, rollout_extras: Any) -> None:
        # Whatever is left out, the entries come with two leading axes.
        assert rollout_extras.ndim == 3
        self.count[...] = self.count[...] + rollout_extras.shape[0] * rollout_extras.shape[1]
        self.total[...] = self.total[...] + self.xp.sum(rollout_extras)


def statistics_net() -> Any:
    rngs = mp.Rngs(0)
    action = mp.Sequential([mp.Dense(1, 2, rngs), mp.NormalTanhSampler(rngs)])
    return mp.Sequential([mp.Normalizer(1), Recorder(), mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))])


class Offset(Goal):
    """Goals of scale 1000 and offset 5."""

    def _observe(self) -> np.ndarray:
        return 1000 * super()._observe() + 5


@pytest.mark.nightly_if("jax")
def test_statistics_rest_on_every_valid_step_once(engine):
    env, network = Spy(Offset(4, length=3, autoreset="next_step")), statistics_net()
    run = training.train(env, network, rollout_length=6, num_epochs=3, num_minibatches=4, iterations=3)
    valid = np.stack([state.valid for state in env.states[1:]])
    obs = np.stack([state.obs for state in env.states[:-1]])[valid]
    # 18 steps of 4 environments; every fourth is none: 4 are in 18.
    assert len(obs) == env.real_steps == 56
    normalizer, recorder = network[0], network[1]
    assert normalizer.count == len(obs)
    np.testing.assert_allclose(support.to_numpy(normalizer.mean[...]), obs.mean(0), rtol=1e-5)
    np.testing.assert_allclose(support.to_numpy(normalizer.variance), obs.var(0), rtol=1e-5)
    # What the module behind the normaliser saw: its outputs, at the time; of one-argument form, called each rollout.
    assert int(support.to_numpy(recorder.count[...])) == len(obs)
    # Statistics stand still between rollout and replay.
    assert max(run.column("ratio/first_max_dev")) <= 1e-5
    assert run.logs[-1]["step"] == run.result.total_steps == len(obs)
    assert set(run.column("rollout/episode_length/mean")) == {3.0}


def test_clipping_and_weight_decay_by_hand(engine):
    # g = (3, 4), norm 5, clipped to 1: (0.6, 0.8). Adam's first ratio is g / (|g| + eps), here 1 for both.
    # p' = p - 0.1 (1 + 0.01 p): 1 -> 0.899, -2 -> -2.098.
    network = TableNet([1.0, -2.0], num_actions=1)
    parts = engine.split(network)
    optimizer = engine.optimizer(
        mp.backends.api.OptimizerConfig(adam_epsilon=1e-12, weight_decay=0.01, gradient_clipping=1.0)
    )
    gradient = {1: np.asarray([3.0, 4.0], np.float32), 2: np.zeros((2, 1), np.float32)}
    grads = engine.tree_map(lambda p: engine.asarray(gradient[p.ndim]), parts.params)
    state = optimizer.init(parts.params)
    rate, no = engine.zeros(()) + 0.1, engine.asarray(np.asarray(False))
    params, state, norm = optimizer.step(parts.params, grads, state, rate, no)
    assert float(norm) == pytest.approx(5.0)
    values = {p.ndim: np.array(support.to_numpy(p)) for _, p in engine.named_params(params)}
    np.testing.assert_allclose(values[1], [0.899, -2.098], rtol=1e-5)
    # A step to be skipped, or a gradient that is not finite, moves nothing.
    yes, nan = engine.asarray(np.asarray(True)), engine.tree_map(lambda p: p * np.nan, engine.stop_gradient(params))
    for grads, skip in ((engine.tree_map(engine.xp.ones_like, nan), yes), (nan, no)):
        params, state, _ = optimizer.step(params, grads, state, rate, skip)
        for _, leaf in engine.named_params(params):
            np.testing.assert_array_equal(support.to_numpy(leaf), values[leaf.ndim])
    first, second, count = optimizer.export_state(state)
    moments = sorted(np.abs(first[key]).max() for key in first), sorted(second[key].max() for key in second)
    # (1 - beta1) 0.8 and (1 - beta2) 0.64.
    np.testing.assert_allclose(moments, [[0.0, 0.08], [0.0, 0.00064]], rtol=1e-4, atol=1e-12)
    assert count == 1


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
