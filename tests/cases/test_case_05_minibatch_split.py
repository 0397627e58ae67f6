"""Environments that do not divide by the minibatches: refused with both numbers, or every sample used once an epoch.

Seen in instadeepai/Mava#1122, ikostrikov/pytorch-a2c-ppo-acktr-gail#72, hill-a/stable-baselines#537, #511.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import CountNet, Spy, TableNet


def with_roll(out: mp.StatefulModuleOutput, x: Any) -> mp.StatefulModuleOutput:
    """Adds which observation it was evaluated at: one metric for each."""
    return out._replace(metrics={f"seen{row:03d}": x[:, row] for row in range(x.shape[-1])})


class Roll(TableNet):
    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return with_roll(super().__call__(state, x, rollout_extras), x)


class CountingRoll(CountNet):
    """The same, with a memory, so that it is trained on whole sequences."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return with_roll(super().__call__(state, x, rollout_extras), x)


def shares(network: Any, env: Any, **options: Any) -> np.ndarray:
    """How often an epoch used each observation of each environment, relative to a sample's fair share."""
    time, num_envs = env.ends.shape
    run = training.train(env, network, rollout_length=time, **{**probing.ONE_STEP, **options})
    names = sorted(name for name in run.logs[0] if name.startswith("network/seen"))
    found = np.asarray([run.logs[0][name] for name in names]) * time * num_envs
    return found.reshape(num_envs, env.per_env)


def assert_each_is_used_once(found: np.ndarray) -> None:
    np.testing.assert_allclose(found[:, :4], 1.0, rtol=1e-5)
    assert not found[:, 4:].any()


def test_every_sample_is_used_once_an_epoch(engine: Any):
    # Fewer environments than minibatches.
    env = probing.Script(np.zeros((4, 2), int))
    assert_each_is_used_once(shares(Roll(np.zeros(env.observation_space.shape[0])), env, num_minibatches=4))


@pytest.mark.parametrize(("num_envs", "options"), [(6, {}), (2, {"sequence_length": 2}), (6, {"num_epochs": 3})])
def test_other_splits(torch_engine: Any, num_envs: int, options: dict[str, Any]):
    env = probing.Script(np.zeros((4, num_envs), int))
    network = Roll(np.zeros(env.observation_space.shape[0]))
    assert_each_is_used_once(shares(network, env, num_minibatches=4, **options))


def test_with_memory_too(engine: Any):
    # Sequences of the whole rollout would be 6 for 4 minibatches; halves are 12.
    env = probing.Script(np.zeros((4, 6), int))
    assert_each_is_used_once(shares(CountingRoll(), env, num_minibatches=4))


REFUSED = [
    (6, {"sequence_length": 4}),
    (2, {"sequence_length": 4}),
    (6, {"rollout_length": 3}),
    (2, {"rollout_length": 1}),
]


@pytest.mark.parametrize(("num_envs", "options"), REFUSED)
@pytest.mark.parametrize("kind", [TableNet, CountNet])
def test_what_can_not_be_split_is_refused_in_the_same_words(num_envs: int, options: dict[str, Any], kind: Any):
    messages = []
    for name in support.ENGINES:
        with mp.use_backend(name):
            env = Spy(probing.Script(np.zeros((4, num_envs), int)))
            network = CountNet() if kind is CountNet else TableNet(np.zeros(env.observation_space.shape[0]))
            with pytest.raises(ValueError, match=f"{num_envs}.*num_minibatches=4") as caught:
                training.train(env, network, num_minibatches=4, **options)
            assert not env.actions
            messages.append(str(caught.value))
    assert messages[0] == messages[1]
