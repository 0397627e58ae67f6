"""Options of a run: each does what it says, to the bit where it says that nothing moves, on both engines."""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalClock, Goal, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

# -- the stop at a divergence


def test_after_the_divergence_that_is_too_much_nothing_moves(engine):
    # With one minibatch an epoch the orders of the first epochs are the same however many follow. The first epoch sees
    # no divergence; from some epoch on it is too much, and that epoch's own step is not taken.
    target, found = 0.015, {}
    for name, fields in (("stopped", {"num_epochs": 8, "target_kl": target}), ("short", {"num_epochs": 3})):
        network = TableNet([0.0] * 4)
        case: dict[str, Any] = {"num_minibatches": 1, "learning_rate": 0.1, "iterations": 1, **fields}
        run = training.train(Clock(3, num_envs=4), network, **case)
        found[name] = mp.to_portable(network), *training.portable_moments(network, run.state), run
    weights, first, second, count, stopped = found["stopped"]
    assert stopped.column("update/minibatches") == [3.0]
    assert stopped.column("kl/stop")[0] > target > stopped.column("kl/approx")[0] > 0
    expected_weights, expected_first, expected_second, expected_count, short = found["short"]
    support.assert_trees_close(weights, expected_weights, 0.0)
    support.assert_trees_close(first, expected_first, 0.0)
    support.assert_trees_close(second, expected_second, 0.0)
    assert count == expected_count == 3
    # What is logged is of the minibatches used, not of the one that stopped.
    assert stopped.column("kl/approx") == pytest.approx(short.column("kl/approx"), rel=1e-5)
    assert stopped.column("losses/total") == pytest.approx(short.column("losses/total"), rel=1e-5)
    assert not short.column("kl/stop")


# -- the learning rate that follows the divergence


def rule(rate: float, kl: float, desired: float) -> float:
    """In single precision, as the engines reckon."""
    rate32 = np.float32(rate)
    if kl > 2 * desired:
        return float(np.maximum(rate32 / np.float32(1.5), np.float32(1e-5)))
    return float(np.minimum(rate32 * np.float32(1.5), np.float32(1e-2))) if 0 < kl < desired / 2 else float(rate32)


def test_a_stop_lowers_the_rate_of_the_next_iteration(engine):
    # One step is taken, at a divergence of 0; the minibatch after it stops the epochs. The mean is over both.
    fields: dict[str, Any] = {"num_minibatches": 1, "num_epochs": 8, "target_kl": 1e-9, "desired_kl": 1e-7}
    network = TableNet([0.0] * 4)
    run = training.train(
        Clock(3, num_envs=4), network, iterations=4, lr_schedule="adaptive_kl", learning_rate=0.01, **fields
    )
    assert run.column("update/minibatches") == [1.0] * 4
    rates, stops = run.column("learning_rate"), run.column("kl/stop")
    expected = [rule(rate, stop / 2, 1e-7) for rate, stop in zip(rates[:-1], stops[:-1], strict=True)]
    np.testing.assert_allclose(rates[1:], expected, rtol=1e-6)
    assert rates[-1] < rates[0]


def test_the_rate_is_carried_from_iteration_to_iteration(engine):
    # On JAX five iterations run inside one compiled call, the sixth in a second call that is not full.
    def run(desired: float) -> training.Run:
        config = {"log_every_steps": 5 * 8}
        fields: dict[str, Any] = {"lr_schedule": "adaptive_kl", "desired_kl": desired, "learning_rate": 1e-3}
        env = mp.make_env(FunctionalClock(3), num_envs=2)
        return training.train(env, TableNet([0.0] * 4), iterations=6, config=config, **fields)

    for desired in (1e-7, 1.0) if engine.name == "torch" else (1e-7,):
        done = run(desired)
        rates, kls = done.column("learning_rate"), done.column("kl/approx")
        assert rates[0] == pytest.approx(1e-3)
        for before, kl, after in zip(rates, kls, [*rates[1:], done.state.learning_rate], strict=True):
            assert after == pytest.approx(rule(before, kl, desired), rel=1e-6)
        assert (rates[-1] < rates[0]) if desired < 1 else (rates[-1] > rates[0])


def test_a_warm_up_holds_the_rate_that_adapts(torch_engine):
    fields: dict[str, Any] = {"lr_schedule": "adaptive_kl", "desired_kl": 1.0, "learning_rate": 4e-3}
    run = training.train(Clock(3, num_envs=2), TableNet([0.0] * 4), iterations=5, learning_rate_warmup=2, **fields)
    # A third, two thirds, all; only then the small divergence speeds it up, to the largest at last.
    np.testing.assert_allclose(run.column("learning_rate"), [4e-3 / 3, 8e-3 / 3, 4e-3, 6e-3, 9e-3], rtol=1e-6)


# -- the entropy


def continuous(weight: float) -> Any:
    rngs = mp.Rngs(0)
    action = mp.Sequential([mp.Dense(1, 2, rngs), mp.NormalTanhSampler(rngs, weight, min_std=0.1)])
    network = mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))
    support.fill_randomly(network, scale=0.3)
    return network


def test_a_weight_of_all_samplers_is_that_of_each(engine, float64):
    # The squashed Gaussian's entropy is an estimate: the same noise must have been drawn both ways.
    found = {}
    cases: dict[str, Any] = {"own": (0.05, {}), "all": (0.0, {"entropy_weight": 0.05})}
    for kind, (weight, fields) in cases.items():
        network = continuous(weight)
        run = training.train(Goal(num_envs=4), network, iterations=2, rollout_length=4, **fields)
        found[kind] = mp.to_portable(network), run
    support.assert_trees_close(found["all"][0], found["own"][0], 1e-12)
    own, every = found["own"][1], found["all"][1]
    for column in ("losses/total", "entropy/mean", "losses/actor"):
        np.testing.assert_allclose(every.column(column), own.column(column), rtol=1e-10)
    assert np.abs(every.column("losses/entropy")).min() > 1e-3
    np.testing.assert_allclose(every.column("losses/entropy"), own.column("losses/regularization"), rtol=1e-10)
    assert every.column("losses/regularization") == [0.0] * 2
    assert every.column("entropy/weight") == [0.05] * 2
    assert not own.column("entropy/weight")


def test_the_weight_of_the_entropy_falls_in_a_line(engine):
    fields: dict[str, Any] = {"entropy_weight": 0.4, "entropy_schedule": "linear"}
    env: Any = mp.make_env(FunctionalClock(3), num_envs=2)
    run = training.train(env, TableNet([0.0] * 4), iterations=4, config={"log_every_steps": 16}, **fields)
    np.testing.assert_allclose(run.column("entropy/weight"), [0.4, 0.3, 0.2, 0.1], rtol=1e-6)
    charged = -np.asarray(run.column("entropy/weight")) * run.column("entropy/mean")
    np.testing.assert_allclose(run.column("losses/entropy"), charged, rtol=1e-5)


# -- advantages


def test_with_nothing_learnt_targets_anew_are_the_old_ones(engine):
    # A memory, episodes of 3 and 4 steps of both kinds of end, steps that are none, one number per epoch to compare.
    sizes = {"iterations": 2, "rollout_length": 8, "num_epochs": 3, "sequence_length": 4}
    for end in ("terminated", "truncated"):
        found = []
        for anew in (False, True):
            env = Clock([3, 4], end, 2, autoreset="next_step")
            run = training.train(env, CountNet(), **sizes, learning_rate=0.0, recompute_advantages=anew)
            found.append([run.column(name) for name in ("losses/actor", "losses/critic", "losses/total")])
        np.testing.assert_allclose(found[0], found[1], rtol=1e-5, atol=1e-6)
        assert min(found[0][1]) > 0.1
        if engine.name == "jax":
            break


# -- memory for time


def test_activations_are_computed_again_piece_by_piece(engine):
    lengths: list[int] = []

    class Watched(mp.LSTM):
        def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            lengths.append(xs.shape[0])
            return super().unroll(state, xs, done, rollout_extras)

    runs = {}
    for remat_steps in (None, 3):
        rngs = mp.Rngs(0)
        action = mp.Sequential([Watched(1, 4, rngs), mp.Dense(4, 2, rngs), mp.NormalTanhSampler(rngs, 0.01)])
        network = mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))
        lengths.clear()
        runs[remat_steps] = training.train(Goal(num_envs=4), network, rollout_length=8, remat_steps=remat_steps)
    np.testing.assert_allclose(runs[3].column("losses/total"), runs[None].column("losses/total"), rtol=1e-4)
    if engine.name == "torch":  # two epochs of two minibatches in each of three iterations, nothing of them recorded
        assert [length for length in lengths if length < 8] == [3, 3, 2, 2, 3, 3] * 12
