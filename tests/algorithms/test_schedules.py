"""The learning rate is a function of the iteration alone."""

from __future__ import annotations

import itertools
import math

import pytest

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.schedules import learning_rate_at

# 8 iterations of 2 x 4 steps.
SIZES = {"num_envs": 2, "rollout_length": 4, "total_steps": 64, "num_minibatches": 2}


def rates(schedule: str, **changes) -> list[float]:
    config = PPOConfig(**{**SIZES, "learning_rate": 0.8, "lr_schedule": schedule, **changes})
    return [learning_rate_at(config, i) for i in range(config.num_iterations)]


def test_linear_is_a_line_from_the_configured_rate_towards_zero():
    assert rates("linear") == pytest.approx([0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])


def test_constant():
    assert rates("constant") == [0.8] * 8


def test_cosine():
    # (1 + cos(pi i / 8)) / 2 at i = 0, 4: 1 and 1/2; at 2: (1 + sqrt(1/2)) / 2.
    found = rates("cosine")
    assert found[0] == 0.8
    assert found[4] == pytest.approx(0.4)
    assert found[2] == pytest.approx(0.4 * (1 + math.sqrt(0.5)))
    assert all(a > b > 0 for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_epochs_and_minibatches_do_not_count(schedule):
    assert rates(schedule, num_epochs=7, num_minibatches=4) == rates(schedule)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
@pytest.mark.parametrize("iteration", [8, 9, 1000])
def test_never_negative_beyond_the_end(schedule, iteration):
    config = PPOConfig(**SIZES, lr_schedule=schedule)
    assert learning_rate_at(config, iteration) >= 0.0
