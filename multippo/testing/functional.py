"""``Clock`` and ``Goal`` as pure JAX functions of a single environment's state, in brax's manner; for ``make_env``."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces


class State(NamedTuple):
    """State that a reset or step returns. ``info["truncation"]`` is 1 where the episode was cut."""

    obs: Any
    reward: Any
    done: Any
    info: dict[str, Any]
    metrics: dict[str, Any]


class FunctionalClock:
    """``Clock`` as a functional environment.

    Args:
        length: Steps of an episode.
        end: The flag with which episodes end.
    """

    action_space = spaces.Discrete(2)

    def __init__(self, length: int, end: Literal["terminated", "truncated"] = "terminated") -> None:
        self.length, self.end = length, end

    def reset(self, key: Any) -> State:
        """Starts at time 0."""
        del key
        return self._at(jnp.zeros((), jnp.int32))

    def step(self, state: State, action: Any) -> State:
        """Advances the time by one step."""
        del action
        return self._at(state.info["time"] + 1)

    def _at(self, time: Any) -> State:
        over = (time == self.length).astype(jnp.float32)
        cut = over if self.end == "truncated" else jnp.zeros_like(over)
        obs = jax.nn.one_hot(time, self.length + 1, dtype=jnp.float32)
        return State(obs, jnp.ones(()), over, {"truncation": cut, "time": time}, {})


class FunctionalGoal:
    """``Goal`` as a functional environment.

    Args:
        length: Steps of an episode, which ends by truncation.
    """

    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def __init__(self, length: int = 2) -> None:
        self.length = length

    def reset(self, key: Any) -> State:
        """Draws a new goal."""
        goal = jax.random.uniform(key, (1,), jnp.float32, -1.0, 1.0)
        zero = jnp.zeros(())
        return State(goal, zero, zero, {"truncation": zero, "time": jnp.zeros((), jnp.int32)}, {})

    def step(self, state: State, action: Any) -> State:
        """Pays the reward and advances the time."""
        time = state.info["time"] + 1
        over = (time == self.length).astype(jnp.float32)
        reward = -jnp.sum((action - state.obs) ** 2)
        return State(state.obs, reward, over, {"truncation": over, "time": time}, {})
