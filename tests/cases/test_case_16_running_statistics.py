"""Statistics stand still between rollout and replay, and then count every stored sample once.

Seen in leggedrobotics/rsl_rl#225, chainer/chainerrl#430, ray-project/ray#1081.
"""

from typing import Any

import numpy as np
import pytest
import support
import training
from gymnasium import spaces

import multippo as mp
from multippo.testing import Clock, Spy

FEATURES, NUM_ENVS, STEPS = 4, 4, 4


class Wide(Clock):
    """Observations of scale 1000 and offset 5; episodes of 3 steps."""

    def __init__(self, autoreset: Any = "same_step") -> None:
        super().__init__(3, "truncated", NUM_ENVS, autoreset)
        self.observation_space = spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32)

    def _observe(self) -> np.ndarray:
        return (5 + 1e3 * self._rng.normal(size=(NUM_ENVS, FEATURES))).astype(np.float32)


def seen(env: Spy) -> np.ndarray:
    """What the policy was shown at each real step, ``[N, features]``."""
    valid = np.stack([state.valid for state in env.states[1:]])
    return np.stack([state.obs for state in env.states[:-1]])[valid].astype(np.float64)


def assert_statistics(normalizer: Any, samples: np.ndarray) -> None:
    assert normalizer.count == len(samples)
    deviation = samples.std(0)
    np.testing.assert_allclose(
        support.to_numpy(normalizer.mean[...]) / deviation, samples.mean(0) / deviation, atol=1e-5
    )
    np.testing.assert_allclose(support.to_numpy(normalizer.variance), samples.var(0), rtol=1e-4)


@pytest.mark.parametrize("autoreset", ["next_step", "same_step"])
@pytest.mark.nightly_if("jax")
def test_at_the_front(engine: Any, autoreset: str):
    network = mp.Sequential([mp.Normalizer(FEATURES), support.actor_critic(FEATURES)])
    env = Spy(Wide(autoreset))
    counts: list[int] = []

    def on_log(metrics: dict[str, float]) -> None:
        counts.append(len(seen(env)))
        assert metrics["step"] == counts[-1]

    run = training.train(env, network, num_epochs=3, learning_rate=3e-3, on_log=on_log)
    # Of 3 iterations of 4 x 4 steps all count, or those that are no resets: each fourth step of each environment.
    assert counts == ([16, 32, 48] if autoreset == "same_step" else [12, 24, 36])
    assert max(run.column("ratio/first_max_dev")) <= 1e-6
    assert min(run.column("ratio/last_max_dev")) > 1e-4  # it learns
    assert_statistics(network[0], seen(env))


@pytest.mark.nightly_if("jax")
def test_behind_an_encoder_and_a_delay(engine: Any):
    encoder = mp.Dense(FEATURES, 3, mp.Rngs(0))
    network = mp.Sequential([encoder, mp.Delay(np.zeros(3, np.float32), 1), mp.Normalizer(3), support.actor_critic(3)])
    support.fill_randomly(network)
    mp.load_portable(network[2], mp.to_portable(mp.Normalizer(3)))
    weights = mp.to_portable(encoder)
    env = Spy(Wide())
    # The weights stand still, so that what the encoder yields can be computed afterwards.
    run = training.train(env, network, learning_rate=0.0)
    assert max(run.column("ratio/last_max_dev")) <= 1e-6
    obs = np.stack([state.obs for state in env.states[:-1]]).astype(np.float64)
    encoded = obs @ weights["kernel"] + weights["bias"]
    late = np.concatenate([np.zeros_like(encoded[:1]), encoded[:-1]])
    late[::3] = 0.0  # an episode starts
    assert_statistics(network[2], late.reshape(-1, 3))
