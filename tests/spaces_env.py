"""A gymnasium environment of any spaces, which refuses every action that is none of its own."""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Spaces(gymnasium.Env[Any, Any]):
    """Random observations of one space; the reward is 1, an episode takes three steps.

    An entry ``action_mask`` of the observation allows some of the actions, never none, and at the end of an episode
    none at all; an action that was masked is refused.

    Args:
        observation_space: Of the observations.
        action_space: Of the actions, which are kept in ``received``.
    """

    def __init__(self, observation_space: Any, action_space: Any) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self.received: list[Any] = []
        self._t, self._mask = 0, None

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        if seed is not None:
            self.observation_space.seed(seed)
        self._t = 0
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self._contains(self.action_space, action), f"{action!r} is none of {self.action_space}"
        if self._mask is not None:
            self._check(self.action_space, action, self._mask)
        self.received.append(action)
        self._t += 1
        return self._observe(), 1.0, False, self._t == 3, {}

    def _contains(self, space: Any, action: Any) -> bool:
        if isinstance(space, spaces.Dict):
            return action.keys() == space.keys() and all(self._contains(space[key], action[key]) for key in action)
        # A number on its own comes as a scalar, which a Box takes with a warning.
        return space.contains(np.asarray(action) if isinstance(space, spaces.Box) else action)

    def _observe(self) -> Any:
        obs = self.observation_space.sample()
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"] = self._mask = self._draw(self.action_space, self.observation_space["action_mask"])
        return obs

    def _draw(self, action: Any, mask: Any) -> Any:
        if isinstance(mask, spaces.Dict):
            return {key: self._draw(action[key], sub) for key, sub in mask.spaces.items()}
        sizes = self._sizes(action)
        if self._t == 3:
            flat = np.zeros(sum(sizes))
        else:
            blocks = [self.np_random.random(size) < 0.4 for size in sizes]
            for block in blocks:
                block[self.np_random.integers(len(block))] = True
            flat = np.concatenate(blocks)
        return flat.reshape(mask.shape).astype(mask.dtype)

    def _sizes(self, space: Any) -> list[int]:
        if isinstance(space, spaces.Discrete):
            return [int(space.n)]
        nvec = space.high.astype(int) - space.low + 1 if isinstance(space, spaces.Box) else space.nvec
        return [int(size) for size in nvec.ravel()]

    def _check(self, space: Any, action: Any, mask: Any) -> None:
        if isinstance(mask, dict):
            for key, sub in mask.items():
                self._check(space[key], action[key], sub)
            return
        if isinstance(space, spaces.Discrete):
            chosen = [int(action) - int(space.start)]
        else:
            start = space.low if isinstance(space, spaces.Box) else space.start
            offsets = np.concatenate([[0], np.cumsum(self._sizes(space))[:-1]])
            chosen = (np.ravel(action).astype(int) - np.ravel(start).astype(int) + offsets).tolist()
        assert np.ravel(mask)[chosen].all(), f"{action!r} is masked by {mask!r}"
