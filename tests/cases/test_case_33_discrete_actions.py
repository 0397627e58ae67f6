"""Discrete actions count from where their space does; several choices at once have the product of their probabilities.

Seen in DLR-RM/stable-baselines3#2052, #2241, #1295, #2207, ray-project/ray#4866, #42196.
"""

import functools
from typing import Any

import numpy as np
import probing
import pytest
import support
from gymnasium import spaces

import multippo as mp

NUM_ENVS, STEPS = 4, 8
SPACES: dict[str, Any] = {
    "plain": spaces.Discrete(3),
    "offset": spaces.Discrete(3, start=-1),
    "single": spaces.Discrete(1, start=2),
    "several": spaces.MultiDiscrete([2, 5]),
    "several, offset": spaces.MultiDiscrete([2, 5], start=[-1, 3]),
    "several in two axes": spaces.MultiDiscrete([[2], [5]]),
    "integers, offset": spaces.Box(np.array([-1, 3]), np.array([0, 7]), dtype=np.int32),
    "integers in two axes": spaces.Box(np.array([[-128], [125]]), np.array([[-127], [127]]), dtype=np.int8),
    "one integer": spaces.Box(-2, 0, (), np.int16),
}


def make_network(action_space: spaces.Space[Any]) -> Any:
    network = mp.make_mlp_actor_critic(2, action_space, (4,), (4,), mp.Rngs(0), normalize_obs=False)
    support.fill_randomly(network)
    return network


@functools.cache
def rolled(name: str, which: str) -> tuple[np.ndarray, Any, Any]:
    """What the environments received ``[T, B, ...]``, the rollout, and its replay."""
    with mp.use_backend(name):
        return probing.received(lambda: make_network(SPACES[which]), SPACES[which], NUM_ENVS, STEPS)


def sizes_of(space: Any) -> np.ndarray:
    if isinstance(space, spaces.Box):
        return space.high.astype(int) - space.low.astype(int) + 1
    return np.asarray(space.nvec if isinstance(space, spaces.MultiDiscrete) else space.n)


@pytest.mark.parametrize("which", SPACES)
@pytest.mark.nightly_if("jax")
def test_only_valid_values_arrive_and_replay_repeats_them(engine: Any, which: str):
    space = SPACES[which]
    received, transition, replayed = rolled(engine.name, which)
    start = np.asarray(space.low if isinstance(space, spaces.Box) else space.start)
    np.testing.assert_array_equal(received, transition.network_output.actions + start)
    assert received.shape == (STEPS, NUM_ENVS, *space.shape)
    # Every choice is made at some time, as far as 32 steps go.
    sizes = sizes_of(space)
    assert (received.min((0, 1)) == start).all()
    assert (received.max((0, 1)) >= start + np.minimum(sizes, 3) - 1).all()
    assert transition.network_output.loglikelihoods.shape == (STEPS, NUM_ENVS)
    np.testing.assert_allclose(replayed.loglikelihoods, transition.network_output.loglikelihoods, atol=1e-6)
    if which == "single":  # an action without a choice is certain
        np.testing.assert_allclose(replayed.loglikelihoods, 0.0, atol=1e-7)


@pytest.mark.parametrize(
    ("plain", "offset"),
    [
        ("plain", "offset"),
        ("several", "several, offset"),
        ("several", "integers, offset"),
        ("several", "several in two axes"),
    ],
)
def test_an_offset_changes_no_likelihood(engine: Any, plain: str, offset: str):
    _, expected, _ = rolled(engine.name, plain)
    received, found, replayed = rolled(engine.name, offset)
    actions = found.network_output.actions.reshape(expected.network_output.actions.shape)
    np.testing.assert_array_equal(actions, expected.network_output.actions)
    np.testing.assert_array_equal(found.network_output.loglikelihoods, expected.network_output.loglikelihoods)
    np.testing.assert_allclose(replayed.loglikelihoods, expected.network_output.loglikelihoods, atol=1e-6)
    np.testing.assert_array_equal(received, rolled("torch", offset)[0])  # engines agree


@pytest.mark.parametrize(
    "space",
    [spaces.Tuple([spaces.Discrete(2), spaces.Discrete(3)]), spaces.Text(5), spaces.Box(0, 1024, (2,), np.int32)],
    ids=str,
)
def test_an_unsupported_space_is_refused_by_name_before_any_step(torch_engine: Any, space: spaces.Space[Any]):
    member = probing.Receiver(space)
    with pytest.raises(ValueError, match=r"(?s)(Multi|Tuple|Text|Sequence|Box).*(supported|expected|take)"):
        env = mp.make_env(lambda: member)
        mp.make_mlp_actor_critic(env.observation_space, env.action_space, (4,), (4,), mp.Rngs(0))
    assert not member.actions
