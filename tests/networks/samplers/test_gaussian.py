"""The Gaussian samplers: densities against scipy, divergences against torch, extremes, both ways to a std."""

import numpy as np
import pytest
import torch
from sampling import assert_finite, evaluate, kl, sample, slopes
from scipy import stats
from support import gradients, to_numpy, total

import multippo as mp

RNG = np.random.default_rng(0)


def std_of(s, min_std=1e-3, std_scale=1.0):
    return std_scale * (np.log1p(np.exp(s)) + min_std)


def independent(size=2, log_std=None, **options):
    """State-independent, ``log_std`` written into it."""
    sampler = mp.NormalSampler(mp.Rngs(0), action_shape=size, state_dependent_std=False, **options)
    if log_std is not None:
        mp.load_portable(sampler, {**mp.to_portable(sampler), "log_std": np.broadcast_to(log_std, (size,))})
    return sampler


@pytest.mark.usefixtures("float64")
def test_the_squashed_density_is_the_change_of_variables(engine):
    sampler = mp.NormalTanhSampler(mp.Rngs(0), min_std=0.05, std_scale=0.7)
    mean, s, raw = RNG.normal(size=(3, 6, 2))
    out = evaluate(sampler, np.concatenate([mean, s], -1), raw)
    action = np.tanh(raw)
    # p(a) = N(atanh a) |d atanh / d a|, and d atanh / d a = 1 / (1 - a**2), summed over the independent dimensions.
    expected = stats.norm.logpdf(np.arctanh(action), mean, std_of(s, 0.05, 0.7)) - np.log(1 - action**2)
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), expected.sum(-1), rtol=1e-10)
    np.testing.assert_allclose(to_numpy(out.output["action"]), action, rtol=1e-12)


@pytest.mark.usefixtures("float64")
def test_the_plain_density_and_entropy_are_scipys(engine):
    sampler = mp.NormalSampler(mp.Rngs(0), min_std=0.05, std_scale=0.7)
    grid = np.stack(np.meshgrid([-3.0, 0.1, 2.0], [-2.0, 0.3, 4.0], [-5.0, 0.0, 1.7]), -1).reshape(-1, 3)
    mean, s, raw = grid.T[:, :, None]
    out = evaluate(sampler, np.concatenate([mean, s], -1), raw)
    given = stats.norm(mean, std_of(s, 0.05, 0.7))
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), given.logpdf(raw)[:, 0], rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), given.entropy()[:, 0], rtol=1e-12)
    np.testing.assert_array_equal(to_numpy(out.output["action"]), raw)


@pytest.mark.usefixtures("float64")
def test_the_state_independent_density_is_scipys(engine):
    sampler = independent(2, [-1.2, 0.4], std_scale=0.7)
    mean, raw = RNG.normal(size=(2, 6, 2))
    out = evaluate(sampler, mean, raw)
    given = stats.norm(mean, 0.7 * np.exp([-1.2, 0.4]))
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), given.logpdf(raw).sum(-1), rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), given.entropy().sum(-1), rtol=1e-12)


@pytest.mark.parametrize("kind", ["tanh", "plain", "independent"])
def test_samples_have_their_mean_and_std(torch_engine, kind):
    n, std = 20_000, std_of(-0.5)
    if kind == "independent":
        sampler, x = independent(1, np.log(std)), np.full((n, 1), 0.3, np.float32)
    else:
        sampler = {"tanh": mp.NormalTanhSampler, "plain": mp.NormalSampler}[kind](mp.Rngs(0))
        x = np.tile(np.asarray([0.3, -0.5], np.float32), (n, 1))
    out = sample(sampler, x)
    raw = to_numpy(out.rollout_extras)[:, 0]
    assert abs(raw.mean() - 0.3) < 4 * std / n**0.5
    assert abs(raw.std() / std - 1) < 4 / (2 * n) ** 0.5
    expected = np.tanh(raw) if kind == "tanh" else raw
    np.testing.assert_allclose(to_numpy(out.output["action"])[:, 0], expected, rtol=1e-5)


@pytest.mark.usefixtures("float64")
def test_divergences_are_torchs(engine):
    normal = torch.distributions.Normal
    old, new = RNG.normal(size=(2, 7, 6))
    as_normal = lambda x: normal(*map(torch.as_tensor, (x[:, :3], std_of(x[:, 3:]))))  # noqa: E731
    expected = torch.distributions.kl_divergence(as_normal(old), as_normal(new)).sum(-1).numpy()
    for kind in (mp.NormalSampler, mp.NormalTanhSampler):  # what both are squashed by does not matter
        np.testing.assert_allclose(kl(kind(mp.Rngs(0)), old, new), expected, rtol=1e-10)
    # State-independent: before and after a change of log_std, each with its own mean.
    parts = [independent(2, log_std) for log_std in ([-1.0, 0.2], [-0.7, 0.1])]
    means = [engine.asarray(x[:, :2]) for x in (old, new)]
    before, after = (sampler.distribution(mean) for sampler, mean in zip(parts, means, strict=True))
    stds = (np.exp([-1.0, 0.2]), np.exp([-0.7, 0.1]))
    pair = [normal(torch.as_tensor(x[:, :2]), torch.as_tensor(s)) for x, s in zip((old, new), stds, strict=True)]
    expected = torch.distributions.kl_divergence(*pair).sum(-1).numpy()
    np.testing.assert_allclose(to_numpy(parts[0].kl_divergence(before, after)), expected, rtol=1e-10)


@pytest.mark.parametrize("min_std", [1e-3, 0.0])
@pytest.mark.parametrize("kind", [mp.NormalTanhSampler, mp.NormalSampler])
def test_extremes_stay_finite_with_their_gradients(engine, precision, kind, min_std):
    sampler = kind(mp.Rngs(0), 0.1, min_std=min_std)
    x = np.asarray([[m, s] for m in (-1e4, 0.0, 1e3) for s in (-200.0, -1.0, 0.0, 200.0)], precision)
    # The samples drawn, and others that would be very unlikely.
    found = slopes(sampler, x, lambda raw: raw + 1)
    assert_finite(found)
    if kind is mp.NormalTanhSampler:
        assert np.abs(found["action"]).max() <= 1.0


def test_extreme_log_stds_stay_finite_and_can_come_back(engine, precision):
    log_std = np.asarray([-200.0, -1.0, 200.0], precision)
    sampler = independent(3, log_std, entropy_weight=0.1)
    x = np.asarray([[-1e3, 0.0, 1e3], [1e3, 5.0, -1e3], [0.0, 0.0, 0.0]], precision)
    assert_finite(slopes(sampler, x, lambda raw: raw + 1))
    std = to_numpy(sampler.distribution(engine.asarray(x)).std)
    np.testing.assert_allclose(std[0], np.exp(np.clip(log_std, np.log(1e-3), 10.0)), rtol=1e-4)
    state, given, noise = sampler.initialize_state(3), engine.asarray(x), engine.asarray(std)

    def evaluated(sampler, raw):
        return sampler(state, given, raw)

    def of_all(sampler):
        outs = [evaluated(sampler, given + noise), evaluated(sampler, given + noise + 1)]
        return total(sampler.xp, [(out.output, out.regularization_loss) for out in outs])

    assert np.isfinite(gradients(sampler, of_all)["log_std"]).all()
    bonus = gradients(sampler, lambda s: s.xp.sum(evaluated(s, given).regularization_loss))
    # Three rows, each with d(-w entropy) / d log_std = -w, w = 0.1; outside the bounds too.
    np.testing.assert_allclose(bonus["log_std"], [-0.3] * 3, rtol=1e-5)


def test_the_std_parameter_learns_and_the_first_one_is_given(torch_engine):
    sampler = independent(3, initial_std=0.4)
    np.testing.assert_allclose(mp.to_portable(sampler)["log_std"], np.log(0.4), rtol=1e-6)
    assert not any("log_std" in name for name in mp.to_portable(mp.NormalSampler(mp.Rngs(0))))
    leaf = torch_engine.leaves(sampler)["log_std"]
    assert leaf.trained


@pytest.mark.usefixtures("float64")
def test_the_entropy_estimate_depends_on_the_noise_alone(engine):
    sampler, n = mp.NormalTanhSampler(mp.Rngs(0), 1.0), 100
    x = np.tile([0.4, -0.3, 0.2, 0.5], (n, 1))
    entropy = to_numpy(sample(sampler, x).output["entropy"])
    # Not on which sample is evaluated: replay of another sample repeats it.
    again = evaluate(sampler, x, np.zeros((n, 2)))
    np.testing.assert_allclose(to_numpy(again.output["entropy"]), entropy, atol=1e-12)
    np.testing.assert_allclose(to_numpy(again.regularization_loss), -entropy, atol=1e-12)
