"""A single environment that is seen while a policy acts in it."""

from __future__ import annotations

import abc
import importlib
from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np

from multippo.envs.host.vector_forms import creator
from multippo.envs.keys import host_seed
from multippo.envs.registry import is_functional_name, registered
from multippo.errors import UsageError


class View(abc.ABC):
    """A single environment, in its own coordinates, that draws itself.

    Attributes:
        fps: Actions per second of the environment's own time.
        endings: Endings of the files that can be made of it, the best one first.
        in_window: True if it is seen in a window, and nothing is recorded.
    """

    fps: float
    in_window: bool = False
    endings: tuple[str, ...] = (".mp4", ".gif")

    @abc.abstractmethod
    def reset(self, key: Any = None) -> Any:
        """Starts an episode and returns its first observation.

        Args:
            key: Random key, as of ``Env.reset``; None for another episode after the last.
        """

    @abc.abstractmethod
    def step(self, action: Any) -> tuple[Any, float, bool]:
        """Takes a step; returns the observation, the reward and True at an episode's end."""

    @abc.abstractmethod
    def frames(self) -> Iterator[np.ndarray]:
        """Pictures ``[H, W, 3]`` of what has happened since they were last asked for, in bytes."""

    def html(self) -> str:
        """A page that shows what has happened since frames were last asked for."""
        raise NotImplementedError

    @abc.abstractmethod
    def close(self) -> None:
        """Closes the environment and its window."""


class HostView(View):
    """An environment of gymnasium's.

    Args:
        env_id: Name of the environment.
        in_window: True for a window, False for pictures.
        **kwargs: Arguments of ``make_env``.

    Raises:
        UsageError: If the environment does not draw itself.
    """

    def __init__(self, env_id: str, in_window: bool, **kwargs: Any) -> None:
        from multippo.envs.make import make_env

        mode = "human" if in_window else "rgb_array"
        spec = gymnasium.registry.get(registered(env_id)[0])
        if spec is None:
            raise UsageError(f"{env_id} can't be seen: it is not made by gymnasium.")
        modes = getattr(creator(spec.entry_point), "metadata", {}).get("render_modes", [mode])
        if mode not in modes:
            raise UsageError(f"{env_id} can't be seen: it has no render mode {mode!r}, only {list(modes)}.")
        self._scale = kwargs.pop("reward_scale", None) or 1.0
        self.in_window = in_window
        options: dict[str, Any] = {**kwargs, "vectorization": "sync", "render_mode": mode}
        self._made: Any = make_env(env_id, 1, **options)
        self._env: gymnasium.Env[Any, Any] = self._made.vector_env.envs[0]
        self.fps = self._env.metadata.get("render_fps", 30) / kwargs.get("action_repeat", 1)

    def reset(self, key: Any = None) -> Any:
        """See ``View``."""
        return self._env.reset(seed=None if key is None else host_seed(key, 1))[0]

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """See ``View``."""
        obs, reward, terminated, truncated, _ = self._env.step(action)
        return obs, float(reward) * self._scale, bool(terminated or truncated)

    def frames(self) -> Iterator[np.ndarray]:
        """See ``View``."""
        yield np.asarray(self._env.render(), np.uint8)

    def close(self) -> None:
        """See ``View``."""
        self._made.close()


def make_view(env_id: str, in_window: bool = False, **kwargs: Any) -> View:
    """Makes the view of an environment by its name.

    Args:
        env_id: Name for ``make_env``.
        in_window: True for a window, which environments of gymnasium's have.
        **kwargs: Arguments of ``make_env``.

    Raises:
        UsageError: If the environment does not draw itself; other errors are those of ``make_env``.
    """
    if not is_functional_name(env_id):
        return HostView(env_id, in_window, **kwargs)
    viewing = importlib.import_module(f"{__package__}.functional.viewing")  # by name: it imports this file
    return viewing.FunctionalView(env_id, **kwargs)
