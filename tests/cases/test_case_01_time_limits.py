"""A time limit is no end of the world: the last step of a cut episode is worth what its final observation is worth.

Seen in DLR-RM/stable-baselines3#651 and #633, vwxyzjn/cleanrl#198, leggedrobotics/rsl_rl#151 and #20,
Unity-Technologies/ml-agents#574.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, FunctionalClock, TableNet

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


ENVS = {
    "ends with the rollout": lambda end: probing.Script([[0], [0], [CODE[end]]]),
    # Here the episode ends inside the rollout.
    **{
        mode: lambda end, mode=mode: probing.gymnasium_env(lambda _: probing.Numbered(3, end, 8), mode)
        for mode in probing.modes
    },
    # Its first observation is the same in every episode, so the next episode's is worth 10 as well, never 20.
    "functional": lambda end: mp.make_env(FunctionalClock(3, end), num_envs=1),
}


@pytest.mark.parametrize(
    ("kind", "end"),
    [
        *((kind, end) for kind in ENVS for end in ("truncated", "terminated")),
        *((kind, "both") for kind in probing.modes),
    ],
)
@pytest.mark.nightly_if(*(f"jax-{kind}-{end}" for kind in (*probing.modes, "functional") for end in ADVANTAGES))
def test_training_learns_from_the_right_advantages(engine: Any, kind: str, end: str):
    env = ENVS[kind](end)
    network = TableNet(values_for(env)[: env.observation_space.shape[0]])
    steps = 3 if kind in ("functional", "ends with the rollout") else 5
    run = training.train(env, network, rollout_length=steps, **probing.ONE_STEP, **GAMMA)
    found = probing.advantages_of(network, run, run.logs[0]["step"])
    np.testing.assert_allclose(found[:3], ADVANTAGES[end], rtol=1e-5)
    assert not found[3]  # the final observation is not a sample
    if steps == 3:  # The actor's loss, by another way: minus the mean.
        assert run.column("losses/actor") == [pytest.approx(-np.mean(ADVANTAGES[end]), rel=1e-5)]


@pytest.mark.nightly_if("jax")
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
