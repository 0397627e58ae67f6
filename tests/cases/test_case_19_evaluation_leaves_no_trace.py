"""Evaluating often, seldom or never is the same training.

Seen in DLR-RM/rl-baselines3-zoo#275, ugr-sail/sinergym#511, DLR-RM/stable-baselines3#1556.
"""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, FunctionalClock, NoisyNet, Spy

ITERATIONS = 6


def make_network() -> Any:
    """Statistics, noise of its own, a sampler: all that an evaluation could disturb."""
    return mp.Sequential([mp.Normalizer(4), NoisyNet(4, 2, mp.Rngs(0))])


def evaluation(**options: Any) -> dict[str, Any]:
    return {"eval": mp.EvalConfig(enabled=True, every_steps=16, num_episodes=3, **options)}


@pytest.mark.parametrize(
    ("engine", "deterministic"), [("jax", False), ("torch", False), ("torch", True)], indirect=["engine"]
)
@pytest.mark.nightly
def test_on_a_functional_environment(engine: Any, deterministic: bool):
    runs, networks = [], []
    for config in ({}, evaluation(deterministic=deterministic)):
        networks.append(make_network())
        env = mp.make_env(FunctionalClock(3, "truncated"), num_envs=4)
        runs.append(training.train(env, networks[-1], iterations=ITERATIONS, config=config))
    training.assert_same_end(*runs, tuple(networks))
    assert len(runs[0].logs) == ITERATIONS
    assert len(runs[1].result.eval_history) == ITERATIONS


@pytest.mark.nightly_if("jax")
def test_on_a_host_environment(engine: Any):
    runs, networks, spies = [], [], []
    for config, eval_env in (({}, None), (evaluation(), None), (evaluation(), Clock(3, "truncated", 3))):
        if engine.name == "jax" and eval_env is not None:
            continue
        networks.append(make_network())
        spies.append(Spy(Clock(3, "truncated", 4)))
        runs.append(training.train(spies[-1], networks[-1], iterations=ITERATIONS, config=config, eval_env=eval_env))
    for run, network, spy in zip(runs[1:], networks[1:], spies[1:], strict=True):
        training.assert_same_end(runs[0], run, (networks[0], network))
        # The training environment was neither reset nor stepped, and got the same actions.
        assert len(spy.resets) == 1
        np.testing.assert_array_equal(spy.actions, spies[0].actions)


class Failing(Clock):
    """Raises at its third step."""

    def step(self, env_state: Any, action: Any) -> Any:
        if self.time[0] == 2:
            raise RuntimeError("the evaluation broke")
        return super().step(env_state, action)


def test_an_evaluation_that_raises_puts_everything_back(torch_engine: Any):
    network = make_network()
    sampler = network[1].sampler
    before, flags = mp.to_portable(network), [sampler.deterministic, getattr(sampler, "training", None)]
    assert flags[0] is False
    with pytest.raises(RuntimeError, match="the evaluation broke"):
        mp.eval_rollout(Failing(3), network)
    assert [sampler.deterministic, getattr(sampler, "training", None)] == flags
    support.assert_trees_close(mp.to_portable(network), before, 0.0)
    # Its random numbers are where they would have been.
    found, expected = (support.roll(Clock(3, "truncated", 2), net, 4) for net in (network, make_network()))
    support.assert_trees_close(found._replace(metrics=()), expected._replace(metrics=()), 0.0)


def test_one_that_raises_in_the_middle_of_training(torch_engine: Any):
    network = make_network()
    config = evaluation()
    run = training.train(Clock(3, "truncated", 4), network, eval_env=Failing(3), config=config, catch=(RuntimeError,))
    assert str(run.error) == "the evaluation broke"
    assert network.training
    assert not network[1].sampler.deterministic
