"""An episode starts with fresh ``info``; a time limit is found under whichever name the wrapper writes it.

Seen in google-deepmind/mujoco_playground#62, google/brax#422.
"""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
import support
from gymnasium import spaces

import multippo as mp
from multippo.testing import TableNet
from multippo.testing.environments import State

LENGTH = 3


class Phase:
    """Shows the phase that it keeps in ``info``; has no limit of its own."""

    action_space = spaces.Discrete(2)
    action_size, observation_size = 1, 10

    def reset(self, key: Any) -> State:
        del key
        return self._at({"phase": jnp.zeros((), jnp.int32), "last_action": jnp.zeros((), jnp.int32)})

    def step(self, state: State, action: Any) -> State:
        changed = {"phase": state.info["phase"] + 1, "last_action": jnp.asarray(action, jnp.int32) + 1}
        return self._at({**state.info, **changed}, state.metrics)

    def _at(self, info: Any, metrics: Any = None) -> State:
        one_hot = jnp.eye(10)[jnp.minimum(info["phase"], 9)]
        obs = one_hot + jnp.where(info["last_action"] > 0, 100.0, 0.0) * (info["phase"] == 0)
        return State(obs, jnp.ones(()), jnp.zeros(()), info, metrics or {})


class Limit:
    """Ends episodes by time, and says so under a name."""

    def __init__(self, env: Any, key: str | None) -> None:
        self.env, self.key, self.action_space = env, key, env.action_space
        self.episode_length = LENGTH

    def reset(self, key: Any) -> State:
        state = self.env.reset(key)
        info = {**state.info, "steps": jnp.zeros(())}
        return state._replace(info=info if self.key is None else {**info, self.key: jnp.zeros(())})

    def step(self, state: State, action: Any) -> State:
        after = self.env.step(state, action)
        steps = state.info["steps"] + 1
        over = jnp.where(steps >= LENGTH, 1.0, 0.0)
        info = {**after.info, "steps": steps}
        if self.key is not None:
            info[self.key] = over
        return after._replace(done=jnp.maximum(after.done, over), info=info)


WRAPPED = {
    "the adapter's own limit": lambda: mp.make_env(Phase(), num_envs=2, episode_length=LENGTH),
    "brax's name": lambda: mp.make_env(Limit(Phase(), "truncation"), num_envs=2),
    "another name": lambda: mp.make_env(Limit(Phase(), "truncated"), num_envs=2),
    "a third name": lambda: mp.make_env(Limit(Phase(), "time_out"), num_envs=2),
    "a name of one's own": lambda: mp.make_env(Limit(Phase(), "late"), num_envs=2, truncation_key="late"),
}


@pytest.mark.parametrize("make", WRAPPED.values(), ids=WRAPPED)
@pytest.mark.nightly
def test_time_limits_are_cuts_and_episodes_start_at_phase_0(engine: Any, make: Any):
    transition = support.roll(make(), TableNet([0.5 * number for number in range(10)]), 9)
    assert not transition.terminated.any()
    for index in range(2):
        np.testing.assert_array_equal(np.flatnonzero(transition.truncated[:, index]) + 1, [3, 6, 9])
        # The phase, and no last action left over from the episode before.
        np.testing.assert_array_equal(transition.obs[:, index], np.eye(10)[np.arange(9) % LENGTH])
    np.testing.assert_allclose(transition.bootstrap_values[2::3], 1.5)


def test_brax_itself():
    envs = pytest.importorskip("brax.envs")
    from brax.envs.wrappers import training

    for wrapped in (
        training.EpisodeWrapper(envs.get_environment("fast"), LENGTH, 1),
        envs.create("fast", episode_length=LENGTH),  # with brax's own batching-free automatic reset around it
    ):
        env = mp.make_env(wrapped, num_envs=2)
        state, cut, ended = env.reset(0), [], []
        for time in range(1, 10):
            state = env.step(state, jnp.zeros((2, 1)))
            cut += [time] * bool(state.truncated.all())
            ended += [time] * bool(state.terminated.any())
        assert (cut, ended) == ([3, 6, 9], [])


def test_a_limit_of_which_nothing_is_said_is_refused_or_told():
    with pytest.raises(ValueError, match=r"limit of its own \(3 steps\).*truncation_key"):
        mp.make_env(Limit(Phase(), "late"), num_envs=2)
    hiding = Limit(Phase(), "late")
    del hiding.episode_length  # its length can't be read from outside
    with pytest.warns(UserWarning, match="truncation_key"):
        mp.make_env(hiding, num_envs=2)
    with pytest.raises(ValueError, match="'tuncation' is not in the info"):
        mp.make_env(Limit(Phase(), "truncation"), num_envs=2, truncation_key="tuncation")
