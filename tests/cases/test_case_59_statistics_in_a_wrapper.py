"""Statistics of a wrapper are lost with it: that is said, and what to use instead.

Seen in vwxyzjn/cleanrl#532, Farama-Foundation/Gymnasium#256.
"""

import functools
import logging
import re
from typing import Any

import gymnasium
import pytest
from gymnasium import wrappers
from gymnasium.vector import AsyncVectorEnv, SyncVectorEnv
from gymnasium.wrappers.vector import ClipReward, NormalizeObservation

import multippo as mp
from multippo.testing import check_env

OBSERVATIONS, REWARDS = "the network's own Normalizer", r"PPOConfig\(scale_rewards=True"


def make(*layers: Any) -> Any:
    env = gymnasium.make("Pendulum-v1")
    for layer in layers:
        env = layer(env)
    return env


LIMIT = functools.partial(wrappers.TimeLimit, max_episode_steps=9)
plain = functools.partial(make, LIMIT)
normalized = functools.partial(make, wrappers.NormalizeObservation, LIMIT)
both = functools.partial(make, wrappers.NormalizeObservation, wrappers.NormalizeReward)


CASES = {
    "scalar": (lambda: mp.make_env(normalized, 3, action_repeat=2), OBSERVATIONS),
    "workers": (lambda: mp.make_env(normalized, vectorization="async"), OBSERVATIONS),
    "rewards": (lambda: mp.make_env(both, reward_scale=2.0), f"{OBSERVATIONS}.*{REWARDS}"),
    "a name": (lambda: mp.make_env("Pendulum-v1", wrappers=[wrappers.NormalizeReward]), REWARDS),
    "a vector form": (
        lambda: mp.make_env(
            ClipReward(NormalizeObservation(SyncVectorEnv([plain] * 2)), -1.0, 1.0), max_episode_steps=5
        ),
        OBSERVATIONS,
    ),
    "the user's own workers": (lambda: mp.make_env(AsyncVectorEnv([normalized], context="forkserver")), OBSERVATIONS),
}


@pytest.mark.parametrize("case", CASES)
def test_it_is_said_once(case, caplog):
    make, message = CASES[case]
    with caplog.at_level(logging.WARNING, "multippo"):
        env = make()
        if case == "scalar":
            env.similar(1).close()
        env.close()
    assert [bool(re.search(message, record.getMessage())) for record in caplog.records] == [True]


def test_check_env_says_it_and_nothing_is_said_without(caplog):
    assert re.search(f"warning: .*{OBSERVATIONS}", str(check_env(normalized, num_steps=20)))
    mp.make_env(mp.make_env(plain)).close()
    assert not any("statistics" in record.getMessage() for record in caplog.records[1:])
