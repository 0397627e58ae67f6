"""Replay before any update repeats the rollout, step by step and environment by environment."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import pytest
import support

import multippo as mp
from multippo.algorithms.minibatches import make_sequences, take_sequences
from multippo.algorithms.rollout import Actor, collect
from multippo.testing import Clock, CountNet, FunctionalClock, NoisyNet
from multippo.trees import tree_map

# Ends at every step; at the first and in a row; at steps 2 and 4 and at the last of 6; nowhere.
LENGTHS = (1, 2, 3, 50)
STEPS = 6
FEATURES = 51


def lstm() -> Any:
    network = mp.make_recurrent_actor_critic(
        FEATURES,
        gymnasium.spaces.Discrete(2),
        hidden_features=5,
        encoder_sizes=(4,),
        actor_hidden_sizes=(),
        critic_hidden_sizes=(),
        rngs=mp.Rngs(0),
    )
    support.fill_randomly(network)
    return network


NETWORKS = {"count": CountNet, "noisy": lambda: NoisyNet(FEATURES, 2, mp.Rngs(0)), "lstm": lstm}
CASES = [
    (name, kind, autoreset)
    for name in support.ENGINES
    for kind, autoreset in (("count", "same_step"), ("noisy", "next_step"), ("lstm", "same_step"))
] + [("torch", "lstm", "next_step")]


@functools.cache
def replayed(name: str, kind: str, autoreset: str) -> tuple[Any, ...]:
    """A network, its carry from before a rollout, the rollout, and its replay."""
    with mp.use_backend(name) as engine:
        env, network = Clock(LENGTHS, "truncated", len(LENGTHS), autoreset), NETWORKS[kind]()
        env_state, state = env.reset(0), network.initialize_state(len(LENGTHS))
        # A first rollout, so that carry and episodes are under way.
        state, env_state, _ = mp.unroll_env(env, env_state, network, state, 5, mp.random.key(0))
        _, _, transition = mp.unroll_env(env, env_state, network, state, STEPS, mp.random.key(1))
        out = engine.jit(lambda s, t: mp.replay(network, s, t))(state, transition)
        return network, state, transition, support.to_numpy(out)


@pytest.mark.parametrize(("name", "kind", "autoreset"), CASES)
def test_replay_repeats_the_rollout(name, kind, autoreset):
    _, _, transition, out = replayed(name, kind, autoreset)
    stored, valid = support.to_numpy(transition.network_output), support.to_numpy(transition.valid)
    for field in ("loglikelihoods", "value_estimates", "actions"):
        deviation = np.where(valid, np.abs(getattr(out, field) - getattr(stored, field)), 0.0)
        worst = np.unravel_index(deviation.argmax(), deviation.shape)
        assert deviation.max() <= 1e-5, f"{field} differs by {deviation.max()} at (t, env) = {worst}"
    # The policy is not the same everywhere, or this would show little.
    assert np.ptp(stored.loglikelihoods[valid]) > 0.05


@pytest.mark.parametrize(("name", "kind", "autoreset"), CASES)
def test_replay_is_a_loop_over_one_environment_at_a_time(name, kind, autoreset):
    network, state, transition, out = replayed(name, kind, autoreset)
    step, reset = loop_functions(network.engine, network)
    done, valid = support.to_numpy(transition.done), support.to_numpy(transition.valid)
    for env in range(len(LENGTHS)):
        row = slice(env, env + 1)
        carry = tree_map(lambda x, row=row: x[row], state)
        for t in np.flatnonzero(valid[:, env]):
            obs, extras = tree_map(lambda x, t=t, row=row: x[t, row], (transition.obs, transition.rollout_extras))
            after, log_likelihood, value = step(carry, obs, extras)
            assert abs(float(log_likelihood[0]) - out.loglikelihoods[t, env]) <= 1e-5, (t, env)
            assert abs(float(value[0]) - out.value_estimates[t, env]) <= 1e-4, (t, env)
            carry = reset(after) if done[t, env] else after


def loop_functions(engine: Any, network: Any) -> tuple[Any, Any]:
    def step(carry: Any, obs: Any, extras: Any) -> tuple[Any, Any, Any]:
        out = network(carry, obs, extras)
        return engine.stop_gradient((out.next_state, out.output.loglikelihoods, out.output.value_estimates))

    return engine.jit(step), engine.jit(network.reset_state)


def test_a_minibatch_of_some_environments_in_another_order(engine):
    network, state, transition, out = replayed(engine.name, "lstm", "same_step")
    zeros = engine.zeros((STEPS, len(LENGTHS)))
    starts = tree_map(lambda x: x[None], state)
    sequences = make_sequences(engine.xp, transition, starts, zeros, zeros, STEPS, may_skip=False)
    index = engine.asarray(np.asarray([3, 0, 2]))
    taken = take_sequences(engine.xp, sequences, index)
    run = engine.jit(lambda s: network.unroll(s.network_state, s.obs, s.done, s.rollout_extras).output)
    found = support.to_numpy(run(taken))
    np.testing.assert_allclose(found.loglikelihoods, out.loglikelihoods[:, [3, 0, 2]], atol=1e-6)
    np.testing.assert_allclose(found.value_estimates, out.value_estimates[:, [3, 0, 2]], atol=1e-5)


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_short_sequences_start_from_their_stored_carries(engine, autoreset):
    # Sequences of 2, cut from a rollout with ends on both sides of the cuts, some of whose steps are none.
    env, network = Clock(LENGTHS, "terminated", len(LENGTHS), autoreset), CountNet()
    parts = engine.split(network)
    actor = Actor(engine, env, parts.definition, "off")
    state = network.initialize_state(len(LENGTHS))
    _, _, transition, starts = collect(actor, parts.params, parts.variables, state, env.reset(0), STEPS, 2)
    zeros = engine.zeros((STEPS, len(LENGTHS)))
    sequences = make_sequences(engine.xp, transition, starts, zeros, zeros, 2, env.may_skip)
    out = engine.jit(lambda s: network.unroll(s.network_state, s.obs, s.done, s.rollout_extras).output)(sequences)
    valid = support.to_numpy(sequences.valid)
    for found, stored in (
        (out.value_estimates, sequences.value_estimates),
        (out.loglikelihoods, sequences.loglikelihoods),
    ):
        deviation = np.abs(support.to_numpy(found) - support.to_numpy(stored))
        assert deviation[valid].max() <= 1e-6
    # 6 steps of 4 environments; a clock of 1 then skips every other step, of 2 every third, of 3 every fourth.
    assert valid.sum() == (24 if autoreset == "same_step" else 3 + 4 + 5 + 6)


def test_another_start_is_noticed(engine):
    # The same replay from a fresh carry: CountNet's values show that the carry matters.
    network, _, transition, out = replayed(engine.name, "count", "same_step")
    fresh = support.to_numpy(mp.replay(network, network.initialize_state(len(LENGTHS)), transition))
    # The fourth clock never ends: 5 steps before this rollout are missing in every one of its values.
    np.testing.assert_array_equal(out.value_estimates[:, 3] - fresh.value_estimates[:, 3], 5.0)


def test_the_bootstrap_of_a_recurrent_network(engine):
    # V(final observation) under the LSTM's carry from before the reset, computed here by a call of its own.
    network, state, transition, _ = replayed(engine.name, "lstm", "same_step")
    step, reset = loop_functions(engine, network)
    stored = support.to_numpy(transition.bootstrap_values)
    done = support.to_numpy(transition.done)
    env = 2
    final_obs = engine.asarray(np.eye(FEATURES, dtype=np.float32)[[LENGTHS[env]]])
    carry = tree_map(lambda x: x[env : env + 1], state)
    ends = 0
    for t in range(STEPS):
        obs, extras = tree_map(lambda x, t=t: x[t, env : env + 1], (transition.obs, transition.rollout_extras))
        after, *_ = step(carry, obs, extras)
        if done[t, env]:
            ends += 1
            value = float(step(after, final_obs, extras)[2][0])
            wrong = float(step(reset(after), final_obs, extras)[2][0])
            assert stored[t, env] == pytest.approx(value, abs=1e-5)
            assert abs(value - wrong) > 1e-3
            after = reset(after)
        else:
            assert stored[t, env] == 0.0
        carry = after
    assert ends == 2


def test_functional_environments_replay_too(engine):
    env = mp.make_env(FunctionalClock(3, "truncated"), num_envs=2)
    network = CountNet()
    state = network.initialize_state(2)
    _, _, transition = mp.unroll_env(env, env.reset(0), network, state, 7, mp.random.key(0))
    out = engine.jit(lambda s, t: mp.replay(network, s, t))(state, transition)
    stored = transition.network_output
    for found, expected in ((out.loglikelihoods, stored.loglikelihoods), (out.value_estimates, stored.value_estimates)):
        np.testing.assert_allclose(support.to_numpy(found), support.to_numpy(expected), atol=1e-5)


def test_replay_has_gradients(engine):
    network, state, transition, _ = replayed(engine.name, "lstm", "same_step")
    grads = support.gradients(network, lambda net: engine.xp.sum(mp.replay(net, state, transition).loglikelihoods ** 2))
    actors = [name for name in grads if ".action." in f".{name}." and "kernel" in name]
    assert actors
    assert all(np.isfinite(grads[name]).all() and np.abs(grads[name]).max() > 0 for name in actors)
