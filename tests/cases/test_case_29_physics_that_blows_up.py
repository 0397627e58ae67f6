"""One environment's NaN does not poison the run.

Seen in mujocolab/mjlab#174 and #224, akanazawa/fpo#4, google/brax#467, isaac-sim/IsaacLab#4570.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import FunctionalClock, Spy, TableNet

NUM_ENVS, BAD, ROLLOUT = 4, probing.Faulty.BAD, 6


def blowing(autoreset: Any = "same_step", obs: int = 5, reward: int = 9) -> Any:
    """Environment 2 shows NaN after one step and pays infinity for another."""
    return probing.Faulty({"obs": obs, "reward": reward}, autoreset=autoreset)


def make_network() -> Any:
    network = mp.Sequential([mp.Normalizer(21), support.actor_critic(21)])
    support.fill_randomly(network, 3)
    return network


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.nightly_if("jax")
def test_a_host_environment(engine: Any, autoreset: Any):
    network, spy = make_network(), Spy(blowing(autoreset))
    run = training.train(spy, network, iterations=3, rollout_length=ROLLOUT)
    assert run.column("rollout/nonfinite_steps") == [1, 1, 0]
    support.assert_finite(network)
    # All that the network saw counts, broken steps too, whose own observations were finite; 3 were there before.
    assert network[0].count == 3 + 3 * ROLLOUT * NUM_ENVS
    assert np.isnan(run.column("rollout/episode_length/mean")).all()  # an accident ends no episode that counts
    for line in run.logs:
        assert np.isfinite(line["losses/total"]), line

    # The clock tells when each environment was reset: the third after its fifth and ninth step, the others never.
    shown = np.array([state.obs.argmax(-1) for state in spy.states if np.isfinite(state.obs).all()])
    sound = shown[:, [0, 1, 3]]
    assert set(np.diff(sound, axis=0).ravel()) <= {0, 1}
    assert (np.diff(shown[:, BAD]) < 0).sum() == 2


def test_the_other_environments_data_are_untouched(torch_engine: Any):
    network, found = make_network(), []
    for faults in ((5, 9), (0, 0)):
        found.append(support.roll(blowing(obs=faults[0], reward=faults[1]), network, 12))
    for name, with_fault in support.named_leaves(found[0]):
        without = dict(support.named_leaves(found[1]))[name]
        others = [0, 1, 3]
        np.testing.assert_array_equal(with_fault[:, others], without[:, others], err_msg=name)
        assert np.isfinite(with_fault).all(), name


@pytest.mark.nightly_if("jax")
def test_a_broken_step_is_not_a_sample(engine: Any):
    # Environment 2 shows the times 0 and 1, and after its restart 0 and 1; the first 1 does not count. Gamma is 0.
    env, network = probing.Faulty({"reward": 2}), TableNet([0.0] * 21)
    run = training.train(env, network, rollout_length=4, **probing.ONE_STEP, discounting_factor=0.0)
    np.testing.assert_allclose(probing.advantages_of(network, run, 15)[:5], [5, 4, 3, 3, 0], rtol=1e-5)


class Blown(FunctionalClock):
    """Two in five episodes blow up in their third step."""

    def reset(self, key: Any) -> Any:
        state = super().reset(key)
        return state._replace(info={**state.info, "bad": jax.random.uniform(key) < 0.4})

    def step(self, state: Any, action: Any) -> Any:
        after, bad = super().step(state, action), state.info["bad"]
        obs = jnp.where(bad & (state.info["time"] == 2), jnp.nan, after.obs)
        return after._replace(obs=obs, info={**after.info, "bad": bad})


@pytest.mark.nightly_if("jax")
def test_a_functional_environment(engine: Any):
    network, env = make_network(), mp.make_env(Blown(20), num_envs=8)
    found, replayed = support.rolled_and_replayed(env, network, 2 * ROLLOUT)
    broken, times = found.broken > 0, found.obs.argmax(-1)
    assert 0 < broken.sum() < broken.size / 2
    np.testing.assert_array_equal(times[broken], 2)
    np.testing.assert_array_equal(times[1:][broken[:-1]], 0)
    np.testing.assert_array_equal(found.truncated, broken)
    np.testing.assert_array_equal(found.rewards, np.where(broken, 0, 1))
    assert np.isfinite(found.obs).all()
    assert not found.terminated.any()
    np.testing.assert_allclose(replayed.loglikelihoods, found.network_output.loglikelihoods, atol=1e-6)
    run = training.train(env, network, iterations=3, rollout_length=ROLLOUT)
    assert 0 < sum(run.column("rollout/nonfinite_steps")) < 3 * 8
    support.assert_finite(network)
