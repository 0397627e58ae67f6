"""What is planned is a function of the iteration alone; what is adapted, of the divergence."""

import itertools
import math

import pytest

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.schedules import adapt_learning_rate, entropy_weight_at, learning_rate_at

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

# 8 iterations of 2 x 4 steps.
SIZES = {"num_envs": 2, "rollout_length": 4, "total_steps": 64, "num_minibatches": 2}


def rates(schedule: str, **changes) -> list[float]:
    bounds = {"max_learning_rate": 1.0} if schedule == "adaptive_kl" else {}
    config = PPOConfig(**{**SIZES, "learning_rate": 0.8, "lr_schedule": schedule, **bounds, **changes})
    return [learning_rate_at(config, i) for i in range(config.num_iterations)]


def test_cosine():
    # (1 + cos(pi i / 8)) / 2 at i = 0, 4: 1 and 1/2; at 2: (1 + sqrt(1/2)) / 2.
    found = rates("cosine")
    assert found[0] == 0.8
    assert found[4] == pytest.approx(0.4)
    assert found[2] == pytest.approx(0.4 * (1 + math.sqrt(0.5)))
    assert all(a > b > 0 for a, b in itertools.pairwise(found))


def test_a_warm_up_rises_to_the_schedule():
    # n = 3: a quarter, a half and three quarters of what the schedule says, then all of it.
    assert rates("constant", learning_rate_warmup=3) == pytest.approx([0.2, 0.4, 0.6] + [0.8] * 5)
    # 1/4 0.8, 2/4 0.7, 3/4 0.6, 0.5, ...
    expected = [0.2, 0.35, 0.45, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert rates("linear", learning_rate_warmup=3) == pytest.approx(expected)
    assert rates("cosine", learning_rate_warmup=3)[4:] == rates("cosine")[4:]
    # A share of a rate that is not planned; longer than the run, it never becomes 1.
    adaptive = {"learning_rate": 1e-3, "learning_rate_warmup": 3}
    assert rates("adaptive_kl", **adaptive) == [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rates("constant", learning_rate_warmup=15)[-1] == pytest.approx(0.4)


def test_the_weight_of_the_entropy():
    def weights(**fields) -> list[float]:
        config = PPOConfig(**SIZES, **fields)
        return [entropy_weight_at(config, i) for i in (0, 4, 8, 100)]

    assert weights() == [0.0] * 4
    assert weights(entropy_weight=0.02) == [0.02] * 4
    assert weights(entropy_weight=0.02, entropy_schedule="linear") == pytest.approx([0.02, 0.01, 0.0, 0.0])


@pytest.mark.parametrize(
    ("rate", "kl", "expected"),
    [
        # Desired 0.01, between 1e-4 and 1e-2.
        (3e-3, 0.021, 2e-3),
        (3e-3, 0.005, 3e-3),
        (3e-3, 0.0049, 4.5e-3),
        (3e-3, 0.0, 3e-3),  # a divergence of nothing says nothing
        (3e-3, float("nan"), 3e-3),
        (3e-3, float("inf"), 2e-3),
        (1.2e-4, 1.0, 1e-4),
        (9e-3, 1e-3, 1e-2),
    ],
)
def test_the_rate_follows_the_divergence(engine, rate, kl, expected):
    config = PPOConfig(lr_schedule="adaptive_kl", learning_rate=3e-3, desired_kl=0.01, min_learning_rate=1e-4)
    zero = engine.zeros(())
    found = adapt_learning_rate(engine.xp, config, zero + rate, zero + kl)
    assert found.dtype == zero.dtype
    assert float(found) == pytest.approx(expected, rel=1e-6)
