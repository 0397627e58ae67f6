"""Discrete samplers: likelihoods against scipy and torch, frequencies, masks, extremes."""

import numpy as np
import pytest
import torch
from sampling import NVEC, assert_finite, evaluate, kl, sample, slopes
from scipy import special, stats
from support import to_numpy

import multippo as mp

RNG = np.random.default_rng(0)
MASKS = np.asarray([[1, 0, 0, 0, 0], [0, 1, 0, 0, 1], [0, 0, 0, 1, 0], [1, 1, 1, 1, 1], [0, 1, 1, 1, 0]], np.int8)
OF_FIVE_LOGITS = {
    "categorical": lambda: mp.CategoricalSampler(mp.Rngs(0), 0.1),
    "multi": lambda: mp.MultiCategoricalSampler([2, 3], mp.Rngs(0), 0.1),
}


def blocks(sizes, x):
    """The logits of each choice."""
    return np.split(x, np.cumsum(sizes)[:-1], axis=-1)


def test_frequencies_are_the_probabilities(torch_engine):
    logits, n = np.asarray([0.0, 1.0, -1.0, 2.0], np.float32), 40_000
    action = to_numpy(sample(mp.CategoricalSampler(mp.Rngs(0)), np.tile(logits, (n, 1))).output["action"])
    p = special.softmax(logits)
    # Standard error of a frequency: sqrt(p (1 - p) / n); four of them.
    assert (np.abs(np.bincount(action, minlength=4) / n - p) < 4 * np.sqrt(p * (1 - p) / n)).all()


@pytest.mark.parametrize("nvec", [NVEC, np.asarray([3, 3])], ids=["unequal", "equal"])
def test_joint_frequencies_are_products(torch_engine, nvec):
    sizes, n = nvec.ravel(), 40_000
    logits = RNG.normal(size=sizes.sum()).astype(np.float32)
    sampler = mp.MultiCategoricalSampler(nvec, mp.Rngs(0))
    action = to_numpy(sample(sampler, np.tile(logits, (n, 1))).output["action"])
    assert action.shape == (n, *nvec.shape)
    ps = [special.softmax(block) for block in blocks(sizes, logits)]
    joint = np.zeros(sizes)
    np.add.at(joint, tuple(action.reshape(n, -1).T), 1.0 / n)
    expected = ps[0]
    for p in ps[1:]:
        expected = expected[..., None] * p
    # Of the joint distribution, so that choices which go together are seen.
    assert (np.abs(joint - expected) < 4 * np.sqrt(expected * (1 - expected) / n)).all()


def test_of_equal_logits_the_first_is_the_mode(torch_engine):
    sampler = mp.CategoricalSampler(mp.Rngs(0))
    sampler.eval()
    logits = np.asarray([[0.0, 0.0, 0.0], [-1.0, 2.0, 2.0], [-np.inf, 0.0, 0.0]], np.float32)
    assert to_numpy(sample(sampler, logits).output["action"]).tolist() == [0, 1, 1]


@pytest.mark.usefixtures("float64")
def test_likelihood_and_entropy_are_scipys(engine):
    logits, action = RNG.normal(size=(5, 4)) * 3, np.asarray([0, 1, 2, 3, 1])
    out = evaluate(mp.CategoricalSampler(mp.Rngs(0), 2.0), logits, action)
    log_p = special.log_softmax(logits, axis=-1)
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), log_p[np.arange(5), action], rtol=1e-12)
    entropy = stats.entropy(np.exp(log_p), axis=-1)
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), entropy, rtol=1e-12)
    np.testing.assert_allclose(to_numpy(out.regularization_loss), -2 * entropy, rtol=1e-12)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("nvec", [np.asarray([2, 5]), NVEC, np.asarray([3, 3]), np.asarray([4])])
def test_joint_likelihood_and_entropy_are_sums(engine, nvec):
    sizes = nvec.ravel()
    logits = RNG.normal(size=(6, sizes.sum())) * 3
    action = RNG.integers(0, sizes, (6, len(sizes)))
    out = evaluate(mp.MultiCategoricalSampler(nvec, mp.Rngs(0)), logits, action)
    parts = [torch.distributions.Categorical(logits=torch.as_tensor(block)) for block in blocks(sizes, logits)]
    expected = sum(part.log_prob(torch.as_tensor(action[:, k])) for k, part in enumerate(parts))
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), expected.numpy(), rtol=1e-10)
    expected = sum(part.entropy() for part in parts)
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), expected.numpy(), rtol=1e-10, atol=1e-12)
    np.testing.assert_array_equal(to_numpy(out.output["action"]), action.reshape(6, *nvec.shape))


@pytest.mark.usefixtures("float64")
def test_divergences_are_torchs(engine):
    sizes = NVEC.ravel()
    old, new = RNG.normal(size=(2, 6, sizes.sum())) * 3
    categorical = torch.distributions.Categorical
    of = lambda a, b: torch.distributions.kl_divergence(  # noqa: E731
        categorical(logits=torch.as_tensor(a)), categorical(logits=torch.as_tensor(b))
    ).numpy()
    np.testing.assert_allclose(kl(mp.CategoricalSampler(mp.Rngs(0)), old, new), of(old, new), rtol=1e-10)
    expected = sum(of(a, b) for a, b in zip(blocks(sizes, old), blocks(sizes, new), strict=True))
    np.testing.assert_allclose(kl(mp.MultiCategoricalSampler(NVEC, mp.Rngs(0)), old, new), expected, rtol=1e-10)


def test_what_the_new_policy_excludes_is_infinitely_far(engine):
    logits = np.zeros((1, 3), np.float32)
    old, new = ({"logits": logits, "mask": np.asarray([mask])} for mask in ([1, 1, 0], [1, 0, 0]))
    sampler = mp.CategoricalSampler(mp.Rngs(0))
    assert kl(sampler, old, new).tolist() == [np.inf]
    np.testing.assert_allclose(kl(sampler, new, old), [np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("number", [np.int8, bool, np.float32])
def test_masked_actions_are_impossible(torch_engine, number):
    logits = RNG.normal(size=(5, 5)).astype(np.float32) * 3
    x = {"logits": np.repeat(logits, 400, 0), "mask": np.repeat(MASKS, 400, 0).astype(number)}
    sampler = mp.CategoricalSampler(mp.Rngs(0), 0.1)
    out = sample(sampler, x)
    action = to_numpy(out.output["action"])
    seen = [sorted(set(rows.tolist())) for rows in action.reshape(5, 400)]
    assert all(set(row) <= set(np.flatnonzero(mask)) for row, mask in zip(seen, MASKS, strict=True))
    assert any(len(row) > 1 for row in seen)
    # By hand: the distribution over the allowed ones alone.
    expected = np.where(MASKS, logits, -np.inf)
    log_p = special.log_softmax(expected, axis=-1)
    np.testing.assert_allclose(
        to_numpy(out.output["log_likelihood"]), np.repeat(log_p, 400, 0)[np.arange(2000), action], rtol=1e-5, atol=1e-6
    )
    entropy = np.repeat(stats.entropy(np.exp(log_p), axis=-1), 400)
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), entropy, rtol=1e-5, atol=1e-6)
    probability = np.exp(to_numpy(sampler.distribution({k: torch_engine.asarray(v[::400]) for k, v in x.items()})[0]))
    assert (probability[MASKS == 0] == 0).all() and (probability[MASKS == 1] > 0).all()


@pytest.mark.parametrize("kind", OF_FIVE_LOGITS)
def test_no_gradient_reaches_a_masked_logit(engine, precision, kind):
    sampler = OF_FIVE_LOGITS[kind]()
    logits = (RNG.normal(size=(5, 5)) * 3).astype(precision)
    masks = MASKS.copy()
    masks[:, [0, 4]] |= kind == "multi"  # at least one of each choice
    found = slopes(sampler, logits, None, masks)
    assert_finite(found)
    # Where a choice is left, its logits are felt; where none is, they do not matter either.
    assert (found["gradient"][masks == 0] == 0).all()
    assert (found["gradient"][3] != 0).all()


@pytest.mark.parametrize("nvec", [[2, 3], [[2], [3]], [2, 2]])
def test_each_choice_has_its_own_mask(torch_engine, nvec):
    sizes, n = np.asarray(nvec).ravel(), 500
    mask = np.concatenate([[0, 1], [1, 0, 0] if sizes[1] == 3 else [1, 0]])
    x = {"logits": np.zeros((n, sizes.sum()), np.float32), "mask": np.tile(mask, (n, 1))}
    out = sample(mp.MultiCategoricalSampler(nvec, mp.Rngs(0)), x)
    action = to_numpy(out.output["action"]).reshape(n, 2)
    assert (action == [1, 0]).all()
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), 0.0, atol=1e-6)
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), 0.0, atol=1e-6)


@pytest.mark.nightly_if("jax")
def test_a_row_that_allows_nothing_allows_everything(engine, precision):
    logits = (RNG.normal(size=(4, 3)) * 2).astype(precision)
    nothing = np.zeros((4, 3), np.int8)
    sampler, action = mp.CategoricalSampler(mp.Rngs(0), 0.1), np.asarray([0, 1, 2, 0])
    plain, masked = slopes(sampler, logits, action), slopes(sampler, logits, action, nothing)
    assert_finite(masked)
    for name in ("log_likelihood", "entropy", "action"):
        np.testing.assert_array_equal(masked[name], plain[name])
    # In one choice of several too, and in no other.
    x = {"logits": np.zeros((1, 5), np.float32), "mask": np.asarray([[0, 0, 0, 1, 0]])}
    entropy = to_numpy(sample(mp.MultiCategoricalSampler([2, 3], mp.Rngs(0)), x).output["entropy"])
    np.testing.assert_allclose(entropy, [np.log(2)], rtol=1e-6)


@pytest.mark.parametrize("kind", OF_FIVE_LOGITS)
def test_extremes_stay_finite_with_their_gradients(engine, precision, kind):
    sampler = OF_FIVE_LOGITS[kind]()
    rows = [[1e4, -1e4, 0, 1e4, -1e4], [-1e4] * 5, [1e4] * 5, [0, 0, -1e4, 1e4, 1.0], [-1e4, 1e4, 1e4, 1e4, -1e4]]
    logits = np.asarray(rows, precision)
    unlikely = (
        np.asarray([1, 0, 0, 2, 0]) if kind == "categorical" else np.asarray([[1, 2], [0, 0], [1, 1], [0, 0], [0, 2]])
    )
    assert_finite(slopes(sampler, logits, unlikely))
    if kind == "categorical":
        masked = np.asarray([[0, 1, 1, 0, 1], [1, 0, 0, 0, 0], [0] * 5, [1, 0, 1, 0, 1], [1, 1, 0, 0, 1]])
        assert_finite(slopes(sampler, logits, None, masked))


@pytest.mark.parametrize("mask", [-np.inf, -1e9])
def test_logits_can_mask_by_themselves(engine, mask):
    sampler, cases = mp.CategoricalSampler(mp.Rngs(0), 0.1), ([0], [2, 5], [6], [1, 2, 3])
    logits = np.full((len(cases), 1_000, 7), mask, np.float32)
    for case, allowed in zip(logits, cases, strict=True):
        case[:, allowed] = RNG.normal(size=(1_000, len(allowed)))
    flat = logits.reshape(-1, 7)
    action = to_numpy(sample(sampler, flat).output["action"])
    assert [sorted(set(case.tolist())) for case in action.reshape(len(cases), -1)] == list(cases)
    assert_finite(slopes(sampler, flat, action, reverse=False))


@pytest.mark.parametrize("number", [0.0, 1 - 2.0**-24])
def test_the_ends_of_the_unit_interval_reach_possible_actions_only(engine, monkeypatch, number):
    sampler, cases = mp.CategoricalSampler(mp.Rngs(0)), ([0], [1], [3], [1, 2], [0, 3])
    monkeypatch.setattr(type(sampler), "_draw", lambda self, key, shape: self.zeros((len(cases),)) + number)
    logits = np.full((len(cases), 4), -np.inf, np.float32)
    for row, allowed in zip(logits, cases, strict=True):
        row[allowed] = 0.1
    action = to_numpy(sample(sampler, logits).output["action"]).tolist()
    assert action == [allowed[0] if number == 0.0 else allowed[-1] for allowed in cases]


@pytest.mark.usefixtures("float64")
def test_likelihood_entropy_and_divergence_of_switches_are_torchs(engine):
    sampler = mp.BernoulliSampler(mp.Rngs(0), 2.0)
    logits, other = RNG.normal(size=(2, 8, 3)) * 3
    action = RNG.integers(0, 2, (8, 3))
    out = evaluate(sampler, logits, action)
    given, new = (torch.distributions.Bernoulli(logits=torch.as_tensor(x)) for x in (logits, other))
    expected = given.log_prob(torch.as_tensor(action, dtype=torch.float64)).sum(-1).numpy()
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), expected, rtol=1e-10)
    entropy = given.entropy().sum(-1).numpy()
    np.testing.assert_allclose(to_numpy(out.output["entropy"]), entropy, rtol=1e-10)
    np.testing.assert_allclose(to_numpy(out.regularization_loss), -2 * entropy, rtol=1e-10)
    expected = torch.distributions.kl_divergence(given, new).sum(-1).numpy()
    np.testing.assert_allclose(kl(sampler, logits, other), expected, rtol=1e-10)


def test_joint_frequencies_of_switches(torch_engine):
    logits, n = np.asarray([-1.0, 0.5, 2.0], np.float32), 40_000
    action = to_numpy(sample(mp.BernoulliSampler(mp.Rngs(0)), np.tile(logits, (n, 1))).output["action"])
    p = 1 / (1 + np.exp(-logits))
    joint = np.zeros((2, 2, 2))
    np.add.at(joint, tuple(action.T), 1.0 / n)
    expected = np.einsum("a,b,c->abc", *np.stack([1 - p, p], -1))
    assert (np.abs(joint - expected) < 4 * np.sqrt(expected * (1 - expected) / n)).all()


def test_extreme_switches_stay_finite_with_their_gradients(engine, precision):
    sampler = mp.BernoulliSampler(mp.Rngs(0), 0.1)
    logits = np.asarray([[1e4, -1e4], [0.0, 200.0], [-1e4, 0.0], [-200.0, 1e4]], precision)
    found = slopes(sampler, logits, np.asarray([[0, 1], [1, 0], [1, 1], [1, 0]]))
    assert_finite(found)
    drawn = found["fresh action"]
    assert (drawn[0] == [1, 0]).all() and drawn[1, 1] == 1 and drawn[2, 0] == 0 and (drawn[3] == [0, 1]).all()
    np.testing.assert_allclose(found["log_likelihood"][0], -2e4, rtol=1e-6)
