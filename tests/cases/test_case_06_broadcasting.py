"""Values of shape (B, 1) are not regressed on returns of shape (B,) as if they were (B, B).

Seen in RLinf/RLinf#1568, google-research/batch-ppo#45.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training
from gymnasium import spaces

import multippo as mp
from multippo.testing import Clock, Spy, TableNet

VALUES = [1.0, -2.0, 3.0, 0.5]


class Column(TableNet):
    """Its values keep a trailing axis."""

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        memory, logits, value = super().heads(memory, x)
        return memory, logits, value[..., None]


class LikelihoodColumn(TableNet):
    """Its log-likelihoods keep a trailing axis."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        out = super().__call__(state, x, rollout_extras)
        output = out.output._replace(loglikelihoods=out.output.loglikelihoods[..., None])
        return out._replace(output=output)


class Value(mp.StatefulModule):
    """A table of values, with a trailing axis or without."""

    def __init__(self, squeezed: bool) -> None:
        self.values, self.squeezed = mp.Param(np.asarray(VALUES)), squeezed

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        value = x @ self.values[...]
        return mp.StatefulModuleOutput(state, value if self.squeezed else value[..., None])


@pytest.mark.nightly_if("jax")
def test_the_adapter_squeezes(engine: Any):
    runs = []
    for squeezed in (True, False):
        network = support.actor_critic(4)
        network.value = Value(squeezed)
        support.fill_randomly(network)
        runs.append(training.train(Clock(3, "truncated", 3), network, rollout_length=4, **probing.ONE_STEP))
    for name in ("losses/critic", "losses/actor", "losses/total", "gradient/norm"):
        assert runs[1].column(name) == pytest.approx(runs[0].column(name), rel=1e-6)
    assert runs[0].column("losses/critic")[0] > 0.1


@pytest.mark.parametrize("kind", [Column, LikelihoodColumn])
def test_a_network_without_it_is_refused_with_both_shapes(engine: Any, kind: Any):
    env = Spy(Clock(3, "truncated", 3))
    with pytest.raises(ValueError, match=r"shape \(3, 1\).*\(3,\)"):
        training.train(env, kind(VALUES))
    assert not env.actions


def test_one_action_dimension_has_one_log_likelihood(engine: Any):
    env = Clock(3, "truncated", 3)
    env.action_space = spaces.Box(-1, 1, (1,), np.float32)
    stored, found = support.rolled_and_replayed(env, support.actor_critic(4, "NormalTanhSampler"), 5)
    for output in (stored.network_output, found):
        assert output.loglikelihoods.shape == output.value_estimates.shape == (5, 3)
        assert output.actions.shape == (5, 3, 1)
