"""Samplers that give and take lessons: what they emit, what they make of a teacher's, and what they leave alone."""

from typing import Any

import numpy as np
import pytest
from scipy import special, stats
from support import compiled, gradients, to_numpy

import multippo as mp
from multippo.networks.recording import Lesson, is_lesson, measured
from multippo.networks.samplers.distributions import Bernoulli, Categorical, Gaussian
from multippo.trees import tree_map

T, B = 3, 2
RNG = np.random.default_rng(0)
LOGITS, TAUGHT = RNG.normal(size=(2, T, B, 4)) * 2
ACTIONS = np.asarray([[0, 3], [1, 2], [2, 2]])
DONE = np.asarray([[True, False], [False, True], [True, True]])

# Neutral code, whose arithmetic conformance compares; distillation is trained on both engines.
pytestmark = [pytest.mark.usefixtures("float64"), pytest.mark.parametrize("engine", ["torch"], indirect=True)]


def categorical() -> Any:
    return mp.CategoricalSampler(mp.Rngs(0), 0.5)


def lesson(raw: Any, distribution: Any, sampler: str = "CategoricalSampler") -> Lesson:
    return Lesson(raw, {sampler: distribution})


def taught(steps: int = T) -> Lesson:
    return lesson(ACTIONS[:steps], Categorical(special.log_softmax(TAUGHT[:steps], axis=-1)))


def put(module: Any, tree: Any) -> Any:
    return tree_map(lambda x: module.engine.asarray(np.asarray(x)), tree)


def call(module: Any, x: Any, extras: Any = None) -> Any:
    """One step from a fresh carry."""
    x, extras = put(module, x), put(module, extras)
    return to_numpy(compiled(module, lambda m, x, e: m(m.initialize_state(B), x, e))(x, extras))


def unroll(module: Any, xs: Any, extras: Any = None, done: Any = DONE) -> Any:
    xs, extras, done = put(module, xs), put(module, extras), put(module, done[: len(xs)])
    return to_numpy(compiled(module, lambda m, x, d, e: m.unroll(m.initialize_state(B), x, d, e))(xs, done, extras))


def kl(p: Any, q: Any) -> np.ndarray:
    p, q = special.log_softmax(p, axis=-1), special.log_softmax(q, axis=-1)
    return np.sum(np.exp(p) * (p - q), axis=-1)


# -- in a rollout


@pytest.mark.parametrize("loss", ["nll", "kl"])
def test_a_rollout_is_the_networks_own_and_emits_lessons(engine, loss):
    sampler = categorical()
    for run, x in ((call, LOGITS[0]), (unroll, LOGITS)):
        own, copy = run(sampler, x), run(measured(sampler, loss), x)
        given = copy.rollout_extras
        assert is_lesson(given) and not is_lesson(own.rollout_extras) and given.sampler == "CategoricalSampler"
        np.testing.assert_array_equal(given.raw_action, own.rollout_extras)
        (found,) = given.distribution["CategoricalSampler"]
        np.testing.assert_allclose(found, special.log_softmax(x, axis=-1), rtol=1e-12)
        for name in ("action", "log_likelihood", "entropy"):
            np.testing.assert_array_equal(copy.output[name], own.output[name])
        np.testing.assert_array_equal(copy.next_state.count, own.next_state.count)
        np.testing.assert_array_equal(copy.regularization_loss, own.regularization_loss)


# -- in replay


@pytest.mark.parametrize("steps", [T, 1])
def test_a_lesson_is_judged_at_every_step_in_every_environment(engine, steps):
    xs, extras = LOGITS[:steps], taught(steps)
    log_p = np.take_along_axis(special.log_softmax(xs, axis=-1), ACTIONS[:steps, :, None], axis=-1)[..., 0]
    divergence = kl(TAUGHT[:steps], xs)
    for loss, likelihood in (("nll", log_p), ("kl", -divergence)):
        copy = measured(categorical(), loss)
        whole = unroll(copy, xs, extras)
        np.testing.assert_array_equal(whole.output["action"], ACTIONS[:steps])
        np.testing.assert_allclose(whole.output["log_likelihood"], likelihood, rtol=1e-12)
        np.testing.assert_allclose(whole.output["entropy"], divergence, rtol=1e-12)
        # What is logged, and the bonus, are of the student's own entropy.
        entropy = stats.entropy(special.softmax(xs, axis=-1), axis=-1)
        np.testing.assert_allclose(whole.metrics["entropy"], entropy, rtol=1e-12)
        np.testing.assert_allclose(whole.regularization_loss, -0.5 * entropy, rtol=1e-12)
        for t in range(steps):
            out = call(copy, xs[t], tree_map(lambda x, t=t: x[t], extras))
            for name, value in whole.output.items():
                np.testing.assert_allclose(out.output[name], value[t], rtol=1e-12, err_msg=f"{name} at {t}")


def test_a_gaussian_by_hand(engine):
    # Two dimensions: m' = (0.5, -1), s' = softplus(x) + 1e-3; the teacher's m = (0, 1), s = (2, 0.5), u = (0.3, -0.2).
    x = np.tile([0.5, -1.0, 0.1, -0.4], (B, 1))
    m, s, u = np.asarray([0.0, 1.0]), np.asarray([2.0, 0.5]), np.asarray([0.3, -0.2])
    own_m, own_s = x[0, :2], np.log1p(np.exp(x[0, 2:])) + 1e-3
    rows = lambda value: np.tile(value, (B, 1))  # noqa: E731
    given = lesson(rows(u), Gaussian(rows(m), rows(s)), "NormalTanhSampler")
    divergence = np.sum(np.log(own_s / s) + (s**2 + (m - own_m) ** 2) / (2 * own_s**2) - 0.5)
    log_density = np.sum(stats.norm.logpdf(u, own_m, own_s) - np.log(1 - np.tanh(u) ** 2))
    for loss, likelihood in (("nll", log_density), ("kl", -divergence)):
        out = call(measured(mp.NormalTanhSampler(mp.Rngs(0)), loss), x, given)
        np.testing.assert_allclose(out.output["action"], rows(np.tanh(u)), rtol=1e-12)
        np.testing.assert_allclose(out.output["log_likelihood"], np.full(B, likelihood), rtol=1e-10)
        np.testing.assert_allclose(out.output["entropy"], np.full(B, divergence), rtol=1e-10)


def test_bits_by_hand(engine):
    x, teacher, bits = np.asarray([[0.3, -1.0], [2.0, 0.0]]), np.asarray([[1.0, 0.5], [-0.5, 0.0]]), np.eye(2)
    p, q = special.expit(teacher), special.expit(x)
    divergence = np.sum(p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q)), axis=-1)
    given = lesson(bits, Bernoulli(teacher), "BernoulliSampler")
    out = call(measured(mp.BernoulliSampler(mp.Rngs(0), action_shape=(2,)), "nll"), x, given)
    np.testing.assert_allclose(out.output["entropy"], divergence, rtol=1e-12)
    expected = np.sum(bits * np.log(q) + (1 - bits) * np.log(1 - q), axis=-1)
    np.testing.assert_allclose(out.output["log_likelihood"], expected, rtol=1e-12)


def test_the_gradient_of_a_divergence_is_the_difference_of_the_probabilities(engine):
    # d KL(p || softmax(z)) / dz = softmax(z) - p, and z = b where the input is 0; summed over steps and environments.
    network = mp.Sequential([mp.Dense(1, 4, mp.Rngs(0)), categorical()])
    values, bias = mp.to_portable(network), np.asarray([0.2, -0.4, 1.0, 0.1])
    mp.load_portable(network, {**values, "layers.0.bias": bias})
    copy = measured(network, "kl")
    xs, extras, done = put(copy, np.zeros((T, B, 1))), put(copy, [None, taught()]), put(copy, DONE)
    start = copy.initialize_state(B)
    found = gradients(copy, lambda m: -m.xp.sum(m.unroll(start, xs, done, extras).output["log_likelihood"]))
    expected = np.sum(special.softmax(bias) - special.softmax(TAUGHT, axis=-1), axis=(0, 1))
    np.testing.assert_allclose(found["layers.0.bias"], expected, rtol=1e-10)


# -- what a copy is


def test_a_copy_shares_what_is_learnt_and_a_module_in_two_places_stays_one(engine):
    trunk = mp.Dense(3, 4, mp.Rngs(0))
    network = mp.Parallel({"a": mp.Sequential([trunk, categorical()]), "b": trunk})
    copy = measured(network, "nll")
    assert sorted(mp.to_portable(copy)) == sorted(mp.to_portable(network))
    changed = {name: value + 0.25 for name, value in mp.to_portable(network).items() if value.dtype.kind == "f"}
    mp.load_portable(network, {**mp.to_portable(network), **changed})
    for name, value in changed.items():
        np.testing.assert_array_equal(mp.to_portable(copy)[name], value)
    # The network itself emits samples as before, also under a container.
    assert not is_lesson(call(network, np.ones((B, 3))).rollout_extras["a"][1])
    assert is_lesson(call(copy, np.ones((B, 3))).rollout_extras["a"][1])


@pytest.mark.parametrize(
    ("extras", "received"),
    [
        (lesson(ACTIONS[0], Categorical(np.zeros((B, 4))), "Other"), "that of a Other"),
        (ACTIONS[0], "a sample without its distribution"),
    ],
)
def test_what_is_no_lesson_of_its_kind_is_refused(engine, extras, received):
    copy = measured(categorical(), "kl")
    with pytest.raises(ValueError, match=rf"needs the lesson of a teacher's CategoricalSampler.* got {received}"):
        copy(copy.initialize_state(B), put(copy, LOGITS[0]), put(copy, extras))
