"""Replay resets the carry after the very step after which the rollout did.

Seen in LARG/jax-aht#115, instadeepai/Mava#1006, PKU-MARL/HARL#75.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.testing import CountNet

STEPS = 7
# One environment each: ends at steps 2 and 4; at the first step; at the last; at two in a row; at every step; at none.
PLACES: tuple[tuple[int, ...], ...] = ((2, 4), (0,), (6,), (2, 3), tuple(range(7)), ())


def plan(kind: str) -> np.ndarray:
    """``[T, B]`` ends: terminations, cuts, or both by turns."""
    ends = np.zeros((2 * STEPS, len(PLACES)), int)
    for env, places in enumerate(PLACES):
        for number, place in enumerate(places):
            ends[place, env] = {"terminated": 1, "truncated": 2, "mixed": 1 + number % 2}[kind]
    return ends


def counts(ends: np.ndarray, steps: int) -> np.ndarray:
    """Steps since the reset, ``[T, B]``, counted in Python."""
    count, rows = np.zeros(ends.shape[1]), []
    for time in range(steps):
        rows.append(count.copy())
        count = np.where(ends[time] > 0, 0, count + 1)
    return np.stack(rows)


def make_network(name: str, features: int) -> Any:
    if name == "count":
        return CountNet()
    network = mp.Sequential([mp.LSTM(features, 5, mp.Rngs(0)), support.actor_critic(5)])
    support.fill_randomly(network)
    return network


def compare(network: Any, env: Any, state: Any, env_state: Any, steps: int) -> tuple[Any, Any, mp.Transition]:
    """One rollout and its replay, compared at each step of each environment."""
    after, env_state, transition = mp.unroll_env(env, env_state, network, state, steps, mp.random.key(0))
    run = support.compiled(network, lambda net, s, t: mp.replay(net, s, t))
    found, stored = support.to_numpy(run(state, transition)), support.to_numpy(transition)
    for name in ("loglikelihoods", "value_estimates"):
        got, expected = getattr(found, name), getattr(stored.network_output, name)
        off = np.where(stored.valid, np.abs(got - expected), 0.0)
        worst = np.unravel_index(off.argmax(), off.shape)
        assert off.max() <= 1e-6, f"{name} is off by {off.max()} at (step, environment) {worst}"
        # The steps on both sides of an end, by themselves: a mean would hide them.
        beside = stored.done.copy()
        beside[1:] |= stored.done[:-1]
        assert beside.any()
        np.testing.assert_allclose(got[beside & stored.valid], expected[beside & stored.valid], atol=1e-6)
    return after, env_state, stored


@pytest.mark.parametrize("network_name", ["count", "lstm"])
@pytest.mark.parametrize(("kind", "autoreset"), [("mixed", "same_step"), ("truncated", "next_step")])
def test_replay_repeats_every_step(engine: Any, network_name: str, kind: str, autoreset: str):
    ends = plan(kind)
    env = probing.Script(ends, autoreset=autoreset)
    network = make_network(network_name, env.observation_space.shape[0])
    state, env_state = network.initialize_state(len(PLACES)), env.reset(0)
    _, _, stored = compare(network, env, state, env_state, STEPS)
    for index in range(len(PLACES)):
        steps = stored.valid[:, index]
        assert steps.all() or autoreset == "next_step"
        for code, flags in ((1, stored.terminated), (2, stored.truncated)):
            np.testing.assert_array_equal(flags[steps, index], ends[: steps.sum(), index] == code)
        # Each end is followed by one step that is none.
        np.testing.assert_array_equal(~steps[1:], stored.done[:-1, index] & (autoreset == "next_step"))
    if network_name == "count":
        # And what is repeated is right: 10 + count.
        for index in range(len(PLACES)):
            steps = stored.valid[:, index]
            expected = 10 + counts(ends, STEPS)[: steps.sum(), index]
            np.testing.assert_array_equal(stored.network_output.value_estimates[steps, index], expected)


@pytest.mark.nightly_if("jax")
def test_a_second_rollout_that_starts_within_episodes(engine: Any):
    env = probing.Script(plan("mixed"))
    network = make_network("lstm", env.observation_space.shape[0])
    state, env_state = network.initialize_state(len(PLACES)), env.reset(0)
    for steps in (3, 3):  # the first rollout stops in the middle of episodes
        state, env_state, _ = compare(network, env, state, env_state, steps)


ENVS = {
    "same_step": lambda: probing.Script(plan("mixed")),
    "next_step": lambda: probing.Script(plan("mixed"), autoreset="next_step"),
    "a broken step": lambda: probing.Faulty({"obs": 4}, [2, 3, 5, 4], "next_step"),
}


@pytest.mark.parametrize("kind", ENVS)
@pytest.mark.parametrize(("name", "length"), [("jax", 3), ("torch", 3), ("torch", 6), ("torch", 2)])
@pytest.mark.nightly_if("jax")
def test_training_sequences_cut_within_episodes(name: str, length: int, kind: str):
    with mp.use_backend(name):
        options = {**probing.ONE_STEP, "iterations": 2, "num_epochs": 2, "num_minibatches": 2}
        run = training.train(ENVS[kind](), CountNet(), rollout_length=6, sequence_length=length, **options)
    assert run.column("ratio/first_max_dev") == pytest.approx([0.0, 0.0], abs=1e-6)
    assert run.column("ratio/last_max_dev") == pytest.approx([0.0, 0.0], abs=1e-6)
