"""Variants of classic tasks that hide velocities, so that only a policy with memory can solve them.

``multippo/CartPoleNoVel-v0`` shows the cart's position and the pole's angle; ``multippo/PendulumNoVel-v0`` the cosine
and sine of the angle. Dynamics, rewards and time limits (500 and 200 steps) are those of CartPole-v1 and Pendulum-v1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv, PendulumEnv
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.spaces import Box
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector import VectorEnv, VectorObservationWrapper
from gymnasium.vector.utils import batch_space

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = [
    "CARTPOLE_ID",
    "PENDULUM_ID",
    "KeepEntries",
    "KeepEntriesVector",
    "make_cartpole",
    "make_cartpole_vector",
    "make_pendulum",
    "register",
]

CARTPOLE_ID = "multippo/CartPoleNoVel-v0"
PENDULUM_ID = "multippo/PendulumNoVel-v0"

_CARTPOLE_ENTRIES = (0, 2)
_PENDULUM_ENTRIES = (0, 1)


class KeepEntries(gymnasium.ObservationWrapper[np.ndarray, Any, np.ndarray], RecordConstructorArgs):
    """Keeps some entries of a vector observation and hides the others.

    Args:
        env: An environment whose observation is a Box of one axis.
        entries: Indices of the entries to keep, in the order in which they are shown.
    """

    def __init__(self, env: gymnasium.Env[np.ndarray, Any], entries: Sequence[int]) -> None:
        RecordConstructorArgs.__init__(self, entries=entries)
        super().__init__(env)
        self._entries = list(entries)
        self.observation_space = _kept_space(env.observation_space, self._entries)

    def observation(self, observation: np.ndarray) -> np.ndarray:
        """The entries that are kept."""
        return observation[self._entries]


class KeepEntriesVector(VectorObservationWrapper):
    """``KeepEntries`` for a vector environment in gymnasium's NEXT_STEP or DISABLED autoreset mode."""

    def __init__(self, env: VectorEnv[Any, Any, Any], entries: Sequence[int]) -> None:
        super().__init__(env)
        self._entries = list(entries)
        self.single_observation_space = _kept_space(env.single_observation_space, self._entries)
        self.observation_space = batch_space(self.single_observation_space, env.num_envs)

    def observations(self, observations: Any) -> Any:
        """The entries that are kept."""
        return observations[:, self._entries]


def make_cartpole(**kwargs: Any) -> KeepEntries:
    """A CartPole without its velocities."""
    return KeepEntries(CartPoleEnv(**kwargs), _CARTPOLE_ENTRIES)


def make_cartpole_vector(num_envs: int, max_episode_steps: int = 500, **kwargs: Any) -> KeepEntriesVector:
    """Many CartPoles without their velocities, stepped as one."""
    return KeepEntriesVector(
        CartPoleVectorEnv(num_envs=num_envs, max_episode_steps=max_episode_steps, **kwargs), _CARTPOLE_ENTRIES
    )


def make_pendulum(**kwargs: Any) -> KeepEntries:
    """A Pendulum without its velocity."""
    return KeepEntries(PendulumEnv(**kwargs), _PENDULUM_ENTRIES)


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


def _kept_space(space: gymnasium.Space[Any], entries: list[int]) -> Box:
    assert isinstance(space, Box)
    return Box(space.low[entries], space.high[entries], dtype=space.dtype)  # type: ignore[arg-type]
