"""Rewards divided by the running standard deviation of the discounted return, against a plain loop."""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.algorithms.reward_scaling import clip_rewards, divisors, initial_scale, scale_rewards
from multippo.testing import Clock, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

DISCOUNT = 0.9


def scale(engine: Any, scales: Any, rewards: Any, done: Any, valid: Any, broken: Any = None) -> tuple[Any, Any]:
    transition = mp.Transition(*[()] * 10)._replace(
        rewards=engine.tree_map(engine.asarray, rewards), done=engine.asarray(done), valid=engine.asarray(valid)
    )
    if broken is not None:
        transition = transition._replace(broken=engine.asarray(broken.astype(np.int32)))
    return scale_rewards(engine.xp, scales, transition, DISCOUNT)


def fresh(engine: Any, batch: int, rewards: Any) -> Any:
    return initial_scale(engine.xp, engine.zeros((batch,)), rewards)


def test_by_hand(engine):
    # G = 1, 2 + 0.9 * 1 = 2.9, then after the end 3: mean 2.3, squared deviations 1.69 + 0.36 + 0.49 = 2.54.
    rewards = np.asarray([[1.0], [2.0], [3.0]], np.float32)
    done = np.asarray([[False], [True], [False]])
    scales, scaled = scale(engine, fresh(engine, 1, rewards), rewards, done, np.ones((3, 1), bool))
    assert (float(scales.count), float(scales.discounted[0])) == (3.0, 3.0)
    assert (float(scales.mean), float(scales.m2)) == pytest.approx((2.3, 2.54), rel=1e-5)
    np.testing.assert_allclose(support.to_numpy(scaled), rewards / np.sqrt(2.54 / 3), rtol=1e-5)


def test_several_rollouts_against_a_loop(engine):
    rng = np.random.default_rng(0)
    time, batch, rollouts = 7, 4, 3
    rewards = rng.normal(2.0, 3.0, size=(rollouts * time, batch)).astype(np.float32)
    ends = rng.uniform(size=rewards.shape) < 0.25
    # The step after an end is none, and some that end an episode are broken; what they hold does not matter.
    valid = np.ones_like(ends)
    for t in range(1, len(ends)):
        valid[t] = ~(ends[t - 1] & valid[t - 1])
        ends[t] &= valid[t]
    broken = ends & (rng.uniform(size=rewards.shape) < 0.3)
    counted = valid & ~broken
    sums, seen = np.zeros(batch), []
    for t in range(len(rewards)):
        sums = np.where(counted[t], DISCOUNT * sums + rewards[t], sums)
        seen.append(sums[counted[t]])
        sums = np.where(ends[t], 0.0, sums)
    scales = fresh(engine, batch, rewards[:1])
    spoilt = np.where(counted, rewards, np.where(broken, 0.0, 1e6)).astype(np.float32)
    for i in range(rollouts):
        part = slice(i * time, (i + 1) * time)
        scales, scaled = scale(engine, scales, spoilt[part], ends[part], valid[part], broken[part])
        known = np.concatenate(seen[: (i + 1) * time])
        assert float(scales.count) == len(known)
        assert (float(scales.mean), float(scales.m2) / len(known)) == pytest.approx(
            (known.mean(), known.var()), rel=1e-4
        )
        expected = (rewards[part] / known.std())[counted[part]]
        np.testing.assert_allclose(support.to_numpy(scaled)[counted[part]], expected, rtol=1e-4)
    np.testing.assert_allclose(support.to_numpy(scales.discounted), sums, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_nearly_equal_returns_are_measured_by_their_size(engine, unit):
    # Episodes of one step with rewards 2 and 2.002: mean 2.001, deviation 0.001. Divided by the deviation, a return
    # would be 2001; the divisor is 0.2001. With one reward alone, whose deviation is 0, it is a tenth of it.
    for values, divisor in (([[2.0], [2.002]], 0.2001), ([[2.0]], 0.2), ([[-2.0]], 0.2)):
        rewards = np.asarray(values, np.float32) * np.float32(unit)
        always = np.ones(rewards.shape, bool)
        _, scaled = scale(engine, fresh(engine, 1, rewards), rewards, always, always)
        np.testing.assert_allclose(support.to_numpy(scaled), rewards / (divisor * unit), rtol=1e-4)
        assert np.abs(support.to_numpy(scaled)).max() < 10.1


def test_clipping_by_hand(engine):
    # Of five rewards that count three are further from 0 than 2, infinity among them. Those that are not finite stay
    # what they are, for the run to notice.
    rewards = np.asarray([[3.0, -2.5], [2.0, 7.0], [np.nan, np.inf]], np.float32)
    valid = np.asarray([[True, True], [True, False], [True, True]])
    transition = mp.Transition(*[()] * 10)._replace(rewards=engine.asarray(rewards), valid=engine.asarray(valid))
    clipped, share = clip_rewards(engine.xp, transition, 2.0)
    np.testing.assert_array_equal(support.to_numpy(clipped), [[2.0, -2.0], [2.0, 2.0], [np.nan, np.inf]])
    assert float(share) == pytest.approx(3 / 5)


def test_rewards_are_clipped_for_the_loss_alone(torch_engine):
    # Rewards 1, not scaled, clipped to 0.5, gamma 0: values start at 0, so the critic's first loss is 0.25.
    fields = {"scale_rewards": False, "discounting_factor": 0.0, "num_epochs": 1, "num_minibatches": 1}
    for reach, loss, share in ((0.5, 0.25, 1.0), (2.0, 1.0, 0.0)):
        run = training.train(Clock(2), TableNet([0.0] * 3), iterations=2, reward_clip=reach, **fields)
        assert run.column("losses/critic")[0] == pytest.approx(loss)
        assert run.column("reward/clip_fraction") == [share] * 2
        assert run.column("rollout/episode_reward/mean") == [2.0] * 2
    run = training.train(Clock(2), TableNet([0.0] * 3), iterations=1)
    assert not run.column("reward/clip_fraction")


def test_what_rewards_are_divided_by_is_logged(torch_engine):
    # Returns of the two steps of each episode, with gamma 0: rewards of 1 alone, of which a tenth of the mean is left.
    run = training.train(Clock(2), TableNet([0.0] * 3), iterations=2, discounting_factor=0.0)
    np.testing.assert_allclose(run.column("reward/scale"), 0.1, rtol=1e-6)
    assert not training.train(Clock(2), TableNet([0.0] * 3), iterations=1, scale_rewards=False).column("reward/scale")


def test_each_reward_has_a_divisor_of_its_own_with_its_name(torch_engine):
    ones, always = np.ones((2, 1), np.float32), np.ones((2, 1), bool)
    rewards = {"b": 3 * ones, "a": {"c": ones}}
    scales, scaled = scale(torch_engine, fresh(torch_engine, 1, rewards), rewards, always, always)
    found = {name: float(value) for name, value in divisors(torch_engine.xp, scales, rewards).items()}
    assert found == pytest.approx({"reward/scale/a.c": 0.1, "reward/scale/b": 0.3})
    np.testing.assert_allclose(support.to_numpy(scaled["b"]), 10.0, rtol=1e-5)


def test_a_reward_whose_square_is_no_number_leaves_the_moments_alone(engine):
    done, valid = np.zeros((3, 1), bool), np.ones((3, 1), bool)
    scales, _ = scale(engine, fresh(engine, 1, done), np.asarray([[1.0], [2.0], [3.0]], np.float32), done | True, valid)
    huge = np.asarray([[1.0], [3e19], [1.0]], np.float32)
    after, scaled = scale(engine, scales, huge, done | True, valid)
    for name in ("count", "mean", "m2"):
        assert float(getattr(after, name)) == float(getattr(scales, name))
    # Mean 2, variance 2/3: the others keep their size, and the huge one stays huge.
    np.testing.assert_allclose(support.to_numpy(scaled), huge / np.sqrt(2 / 3), rtol=1e-5)
    again, _ = scale(engine, after, np.asarray([[4.0]], np.float32), done[:1] | True, valid[:1])
    assert float(again.mean) == pytest.approx(2.5)
