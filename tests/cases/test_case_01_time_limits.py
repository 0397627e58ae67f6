"""A time limit is no end of the world: the last step of a cut episode is worth what its final observation is worth.

Seen in DLR-RM/stable-baselines3#651 and #633, vwxyzjn/cleanrl#198, leggedrobotics/rsl_rl#151 and #20,
Unity-Technologies/ml-agents#574.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.algorithms.advantages import generalized_advantages
from multippo.testing import Clock, CountNet, FunctionalClock, TableNet

# Values of the three observations, the final one, and the first of the next episode.
TABLE = [10.0, 10.0, 11.0, 20.0, 3.0]

# gamma 0.9, lambda 1, rewards 1. Cut: 1 + 0.9 * 20 - 11 = 8; 1 + 0.9 * 11 - 10 + 0.9 * 8 = 8.1; 0 + 0.9 * 8.1 = 7.29.
# Terminated: 1 - 11 = -10; 0.9 - 9 = -8.1; -7.29.
ADVANTAGES = {"truncated": [7.29, 8.1, 8.0], "terminated": [-7.29, -8.1, -10.0], "both": [-7.29, -8.1, -10.0]}
GAMMA = {"discounting_factor": 0.9, "gae_lambda": 1.0}

CODE = {"terminated": 1, "truncated": 2}


def values_for(env: Any) -> list[float]:
    size = env.observation_space.shape[0]
    return TABLE + [3.0] * (size - len(TABLE))


@pytest.mark.parametrize("end", ["truncated", "terminated"])
def test_training_learns_from_the_right_advantages(engine: Any, end: str):
    env = probing.Script([[0], [0], [CODE[end]]])
    network = TableNet(values_for(env))
    run = training.train(env, network, rollout_length=3, **probing.ONE_STEP, **GAMMA)
    found = probing.advantages_of(network, run, 3)
    np.testing.assert_allclose(found[:3], ADVANTAGES[end], rtol=1e-5)
    assert not found[3:].any()  # neither the final observation nor the next episode's is a sample
    # The actor's loss, by another way: minus the mean.
    assert run.column("losses/actor") == [pytest.approx(-np.mean(ADVANTAGES[end]), rel=1e-5)]


def advantages(network: Any, transition: Any, v_last: Any) -> np.ndarray:
    found, _ = generalized_advantages(
        network.xp,
        r_t=transition.rewards,
        v_t=transition.network_output.value_estimates,
        v_last=v_last,
        v_bootstrap_t=transition.bootstrap_values,
        terminated_t=transition.terminated,
        truncated_t=transition.truncated,
        valid_t=transition.valid,
        discount=0.9,
        gae_lambda=1.0,
    )
    return support.to_numpy(found)


def rolled(env: Any, network: Any, steps: int) -> np.ndarray:
    """The advantages of a rollout's first real steps, of environment 0."""
    state = network.initialize_state(env.num_envs)
    state, env_state, transition = mp.unroll_env(env, env.reset(0), network, state, steps, mp.random.key(0))
    obs = network.engine.from_jax(env_state.obs) if env.functional else network.engine.asarray(env_state.obs)
    v_last = network(state, obs).output.value_estimates
    found = advantages(network, transition, v_last)[:, 0]
    return found[support.to_numpy(transition.valid)[:, 0]]


@pytest.mark.parametrize("mode", list(probing.modes))
@pytest.mark.parametrize("end", ["truncated", "terminated", "both"])
def test_gymnasium_in_every_autoreset_mode(engine: Any, mode: str, end: str):
    # Here the episode ends inside the rollout; above, with its last step.
    env = probing.gymnasium_env(lambda _: probing.Numbered(3, end, 8), mode)
    np.testing.assert_allclose(rolled(env, TableNet(values_for(env)), 5)[:3], ADVANTAGES[end], rtol=1e-6)


@pytest.mark.parametrize("end", ["truncated", "terminated"])
@pytest.mark.nightly_if("jax")
def test_a_functional_environment(engine: Any, end: str):
    # Its first observation is the same in every episode, so the next episode's is worth 10 as well, never 20.
    env = mp.make_env(FunctionalClock(3, end), num_envs=2)
    np.testing.assert_allclose(rolled(env, TableNet(TABLE[:4]), 3), ADVANTAGES[end], rtol=1e-6)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_the_carry_is_the_one_from_before_the_reset(engine: Any, autoreset: str):
    # CountNet's value is 10 + steps since the reset: 10, 11, 12, and 13 for the final observation, 10 if it was reset
    # too early. 1 + 0.9 * 13 - 12 = 0.7; 1 + 0.9 * 12 - 11 + 0.9 * 0.7 = 1.43; 0.9 + 0.9 * 1.43 = 2.187.
    found = rolled(Clock(3, "truncated", autoreset=autoreset), CountNet(), 3)
    np.testing.assert_allclose(found, [2.187, 1.43, 0.7], rtol=1e-5)
    # Terminated: 1 - 12 = -11, and so on.
    found = rolled(Clock(3, "terminated", autoreset=autoreset), CountNet(), 3)
    np.testing.assert_allclose(found, [0.9 + 0.9 * -9.1, 0.8 + 0.9 * -11, -11.0], rtol=1e-5)


def test_a_recurrent_layer_values_the_final_observation_with_its_memory_of_the_episode(engine: Any):
    network = mp.make_recurrent_actor_critic(4, 2, 3, mp.Rngs(0), encoder_sizes=[], shared=True, normalize_obs=False)
    support.fill_randomly(network)
    env = Clock(3, "truncated")
    env.action_space = probing.spaces.Box(-1, 1, (2,), np.float32)
    state = network.initialize_state(1)
    _, _, transition = mp.unroll_env(env, env.reset(0), network, state, 3, mp.random.key(0))
    step = support.compiled(network, lambda net, s, x: (lambda out: (out.next_state, out.output))(net(s, x)))
    for time in range(3):
        state, _ = step(state, network.engine.asarray(np.eye(4, dtype=np.float32)[[time]]))
    _, output = step(state, network.engine.asarray(np.eye(4, dtype=np.float32)[[3]]))
    expected = support.to_numpy(output.value_estimates)
    np.testing.assert_allclose(support.to_numpy(transition.bootstrap_values)[2], expected, rtol=1e-5)
    _, output = step(network.initialize_state(1), network.engine.asarray(np.eye(4, dtype=np.float32)[[3]]))
    assert not np.allclose(support.to_numpy(output.value_estimates), expected, rtol=1e-3)
