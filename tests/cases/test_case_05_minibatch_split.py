"""Environments that do not divide by the minibatches: refused with both numbers, or every sample used once an epoch.

Seen in instadeepai/Mava#1122, ikostrikov/pytorch-a2c-ppo-acktr-gail#72, hill-a/stable-baselines#537, #511.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import CountNet, Spy, TableNet


def with_roll(kind: Any) -> Any:
    """A network that also tells which observations it was evaluated at: one metric for each."""

    def call(self: Any, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        metrics = {f"seen{row:03d}": x[:, row] for row in range(x.shape[-1])}
        return kind.__call__(self, state, x, rollout_extras)._replace(metrics=metrics)

    return type("Roll", (kind,), {"__call__": call})


def shares(network: Any, env: Any, **options: Any) -> np.ndarray:
    """How often an epoch used each observation of each environment, relative to a sample's fair share."""
    time, num_envs = env.ends.shape
    run = training.train(env, network, rollout_length=time, **{**probing.ONE_STEP, **options})
    names = sorted(name for name in run.logs[0] if name.startswith("network/seen"))
    found = np.asarray([run.logs[0][name] for name in names]) * time * num_envs
    return found.reshape(num_envs, env.per_env)


@pytest.mark.parametrize(
    ("kind", "num_envs", "options"),
    [
        (TableNet, 2, {}),  # fewer environments than minibatches
        (TableNet, 6, {}),
        (TableNet, 2, {"sequence_length": 2}),
        (TableNet, 6, {"num_epochs": 3}),
        (CountNet, 6, {}),  # with a memory: sequences of the whole rollout would be 6, halves are 12
    ],
)
@pytest.mark.nightly_if("jax")
def test_every_sample_is_used_once_an_epoch(engine: Any, kind: Any, num_envs: int, options: dict[str, Any]):
    env = probing.Script(np.zeros((4, num_envs), int))
    network = with_roll(kind)(*([np.zeros(env.observation_space.shape[0])] if kind is TableNet else []))
    found = shares(network, env, num_minibatches=4, **options)
    np.testing.assert_allclose(found[:, :4], 1.0, rtol=1e-5)
    assert not found[:, 4:].any()


REFUSED = [
    (6, {"sequence_length": 4}),
    (2, {"rollout_length": 1}),
    (7, {"rollout_length": 5}),  # would leave a sample over
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
