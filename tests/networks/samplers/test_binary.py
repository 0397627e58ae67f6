"""Switches: likelihoods against torch, frequencies, extremes."""

import numpy as np
import pytest
import torch
from sampling import assert_finite, evaluate, kl, sample, slopes
from support import to_numpy

import multippo as mp

RNG = np.random.default_rng(0)


@pytest.mark.usefixtures("float64")
def test_likelihood_entropy_and_divergence_are_torchs(engine):
    sampler = mp.BernoulliSampler(mp.Rngs(0), 2.0)
    logits, other = RNG.normal(size=(2, 8, 3)) * 3
    action = RNG.integers(0, 2, (8, 3))
    out = evaluate(sampler, logits, action)
    given, new = (torch.distributions.Bernoulli(logits=torch.as_tensor(x)) for x in (logits, other))
    expected = given.log_prob(torch.as_tensor(action, dtype=torch.float64)).sum(-1).numpy()
    np.testing.assert_allclose(to_numpy(out.output["log_likelihood"]), expected, rtol=1e-10)
    entropy = given.entropy().sum(-1).numpy()
    np.testing.assert_allclose(to_numpy(out.metrics["entropy"]), entropy, rtol=1e-10)
    np.testing.assert_allclose(to_numpy(out.regularization_loss), -2 * entropy, rtol=1e-10)
    expected = torch.distributions.kl_divergence(given, new).sum(-1).numpy()
    np.testing.assert_allclose(kl(sampler, logits, other), expected, rtol=1e-10)


def test_joint_frequencies_are_products(engine):
    logits, n = np.asarray([-1.0, 0.5, 2.0], np.float32), 40_000
    action = to_numpy(sample(mp.BernoulliSampler(mp.Rngs(0)), np.tile(logits, (n, 1))).output["action"])
    p = 1 / (1 + np.exp(-logits))
    joint = np.zeros((2, 2, 2))
    np.add.at(joint, tuple(action.T), 1.0 / n)
    expected = np.einsum("a,b,c->abc", *np.stack([1 - p, p], -1))
    assert (np.abs(joint - expected) < 4 * np.sqrt(expected * (1 - expected) / n)).all()


def test_extremes_stay_finite_with_their_gradients(engine, precision):
    sampler = mp.BernoulliSampler(mp.Rngs(0), 0.1)
    logits = np.asarray([[1e4, -1e4], [0.0, 200.0], [-1e4, 0.0], [-200.0, 1e4]], precision)
    found = slopes(sampler, logits, np.asarray([[0, 1], [1, 0], [1, 1], [1, 0]]))
    assert_finite(found)
    drawn = found["fresh action"]
    assert (drawn[0] == [1, 0]).all() and drawn[1, 1] == 1 and drawn[2, 0] == 0 and (drawn[3] == [0, 1]).all()
    np.testing.assert_allclose(found["log_likelihood"][0], -2e4, rtol=1e-6)
