"""Variants of classic tasks that hide velocities, so that only a policy with memory can solve them.

``multippo/CartPoleNoVel-v0`` shows the cart's position and the pole's angle; ``multippo/PendulumNoVel-v0`` the cosine
and sine of the angle. Dynamics, rewards and time limits (500 and 200 steps) are those of CartPole-v1 and Pendulum-v1.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box
from gymnasium.vector import VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space
from gymnasium.wrappers import TransformObservation

CARTPOLE_ID = "multippo/CartPoleNoVel-v0"
PENDULUM_ID = "multippo/PendulumNoVel-v0"

_CARTPOLE_ENTRIES = [0, 2]
_PENDULUM_ENTRIES = [0, 1]


class PositionsVector(VectorObservationWrapper):
    """Many CartPoles without their velocities, in gymnasium's NEXT_STEP or DISABLED autoreset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any]) -> None:
        super().__init__(env)
        self.single_observation_space = _kept(env.single_observation_space, _CARTPOLE_ENTRIES)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: Any) -> Any:
        """Positions and angles of all environments."""
        return observations[:, _CARTPOLE_ENTRIES]


def make_cartpole(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """A CartPole without its velocities."""
    return _hidden(CartPoleEnv(**kwargs), _CARTPOLE_ENTRIES)


def make_cartpole_vector(num_envs: int, max_episode_steps: int = 500, **kwargs: Any) -> PositionsVector:
    """Many CartPoles without their velocities, stepped as one."""
    return PositionsVector(CartPoleVectorEnv(num_envs=num_envs, max_episode_steps=max_episode_steps, **kwargs))


def make_pendulum(**kwargs: Any) -> gymnasium.Env[np.ndarray, Any]:
    """A Pendulum without its velocity."""
    return _hidden(PendulumEnv(**kwargs), _PENDULUM_ENTRIES)


def register() -> None:
    """Makes the ids known to gymnasium; calling it again changes nothing."""
    if CARTPOLE_ID not in gymnasium.registry:
        gymnasium.register(
            CARTPOLE_ID,
            entry_point="multippo.envs.hidden_velocities:make_cartpole",
            vector_entry_point="multippo.envs.hidden_velocities:make_cartpole_vector",
            max_episode_steps=500,
        )
    if PENDULUM_ID not in gymnasium.registry:
        gymnasium.register(
            PENDULUM_ID, entry_point="multippo.envs.hidden_velocities:make_pendulum", max_episode_steps=200
        )


def _hidden(env: gymnasium.Env[Any, Any], entries: list[int]) -> gymnasium.Env[np.ndarray, Any]:
    return TransformObservation(env, lambda obs: obs[entries], _kept(env.observation_space, entries))


def _kept(space: Any, entries: list[int]) -> Box:
    return Box(space.low[entries], space.high[entries], dtype=space.dtype)
