"""The action that is stored and replayed is the one that was sampled, not the one the environment clipped or scaled.

Seen in thu-ml/tianshou#312, vwxyzjn/cleanrl#240.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import probing
import pytest
import support
import training
from gymnasium import spaces

import multippo as mp

LOW, HIGH = np.array([-0.4, 0.0], np.float32), np.array([0.4, 5.0], np.float32)
SAMPLERS = [name for name in ("NormalTanhSampler", "NormalSampler") if hasattr(mp, name)]


class Strict(gymnasium.Env[Any, Any]):
    """Keeps the actions it receives, and refuses those out of bounds."""

    action_space = spaces.Box(LOW, HIGH)
    observation_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self) -> None:
        self.actions: list[np.ndarray] = []

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.actions.append(np.array(action))
        assert (action >= LOW).all()
        assert (action <= HIGH).all()
        return np.ones(1, np.float32), float(action.sum()), False, False, {}


def make_network(sampler: str, mean: float) -> Any:
    rngs = mp.Rngs(0)
    head = mp.Dense(1, 4, rngs)
    mp.load_portable(head, {"kernel": np.zeros((1, 4)), "bias": np.array([mean, -mean, 0.3, -0.3])})
    action = mp.Sequential([head, getattr(mp, sampler)(rngs)])
    return mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("mean", [30.0, 1.5])  # every action at the bounds; some of them
def test_likelihoods_and_bounds_hold_together(engine: Any, sampler: str, mean: float):
    members = [Strict() for _ in range(4)]
    env = probing.gymnasium_env(lambda index: members[index], num_envs=4)
    network = make_network(sampler, mean)
    state = network.initialize_state(4)
    _, _, transition = mp.unroll_env(env, env.reset(0), network, state, 8, mp.random.key(0))
    found = support.to_numpy(mp.replay(network, state, transition))
    stored = support.to_numpy(transition)
    ratio = np.exp(found.loglikelihoods.astype(float) - stored.network_output.loglikelihoods)
    np.testing.assert_allclose(ratio, 1.0, atol=1e-6)
    seen = np.stack([member.actions for member in members], axis=1)
    assert seen.shape == (8, 4, 2)
    if mean == 30.0:
        np.testing.assert_array_equal(seen, np.broadcast_to([HIGH[0], LOW[1]], seen.shape))
    # What was sampled was not clipped: raw samples lie around the mean, far outside of [-1, 1].
    (raw,) = (leaf for leaf in support.tree_leaves(stored.rollout_extras))
    np.testing.assert_allclose(raw.mean((0, 1)), [mean, -mean], atol=1.0)
    assert raw.std((0, 1)).min() > 0.1


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_no_ratio_moves_without_learning(torch_engine: Any, sampler: str):
    env = probing.gymnasium_env(lambda _: Strict(), num_envs=4)
    network = make_network(sampler, 30.0)
    run = training.train(env, network, learning_rate=0.0, num_epochs=3, num_minibatches=4)
    assert max(run.column("ratio/first_max_dev") + run.column("ratio/last_max_dev")) <= 1e-6
