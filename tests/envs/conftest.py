"""Environments small enough that every number they return can be worked out by hand."""

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from multippo.testing.environments import State


class Clock(gymnasium.Env):
    """Shows the time as a one-hot vector, pays 10·time + action, and ends after ``length`` steps.

    Its last observation (time = length) is shown nowhere else.
    """

    def __init__(self, length=3, end="truncated", dict_obs=False, size=10):
        self.length, self.end, self.dict_obs, self.size = length, end, dict_obs, size
        box = spaces.Box(0, 1, (size,), np.float32)
        self.observation_space = spaces.Dict({"z": box, "a": spaces.Box(0, 255, (), np.uint8)}) if dict_obs else box
        self.action_space = spaces.Discrete(5)
        self.time = 0

    def _obs(self):
        one_hot = np.zeros(self.size, np.float32)
        one_hot[self.time] = 1.0
        return {"z": one_hot, "a": np.asarray(self.time, np.uint8)} if self.dict_obs else one_hot

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        reward = 10.0 * self.time + float(action)
        self.time += 1
        over = self.time == self.length
        return self._obs(), reward, over and self.end != "truncated", over and self.end != "terminated", {}


class JaxClock:
    """``Clock`` as a functional environment: ``done`` is set at any end, ``info["truncation"]`` at a time limit."""

    action_space = spaces.Discrete(5)

    def __init__(self, length=3, end="truncated", dict_obs=False):
        self.length, self.end, self.dict_obs = length, end, dict_obs

    def _state(self, time, reward):
        obs = jax.nn.one_hot(time, 10)
        if self.dict_obs:
            obs = {"z": obs, "a": time.astype(jnp.uint8)}
        over = (time == self.length).astype(jnp.float32)
        info = {"truncation": over if self.end == "truncated" else 0 * over, "time": time}
        return State(obs, reward, over, info, {"time": time.astype(jnp.float32)})

    def reset(self, key):
        return self._state(jnp.zeros((), jnp.int32), jnp.zeros(()))

    def step(self, state, action):
        time = state.info["time"]
        return self._state(time + 1, 10.0 * time + action)


@pytest.fixture
def jax_clock():
    return JaxClock


@pytest.fixture
def clock():
    return Clock
