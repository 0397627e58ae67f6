"""The loss, term by term, against numbers worked out by hand."""

import dataclasses
import math
from typing import Any

import numpy as np
import pytest
import support
from loss_samples import PLAIN, evaluate

from multippo.algorithms.advantages import mean_over
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.losses import mean_metrics

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def test_two_samples_by_hand(engine):
    # Ratios 1.5 and 0.9. Sample 1, A = 2: min(1.5 * 2, 1.2 * 2) = 2.4. Sample 2, A = -1: min(-0.9, -0.9) = -0.9.
    # Actor -(2.4 - 0.9) / 2 = -0.75. Critic ((3 - 1)^2 + (0 - 1)^2) / 2 = 2.5. Regularisation (0.1 + 0.3) / 2 = 0.2.
    # KL ((0.5 - log 1.5) + (-0.1 - log 0.9)) / 2 = (0.0945349 + 0.0053605) / 2.
    case = {"values": [3.0, 0.0], "returns": [1.0, 1.0], "regularization": [[0.1, 0.3]]}
    config = dataclasses.replace(PLAIN, critic_loss_weight=0.5)
    found = evaluate(engine, [math.log(1.5), math.log(0.9)], [2.0, -1.0], config=config, **case)
    loss, metrics, grads, (deviation, kl) = found
    assert metrics["losses/actor"] == pytest.approx(-0.75, rel=1e-5)
    assert metrics["losses/critic"] == pytest.approx(2.5, rel=1e-5)
    assert metrics["losses/regularization"] == pytest.approx(0.2, rel=1e-5)
    assert loss == metrics["losses/total"] == pytest.approx(-0.75 + 0.5 * 2.5 + 0.2, rel=1e-5)
    assert metrics["ratio/clip_fraction"] == 0.5
    assert metrics["kl/approx"] == pytest.approx((0.0945349 + 0.0053605) / 2, rel=1e-4)
    assert metrics["network/inner/entropy"] == pytest.approx(0.2, rel=1e-5)
    assert (deviation, kl) == (pytest.approx(0.5, rel=1e-5), metrics["kl/approx"])
    # The first is clipped: no gradient. The second: d(-rho A)/2 = 0.9 / 2. The critic's 0.5 * 2 (V - R) / 2.
    np.testing.assert_allclose(grads["log_likelihoods"], [[0.0, 0.45]], rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(grads["values"], [[1.0, -0.5]], rtol=1e-5)


def test_the_clip_is_pessimistic_on_both_sides(engine):
    # (rho, A): what is averaged, and its derivative by log rho (0 where clipped).
    for ratio, advantage, term, slope in (
        (1.5, 1.0, 1.2, 0.0),
        (1.5, -1.0, -1.5, -1.5),
        (0.5, 1.0, 0.5, 0.5),
        (0.5, -1.0, -0.8, 0.0),
    ):
        _, metrics, grads, _ = evaluate(engine, [math.log(ratio)], [advantage])
        assert metrics["losses/actor"] == pytest.approx(-term, rel=1e-5)
        np.testing.assert_allclose(grads["log_likelihoods"], [[-slope]], rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("log_ratio", [0.2, -0.2])
@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_ratio_at_the_bound_has_its_derivative(engine, log_ratio, advantage):
    # To the side where the clip does not hold, the loss is -rho A on both sides of the bound, and so is its derivative
    # by log rho; to the other one it is that from the inside.
    ratio = float(engine.xp.exp(engine.asarray(np.float32(log_ratio))))
    config = dataclasses.replace(PLAIN, clip_range=abs(ratio - 1.0))
    _, metrics, grads, _ = evaluate(engine, [log_ratio], [advantage], config=config)
    assert metrics["ratio/clip_fraction"] == 0.0
    np.testing.assert_allclose(grads["log_likelihoods"], [[-ratio * advantage]], rtol=1e-6)


def test_a_value_at_the_bound_has_its_derivative(engine):
    # V = 0.5, as far from V_old = 0 as it may be. R = -1: (V - R)^2 on both sides, so 2 (0.5 + 1) / 2. R = 3: beyond,
    # the clip holds (0.5 - 3)^2; from the inside 2 (0.5 - 3) / 2.
    case = {"values": [0.5, 0.5], "old_values": [0.0, 0.0], "returns": [-1.0, 3.0]}
    _, metrics, grads, _ = evaluate(engine, [0.0] * 2, config=dataclasses.replace(PLAIN, value_clip_range=0.5), **case)
    assert metrics["value/clip_fraction"] == 0.0
    np.testing.assert_allclose(grads["values"][0], [1.5, -2.5], rtol=1e-6)


def test_value_clipping_takes_the_larger_error(engine):
    # Old value 0, clipped to within 0.5. (V, R): (2, 3): (2 - 3)^2 = 1 against (0.5 - 3)^2 = 6.25.
    # (2, 0): 4 against 0.25. (0.2, 1): both 0.64.
    case = {"values": [2.0, 2.0, 0.2], "old_values": [0.0] * 3, "returns": [3.0, 0.0, 1.0]}
    _, metrics, grads, _ = evaluate(engine, [0.0] * 3, config=dataclasses.replace(PLAIN, value_clip_range=0.5), **case)
    assert metrics["losses/critic"] == pytest.approx((6.25 + 4.0 + 0.64) / 3, rel=1e-5)
    # Two of three values are further than 0.5 from the old ones.
    assert metrics["value/clip_fraction"] == pytest.approx(2 / 3)
    # The first is held by the clip; the second 2 (2 - 0) / 3; the third 2 (0.2 - 1) / 3, whichever branch.
    np.testing.assert_allclose(grads["values"][0], [0.0, 4 / 3, -1.6 / 3], rtol=1e-5, atol=1e-6)


def test_advantages_are_normalised_by_the_population_deviation_or_left_to_the_batch(engine):
    # Mean 2, deviations -1, 1: population std 1. With ratio 2 and 1: -(min(2 * -1, 1.2 * -1) + 1) / 2 = 0.5.
    config = dataclasses.replace(PLAIN, normalize_advantages=True)
    metrics = evaluate(engine, [math.log(2.0), 0.0], [1.0, 3.0], config=config)[1]
    assert metrics["losses/actor"] == pytest.approx(0.5, rel=1e-5)
    config = dataclasses.replace(config, advantage_normalization="batch")
    assert evaluate(engine, [0.0, 0.0], [1.0, 3.0], config=config)[1]["losses/actor"] == pytest.approx(-2.0)


def test_invalid_entries_change_nothing(engine):
    config = dataclasses.replace(PLAIN, normalize_advantages=True)
    few = {"old": [0.0, 0.3], "values": [0.5, 0.6], "returns": [1.0, 2.0]}
    many = {"old": [0.0, -55.0, 0.3], "values": [0.5, 1e6, 0.6], "returns": [1.0, -1e6, 2.0]}
    expected = evaluate(engine, [0.1, 0.2], [1.0, 3.0], config=config, **few)
    found = evaluate(engine, [0.1, 55.0, 0.2], [1.0, 1e6, 3.0], config=config, valid=[True, False, True], **many)
    for part in (0, 1, 3):
        assert found[part] == pytest.approx(expected[part], rel=1e-6)
    for name, grad in found[2].items():
        np.testing.assert_allclose(grad[:, [0, 2]], expected[2][name], rtol=1e-5)
        assert grad[0, 1] == 0.0
    # None at all is zero.
    case = {"values": [1.0], "returns": [2.0], "valid": [False]}
    loss, _, grads, (deviation, kl) = evaluate(engine, [0.5], [1.0], config=PPOConfig(), **case)
    assert (loss, deviation, kl) == (0.0, 0.0, 0.0)
    assert all((grad == 0).all() for grad in grads.values())


def test_the_entropy_by_hand(engine):
    # Two actions' entropies 1 + 2 and 0 + 4, mean 3.5, at a weight of 0.1, then at 0.05, then at 0.
    case = {"new": [0.0, 0.0], "entropies": {"arm": [1.0, 0.0], "leg": [2.0, 4.0]}}
    config = dataclasses.replace(PLAIN, entropy_weight=0.1)
    for weight, u in ((None, 0.1), (0.05, 0.05), (0.0, 0.0)):
        loss, metrics, grads, _ = evaluate(engine, **case, config=config, weight=weight)
        assert metrics["entropy/mean"] == pytest.approx(3.5)
        assert loss == metrics["losses/total"] == metrics["losses/entropy"] == pytest.approx(-3.5 * u)
        np.testing.assert_allclose(grads["entropies.arm"], [[-u / 2] * 2], rtol=1e-5)
    # Not charged, but logged, and not among what is invalid.
    loss, metrics, grads, _ = evaluate(engine, **case, valid=[True, False])
    assert (loss, metrics["entropy/mean"]) == (0.0, 3.0)
    assert "losses/entropy" not in metrics
    with pytest.raises(ValueError, match=r"entropy_weight=0.1 needs the entropy of the policy, but .* is None"):
        evaluate(engine, config=config, new=[0.0], advantages=[0.0])
    assert not grads["entropies.arm"].any()


TREES: dict[str, Any] = {
    "new": {"arm": [math.log(1.1)], "leg": [math.log(0.9)]},
    "advantages": {"arm": [2.0], "leg": [-4.0]},
    "values": {"arm": [1.0], "leg": [3.0]},
    "returns": {"arm": [0.0], "leg": [1.0]},
}


@pytest.mark.parametrize(
    ("combine", "actor"),
    [
        # The joint ratio 1.1 * 0.9 = 0.99, within the clip range; A = -2 or -1.
        ("sum", 0.99 * 2.0),
        ("mean", 0.99 * 1.0),
        # -(1.1 * 2) - (0.9 * -4).
        ("separate", -2.2 + 3.6),
    ],
)
def test_trees_of_actions_and_rewards(engine, combine, actor):
    _, metrics, _, _ = evaluate(engine, **TREES, config=dataclasses.replace(PLAIN, combine_advantages=combine))
    assert metrics["losses/actor"] == pytest.approx(actor, rel=1e-5)
    # One term for each value: 1^2 + 2^2.
    assert metrics["losses/critic"] == pytest.approx(5.0, rel=1e-5)


def test_one_action_may_serve_several_rewards(engine):
    config = dataclasses.replace(PLAIN, combine_advantages="sum")
    metrics = evaluate(engine, **{**TREES, "new": [math.log(1.1)]}, config=config)[1]
    assert metrics["losses/actor"] == pytest.approx(2.2, rel=1e-5)


def test_metrics_by_hand(engine):
    # L = 2, S = 3; the last entry does not count.
    valid = np.array([[True, True, True], [True, True, False]])
    weight, put = engine.asarray(valid.astype(np.float32)), engine.asarray
    mean = mean_over(engine.xp, put(valid), weight.dtype)
    steps, entries = np.array([1.0, 2.0], np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    metrics = {"number": 0.5, "scalar": put(np.float32(3.0)), "in": {"steps": put(steps), "entries": put(entries)}}
    found = mean_metrics({**metrics, "activations": put(np.ones((2, 3, 7), np.float32))}, weight * 0, mean)
    # (1 + 1 + 1 + 2 + 2) / 5, and (0 + 1 + 2 + 3 + 4) / 5.
    assert {name: float(support.to_numpy(value)) for name, value in found.items()} == pytest.approx(
        {"network/number": 0.5, "network/scalar": 3.0, "network/in/steps": 1.4, "network/in/entries": 2.0}
    )
    with pytest.raises(ValueError, match=r"The metric 'network/in/wide' is an array of shape \(2, 3, 1\); expected"):
        mean_metrics({"in": {"wide": put(entries[..., None])}}, weight * 0, mean)
