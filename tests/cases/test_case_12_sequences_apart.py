"""No environment's memory flows into another's, however sequences are laid out.

Seen in Stable-Baselines-Team/stable-baselines3-contrib#284, #285, leggedrobotics/rsl_rl#12, pytorch/rl#3711.
"""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp
from multippo.testing import Clock
from multippo.trees import tree_map

NUM_ENVS, STEPS = 3, 4
LENGTHS = {
    "ends at different steps": (2, 3, 9),
    "every episode is shorter than the rollout": (1, 2, 3),
    "no episode ends": (9, 9, 9),
}


class Ramp(Clock):
    """Shows 100 times the environment's number plus the time, scaled so that no unit saturates."""

    def __init__(self, lengths: tuple[int, ...], end: str, autoreset: str) -> None:
        super().__init__(lengths, end, len(lengths), autoreset)  # type: ignore[arg-type]
        self.observation_space = mp.testing.Goal().observation_space

    def _observe(self) -> np.ndarray:
        return ((100 * np.arange(self.num_envs) + self.time) / 300)[:, None].astype(np.float32)


def make_network() -> Any:
    network = mp.Sequential([mp.LSTM(1, 4, mp.Rngs(0), trainable_initial_state=True), support.actor_critic(4)])
    support.fill_randomly(network, scale=0.8)
    return network


def one_by_one(network: Any, state: Any, transition: mp.Transition) -> dict[str, np.ndarray]:
    """Outputs ``[T, B]`` by a loop over environments, and over the steps of each, alone in its batch."""
    step = support.compiled(network, lambda net, s, x, extras: tuple(net(s, x, extras))[:2])
    reset = support.compiled(network, lambda net, s: net.reset_state(s))
    found = {name: np.zeros(tuple(transition.done.shape)) for name in ("loglikelihoods", "value_estimates")}
    for env in range(transition.done.shape[1]):
        alone = tree_map(lambda leaf, env=env: leaf[env : env + 1], state)
        for time in range(transition.done.shape[0]):
            if not bool(transition.valid[time, env]):
                continue
            here = lambda leaf, env=env, time=time: leaf[time, env : env + 1]  # noqa: E731
            alone, output = step(alone, here(transition.obs), tree_map(here, transition.rollout_extras))
            for name, values in found.items():
                values[time, env] = support.to_numpy(getattr(output, name))[0]
            alone = reset(alone) if bool(transition.done[time, env]) else alone
    return found


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("lengths", LENGTHS.values(), ids=LENGTHS)
@pytest.mark.nightly_if("jax")
def test_replay_equals_a_loop_over_one_environment_at_a_time(engine: Any, lengths: tuple[int, ...], autoreset: str):
    env, network = Ramp(lengths, "truncated", autoreset), make_network()
    state = network.initialize_state(NUM_ENVS)
    # A rollout before, so that the one that counts starts from memories that differ.
    state, env_state, _ = mp.unroll_env(env, env.reset(0), network, state, 2, mp.random.key(0))
    _, _, transition = mp.unroll_env(env, env_state, network, state, STEPS, mp.random.key(1))
    expected = one_by_one(network, state, transition)
    valid = support.to_numpy(transition.valid)
    run = support.compiled(network, lambda net, s, t: mp.replay(net, s, t))
    for rows in ([0, 1, 2], [2, 0], [1]):  # all; a permuted part, as a minibatch takes it; one
        index = network.engine.asarray(np.asarray(rows))
        part = transition._replace(metrics={})
        part = tree_map(lambda leaf, index=index: network.xp.take(leaf, index, axis=1), part)
        start = tree_map(lambda leaf, index=index: network.xp.take(leaf, index, axis=0), state)
        found = support.to_numpy(run(start, part))
        for name, values in expected.items():
            off = np.where(valid, values, 0.0)[:, rows] - np.where(valid[:, rows], getattr(found, name), 0.0)
            assert np.abs(off).max() <= 1e-6, (name, rows, np.unravel_index(np.abs(off).argmax(), off.shape))
    # Environments do see different things, and memory matters.
    assert np.ptp(expected["value_estimates"][0]) > 1e-3
