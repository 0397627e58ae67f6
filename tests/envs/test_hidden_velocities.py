import warnings

import gymnasium
import numpy as np
import pytest

from multippo.envs import hidden_velocities
from multippo.envs.host.vector_forms import vectorize_id


def test_registering_twice_is_quiet():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        hidden_velocities.register()
        hidden_velocities.register()


@pytest.mark.parametrize("vectorization", ["native", "sync"])
def test_cartpole_shows_position_and_angle(vectorization):
    hidden_velocities.register()
    hidden = vectorize_id(gymnasium.spec(hidden_velocities.CARTPOLE_ID), 3, vectorization)
    full = vectorize_id(gymnasium.spec("CartPole-v1"), 3, vectorization)
    assert hidden.single_observation_space.shape == (2,)
    assert hidden.observation_space.shape == (3, 2)
    np.testing.assert_array_equal(hidden.single_observation_space.high, full.single_observation_space.high[[0, 2]])
    np.testing.assert_array_equal(hidden.reset(seed=1)[0], full.reset(seed=1)[0][:, [0, 2]])
    for t in range(60):
        action = np.array([0, 1, t % 2])
        hidden_step, full_step = hidden.step(action), full.step(action)
        np.testing.assert_array_equal(hidden_step[0], full_step[0][:, [0, 2]])
        for ours, theirs in zip(hidden_step[1:4], full_step[1:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)


def test_pendulum_shows_cosine_and_sine_and_ends_after_200_steps():
    hidden_velocities.register()
    hidden, full = gymnasium.make(hidden_velocities.PENDULUM_ID), gymnasium.make("Pendulum-v1")
    np.testing.assert_array_equal(hidden.reset(seed=1)[0], full.reset(seed=1)[0][:2])
    for t in range(200):
        action = np.array([np.sin(t)], np.float32)
        obs, reward, terminated, truncated, _ = hidden.step(action)
        full_obs, full_reward, *_ = full.step(action)
        np.testing.assert_array_equal(obs, full_obs[:2])
        assert reward == full_reward
        assert not terminated
        assert truncated == (t == 199)
    assert gymnasium.spec(hidden_velocities.CARTPOLE_ID).max_episode_steps == 500
