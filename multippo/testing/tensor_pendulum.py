"""A vector environment in torch tensors, as simulators on a GPU are; imports torch."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from gymnasium import spaces


class TensorPendulum:
    """gymnasium's ``Pendulum-v1``, many at once, in tensors of one device; tensors in, tensors out, for ``make_env``.

    Episodes end by truncation alone and start again in the same step; ``info["final_obs"]`` then has every
    environment's observation before the resets.

    Args:
        num_envs: Number of environments, B.
        max_episode_steps: Number of steps of an episode.
        device: Device of all tensors.
        staggered: True to spread the first episodes' ends evenly over time, so that each step has some.
    """

    single_observation_space = spaces.Box(-np.array([1, 1, 8], np.float32), np.array([1, 1, 8], np.float32))
    single_action_space = spaces.Box(-2.0, 2.0, (1,), np.float32)

    def __init__(
        self, num_envs: int = 1, max_episode_steps: int = 200, device: Any = "cpu", staggered: bool = False
    ) -> None:
        self.num_envs, self.max_episode_steps, self.device = num_envs, max_episode_steps, torch.device(device)
        self.staggered = staggered
        self._generator = torch.Generator()
        # Kept on the host, so that nobody has to wait for a device to learn that an episode has ended.
        self._time = np.zeros(num_envs, np.int64)
        self.angle = self.velocity = torch.zeros(num_envs, device=self.device)
        self._never = torch.zeros(num_envs, dtype=torch.bool, device=self.device)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[torch.Tensor, dict[str, Any]]:
        """Starts an episode in every environment.

        Returns:
            Observations ``[B, 3]`` (cosine and sine of the angle, angular velocity) and an empty dict.
        """
        del options
        if seed is not None:
            self._generator.manual_seed(seed)
        self._time[:] = np.arange(self.num_envs) * self.max_episode_steps // self.num_envs if self.staggered else 0
        self.angle, self.velocity = self._starts()
        return self._observe(), {}

    def step(
        self, actions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, dict[str, Any]]:
        """Takes a step with torques ``[B, 1]`` in [-2, 2].

        Returns:
            Observations ``[B, 3]``, rewards ``[B]``, terminated and truncated ``[B]``, and the info.
        """
        torque = actions[:, 0].clamp(-2.0, 2.0)
        wrapped = torch.remainder(self.angle + math.pi, 2 * math.pi) - math.pi
        reward = -(wrapped.square() + 0.1 * self.velocity.square() + 0.001 * torque.square())
        self.velocity = (self.velocity + 0.05 * (15.0 * self.angle.sin() + 3.0 * torque)).clamp(-8.0, 8.0)
        self.angle = self.angle + 0.05 * self.velocity
        obs, info, truncated = self._observe(), {}, self._never
        self._time += 1
        if (over := self._time >= self.max_episode_steps).any():
            self._time[over] = 0
            truncated, info = torch.as_tensor(over, device=self.device), {"final_obs": obs}
            angle, velocity = self._starts()
            self.angle, self.velocity = (
                torch.where(truncated, angle, self.angle),
                torch.where(truncated, velocity, self.velocity),
            )
            obs = self._observe()
        return obs, reward, self._never, truncated, info

    def _starts(self) -> torch.Tensor:
        drawn = torch.rand((2, self.num_envs), generator=self._generator) * 2 - 1
        return (drawn * torch.tensor([[math.pi], [1.0]])).to(self.device)

    def _observe(self) -> torch.Tensor:
        return torch.stack((self.angle.cos(), self.angle.sin(), self.velocity), dim=1)
