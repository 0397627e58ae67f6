"""Rollouts by straight code are those of the network on its engine."""

import logging
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Discrete
from multippo.conformance.specimens.network_specimens import NETWORKS
from multippo.conformance.specimens.scripted_environment import ScriptedEnv
from multippo.conformance.specimens.specimen import randomise

import multippo as mp
from multippo.algorithms import rollout
from multippo.trees import named_leaves


def rolled(env: Any, network: Any) -> list[tuple[str, np.ndarray]]:
    """Carry after the rollout and transition, by name."""
    engine = network.engine
    state, _, transition = mp.unroll_env(env, env.reset(0), network, network.initialize_state(env.num_envs), 12, 0)
    return [(name, np.array(engine.to_numpy(leaf))) for name, leaf in named_leaves((state, transition._asdict()))]


CHOSEN = ("LSTM, masked actions, skipped steps", "nested containers, dict observations, actions and rewards")


@pytest.mark.parametrize("specimen", [one for one in NETWORKS if one.name in CHOSEN], ids=lambda one: one.name)
def test_the_whole_transition_is_the_engines(specimen: Any, torch_engine: Any, monkeypatch: pytest.MonkeyPatch):
    network = specimen.build()
    randomise(network, specimen.obs_statistics)
    found = rolled(specimen.env(), network)
    monkeypatch.setattr(rollout, "may_go_straight", lambda *_: False)
    expected = rolled(specimen.env(), network)
    assert [name for name, _ in found] == [name for name, _ in expected]
    for (name, one), (_, other) in zip(found, expected, strict=True):
        assert one.dtype == other.dtype, name
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=name)


class Looking(mp.StatefulModule):
    """A module whose way depends on its input's values."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, x if bool(self.xp.any(x > 0)) else x + 1.0)


class Halved(mp.StatefulModule):
    """A module that computes something else on other arrays than the engine's."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, x if self.engine.name == "torch" else x / 2)


@pytest.mark.parametrize(("module", "reason"), [(Looking, "depends on the values"), (Halved, "straight code computes")])
def test_another_network_acts_on_its_engine(
    module: Any, reason: str, torch_engine: Any, caplog: pytest.LogCaptureFixture
):
    env = ScriptedEnv((5,), Discrete(3))
    network = mp.Sequential([module(), mp.make_mlp_actor_critic(5, Discrete(3), (4,), (4,), mp.Rngs(0))])
    randomise(network)
    with caplog.at_level(logging.DEBUG, "multippo"):
        found = rolled(env, network)
    assert reason in caplog.text
    assert all(np.isfinite(leaf).all() for _, leaf in found if leaf.dtype.kind == "f")
