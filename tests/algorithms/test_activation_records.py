"""Activations of a rollout: those of the steps taken, with carries and resets as in the rollout."""

import numpy as np
import pytest
from support import assert_trees_close, to_numpy

import multippo as mp
from multippo.testing import Clock, FunctionalClock

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def network(obs_size, rngs):
    trunk = [mp.Delay(np.zeros(obs_size), 1), mp.Dense(obs_size, 4, rngs, "tanh")]
    actor = mp.Sequential([*trunk, mp.Dense(4, 2, rngs), mp.CategoricalSampler(rngs)])
    return mp.PPOAdapter(action=actor, value=mp.Dense(obs_size, 1, rngs))


def make(kind):
    if kind == "functional":
        return mp.make_env(FunctionalClock(3), num_envs=2)
    return Clock([3, 5], num_envs=2, autoreset=kind)


@pytest.mark.parametrize("kind", ["same_step", "next_step", "functional"])
def test_what_was_done_in_each_step(engine, kind):
    env = make(kind)
    size = env.observation_space.shape[0]
    net = network(size, mp.Rngs(0))
    arrays = mp.to_portable(net)
    found = mp.record_activations_rollout(env, net, 8, 1)
    delayed, hidden = (to_numpy(found.activations["action"][i]) for i in (0, 1))
    done = to_numpy(found.done)
    assert delayed.shape == (8, 2, size) and hidden.shape == (8, 2, 4) and done.shape == (8, 2)
    valid = to_numpy(found.valid)
    assert done.any() and not done.all() and valid.all() == (kind != "next_step")
    # The first step of an episode is given zeros, later ones the time of the step before, one-hot.
    for i in range(2):
        times = [0]
        for t in np.flatnonzero(valid[:, i]):
            expected = np.zeros(size)
            if times[-1]:
                expected[times[-1] - 1] = 1.0
            np.testing.assert_array_equal(delayed[t, i], expected, err_msg=f"{t} {i}")
            times.append(0 if done[t, i] else times[-1] + 1)
    expected = np.tanh(delayed @ arrays["action.layers.1.kernel"] + arrays["action.layers.1.bias"])
    np.testing.assert_allclose(hidden, expected, atol=1e-5)
    # The mode of the policy, by default, and nothing of the network changed.
    logits = to_numpy(found.activations["action"][2])
    assert (to_numpy(found.activations["action"][3]["action"]) == logits.argmax(-1)).all()
    assert not net.action[3].deterministic
    assert_trees_close(mp.to_portable(net), arrays, 0.0)
    again = mp.record_activations_rollout(env, net, 8, 1)
    assert_trees_close(again, found, 0.0)


def test_sampled_actions_and_environments_by_name(engine):
    net = network(4, mp.Rngs(0))
    found = mp.record_activations_rollout("CartPole-v1", net, 20, num_envs=3, deterministic=False)
    actions = to_numpy(found.activations["action"][3]["action"])
    logits = to_numpy(found.activations["action"][2])
    assert actions.shape == (20, 3)
    assert (actions != logits.argmax(-1)).any() and (actions == logits.argmax(-1)).any()
