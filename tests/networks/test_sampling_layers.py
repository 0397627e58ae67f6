"""Samplers: densities against scipy, samples against their distribution, replay, extremes, evaluation mode."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import special, stats
from support import compiled, to_numpy, total

import multippo as mp

RNG = np.random.default_rng(0)


def evaluate(sampler, x, raw=None):
    """One call from a fresh carry: samples, or evaluates stored samples."""
    x, raw = (None if array is None else sampler.engine.asarray(np.asarray(array)) for array in (x, raw))
    call = compiled(sampler, lambda sampler, x, raw: sampler(sampler.initialize_state(x.shape[0]), x, raw))
    return call(x, raw)


def sample(sampler, x):
    return evaluate(sampler, x)


def std_of(s, min_std=1e-3, std_scale=1.0):
    return std_scale * (np.log1p(np.exp(s)) + min_std)


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
@pytest.mark.parametrize(("mean", "s"), [(0.0, 0.0), (1.5, -1.0), (-0.5, 1.0)])
def test_the_squashed_density_integrates_to_one(engine, mean, s):
    sampler = mp.NormalTanhSampler(mp.Rngs(0))
    # Gauss-Legendre over u in (-12, 12) of p(tanh u) (1 - tanh(u)**2), which is p integrated over actions in (-1, 1).
    nodes, weights = np.polynomial.legendre.leggauss(400)
    u = 12 * nodes
    x = np.tile([mean, s], (len(u), 1))
    density = np.exp(to_numpy(evaluate(sampler, x, u[:, None]).output["log_likelihood"]))
    log_slope = 2 * (np.log(2) - np.abs(u) - np.log1p(np.exp(-2 * np.abs(u))))
    assert abs(np.sum(12 * weights * density * np.exp(log_slope)) - 1) < 1e-9


def test_squashed_samples_have_their_mean_and_std(engine):
    sampler = mp.NormalTanhSampler(mp.Rngs(0))
    out = sample(sampler, np.tile(np.asarray([0.3, -0.5], np.float32), (20_000, 1)))
    raw = to_numpy(out.rollout_extras)[:, 0]
    std = std_of(-0.5)
    assert abs(raw.mean() - 0.3) < 4 * std / 20_000**0.5
    assert abs(raw.std() / std - 1) < 4 / 40_000**0.5
    np.testing.assert_allclose(to_numpy(out.output["action"])[:, 0], np.tanh(raw), rtol=1e-5)


def slopes(sampler, x, raw):
    """Output of a call, and the gradient of all its numbers by the input."""
    engine = sampler.engine
    state = sampler.initialize_state(len(x))

    def loss(given, raw):
        out = sampler(state, given["x"], raw)
        return total(sampler.xp, (out.output, out.regularization_loss, out.metrics)), (out.output, out.metrics)

    given = {"x": engine.asarray(x)}
    if engine.name == "torch":
        given["x"].requires_grad_(True)
    (value, found), grads = engine.jit(engine.value_and_grad(loss))(given, raw)
    return to_numpy((value, found, grads["x"]))


def test_extremes_stay_finite_with_their_gradients(engine, precision):
    sampler = mp.NormalTanhSampler(mp.Rngs(0), 0.1)
    x = np.asarray([[mean, s] for mean in (-1e4, 0.0, 1e4) for s in (-200.0, 0.0, 200.0)], precision)
    raw = to_numpy(sample(sampler, x).rollout_extras)
    # The samples drawn, and others that would be very unlikely.
    both = (np.concatenate([x, x]), engine.asarray(np.concatenate([raw, raw + 1])))
    for given in ((x, None), both):
        value, (output, metrics), grads = slopes(sampler, *given)
        for name, array in {"value": value, "gradient": grads, **output, **metrics}.items():
            assert np.isfinite(array).all(), name
        assert np.abs(output["action"]).max() <= 1.0


@pytest.mark.usefixtures("float64")
def test_the_entropy_estimate_is_unbiased(engine):
    sampler = mp.NormalTanhSampler(mp.Rngs(0), 1.0)
    n = 40_000
    x = np.tile([0.4, -0.3, 0.2, 0.5], (n, 1))
    out = sample(sampler, x)
    entropy = to_numpy(out.metrics["entropy"])
    # Entropy is the mean of -log p over samples; both averages estimate it, so they agree within their errors.
    surprise = -to_numpy(out.output["log_likelihood"])
    error = np.sqrt((entropy.var() + surprise.var()) / n)
    assert abs(entropy.mean() - surprise.mean()) < 4 * error
    # It depends on the noise alone, not on which sample is evaluated: replay of another sample repeats it.
    again = evaluate(sampler, x, np.zeros((n, 2)))
    np.testing.assert_allclose(to_numpy(again.metrics["entropy"]), entropy, atol=1e-12)
    np.testing.assert_allclose(to_numpy(again.regularization_loss), -entropy, atol=1e-12)


def test_without_a_weight_the_entropy_is_logged_and_not_charged(engine):
    out = sample(mp.NormalTanhSampler(mp.Rngs(0)), np.zeros((2, 2), np.float32))
    assert not to_numpy(out.regularization_loss).any() and to_numpy(out.metrics["entropy"]).all()


SAMPLERS = {
    "normal_tanh": lambda: mp.NormalTanhSampler(mp.Rngs(0)),
    "normal_tanh_entropy": lambda: mp.NormalTanhSampler(mp.Rngs(0), 0.01),
    "categorical": lambda: mp.CategoricalSampler(mp.Rngs(0), 0.01),
}
samplers = pytest.mark.parametrize("make", SAMPLERS.values(), ids=SAMPLERS)


@samplers
def test_replay_of_the_stored_sample_is_bit_equal(engine, make):
    sampler, x = make(), RNG.normal(size=(64, 6)).astype(np.float32)
    out = sample(sampler, x)
    again = evaluate(sampler, x, to_numpy(out.rollout_extras))
    for key in ("action", "log_likelihood"):
        np.testing.assert_array_equal(to_numpy(again.output[key]), to_numpy(out.output[key]))
    np.testing.assert_array_equal(to_numpy(again.regularization_loss), to_numpy(out.regularization_loss))
    np.testing.assert_array_equal(to_numpy(again.rollout_extras), to_numpy(out.rollout_extras))


@samplers
def test_steps_and_environments_draw_differently(engine, make):
    sampler, done = make(), engine.asarray(np.zeros((3, 50), bool))
    walk = compiled(sampler, lambda s, xs, done: s.unroll(s.initialize_state(50), xs, done).rollout_extras)
    seen = to_numpy(walk(engine.zeros((3, 50, 20)), done)).reshape(3, 50, -1)[..., 0]
    assert (seen[0] != seen[1]).mean() > 0.8 and (seen[1] != seen[2]).mean() > 0.8
    assert len(np.unique(seen[0])) > 10


@samplers
def test_eval_gives_the_mode_and_train_samples_again(engine, make):
    sampler = make()
    net, x = mp.Sequential([sampler]), RNG.normal(size=(8, 6)).astype(np.float32)
    mode = {False: np.tanh(x[:, :3]), True: x.argmax(-1)}[isinstance(sampler, mp.CategoricalSampler)]
    net.eval()
    out = sample(net, x)
    np.testing.assert_allclose(to_numpy(out.output["action"]), mode, rtol=1e-6)
    assert np.isfinite(to_numpy(out.output["log_likelihood"])).all()
    assert to_numpy(out.next_state[0].count).tolist() == [1] * 8
    net.train()
    sampled = [to_numpy(sample(net, x).output["action"]) for _ in range(2)]
    assert (sampled[0] != mode).any()
    np.testing.assert_array_equal(*sampled)


def test_categorical_frequencies_are_the_probabilities(engine):
    logits = np.asarray([0.0, 1.0, -1.0, 2.0], np.float32)
    n = 40_000
    action = to_numpy(sample(mp.CategoricalSampler(mp.Rngs(0)), np.tile(logits, (n, 1))).output["action"])
    p = special.softmax(logits)
    # Standard error of a frequency: sqrt(p (1 - p) / n); four of them.
    assert (np.abs(np.bincount(action, minlength=4) / n - p) < 4 * np.sqrt(p * (1 - p) / n)).all()


@pytest.mark.usefixtures("float64")
def test_categorical_likelihood_and_entropy_are_scipys(engine):
    logits, action = RNG.normal(size=(5, 4)) * 3, np.asarray([0, 1, 2, 3, 1])
    out = evaluate(mp.CategoricalSampler(mp.Rngs(0), 2.0), logits, action)
    log_p = special.log_softmax(logits, axis=-1)
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), log_p[np.arange(5), action], rtol=1e-12)
    entropy = stats.entropy(np.exp(log_p), axis=-1)
    np.testing.assert_allclose(to_numpy(out.metrics["entropy"]), entropy, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.regularization_loss), -2 * entropy, rtol=1e-12)


@pytest.mark.parametrize("mask", [-np.inf, -1e9])
def test_a_masked_action_is_never_sampled_and_leaves_all_finite(engine, mask):
    sampler, cases = mp.CategoricalSampler(mp.Rngs(0), 0.1), ([0], [2, 5], [6], [1, 2, 3])
    logits = np.full((len(cases), 1_000, 7), mask, np.float32)
    for case, allowed in zip(logits, cases, strict=True):
        case[:, allowed] = RNG.normal(size=(1_000, len(allowed)))
    flat = logits.reshape(-1, 7)
    action = to_numpy(sample(sampler, flat).output["action"]).reshape(len(cases), -1)
    assert [sorted(set(case.tolist())) for case in action] == list(cases)
    value, (output, metrics), grads = slopes(sampler, flat, sampler.engine.asarray(action.reshape(-1)))
    for name, array in {"value": value, "gradient": grads, **output, **metrics}.items():
        assert np.isfinite(array).all(), name


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-24])
def test_the_ends_of_the_unit_interval_reach_possible_actions_only(engine, monkeypatch, number):
    sampler, cases = mp.CategoricalSampler(mp.Rngs(0)), ([0], [1], [3], [1, 2], [0, 3])
    monkeypatch.setattr(type(sampler), "_draw", lambda self, key, shape: self.zeros((len(cases),)) + number)
    logits = np.full((len(cases), 4), -np.inf, np.float32)
    for row, allowed in zip(logits, cases, strict=True):
        row[allowed] = 0.1
    action = to_numpy(sample(sampler, logits).output["action"]).tolist()
    assert action == [allowed[0] if number == 0.0 else allowed[-1] for allowed in cases]


def test_wrong_inputs_are_refused(engine):
    sampler = mp.NormalTanhSampler(mp.Rngs(0))
    with pytest.raises(ValueError, match=r"NormalTanhSampler got an input of shape \(2, 3\).*even number of features"):
        sample(sampler, np.zeros((2, 3), np.float32))
    with pytest.raises(ValueError, match=r"stored samples of shape \(2, 3\).*calls for \(2, 2\)"):
        evaluate(sampler, np.zeros((2, 4), np.float32), np.zeros((2, 3), np.float32))


@pytest.mark.parametrize(("min_std", "std_scale"), [(-0.1, 1.0), (0.0, 0.0), (0.0, -1.0)])
def test_impossible_scales_are_refused(engine, min_std, std_scale):
    with pytest.raises(ValueError, match="expected min_std of at least 0 and std_scale above 0"):
        mp.NormalTanhSampler(mp.Rngs(0), min_std=min_std, std_scale=std_scale)
