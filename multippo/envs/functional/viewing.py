"""A single functional environment that is seen while a policy acts in it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np

from multippo.backends.registry import use_backend
from multippo.envs.api import EnvState
from multippo.envs.viewing import View
from multippo.errors import UsageError

_WIDTH, _HEIGHT = 480, 360
_CHUNK = 100  # states drawn in one call: each call begins a renderer


class FunctionalView(View):
    """An environment of brax or playground: brax's own viewer as a page, or pictures by MuJoCo's renderer.

    Args:
        env_id: Name of the environment.
        **kwargs: Arguments of ``make_env``.

    Raises:
        UsageError: If the environment does not draw itself.
    """

    def __init__(self, env_id: str, **kwargs: Any) -> None:
        from multippo.envs.make import make_env

        with use_backend("jax"):
            self._made: Any = make_env(env_id, 1, **kwargs)
        self._env: Any = self._made
        while hasattr(self._env, "env") and not hasattr(self._env, "simulator_state"):
            self._env = self._env.env
        self._drawn = self._env.env
        if not hasattr(self._drawn, "dt"):
            raise UsageError(f"{env_id} can't be seen: of JAX's environments those of brax and playground can.")
        self.fps = 1 / float(self._drawn.dt) / kwargs.get("action_repeat", 1)
        if env_id.startswith("brax/"):
            self.endings = (".html", *self.endings)
        self._states: list[Any] = []

    def reset(self, key: Any = None) -> Any:
        """See ``View``."""
        if key is not None:
            self._now: EnvState = self._made.reset(key)
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool]:
        """See ``View``."""
        self._now = now = self._made.step(self._now, jax.tree.map(lambda x: np.asarray(x)[None], action))
        over = bool(now.terminated[0] or now.truncated[0])
        reward = sum(float(leaf[0]) for leaf in jax.tree.leaves(now.reward))
        # At its end an episode's last state is gone, and the next one's first is there.
        return None if over else self._seen(), reward, over

    def frames(self) -> Iterator[np.ndarray]:
        """See ``View``."""
        states, self._states = self._states, []
        for start in range(0, len(states), _CHUNK):
            try:
                drawn = self._drawn.render(states[start : start + _CHUNK], height=_HEIGHT, width=_WIDTH)
            except Exception as error:
                other = " Name a .html file, which needs none." if ".html" in self.endings else ""
                raise UsageError(f"MuJoCo's renderer does not work without a screen here: {error}.{other}") from error
            yield from drawn

    def html(self) -> str:
        """See ``View``."""
        with contextlib.redirect_stdout(io.StringIO()):
            from brax.io import html

        states, self._states = self._states, []
        # Played in its own time.
        system = self._drawn.sys.tree_replace({"opt.timestep": 1 / self.fps})
        return html.render(system, states, colab=False, height="100vh")

    def close(self) -> None:
        """See ``View``."""
        self._made.close()

    def _seen(self) -> Any:
        state = self._env.simulator_state(self._now, 0)
        self._states.append(getattr(state, "pipeline_state", state))
        return jax.tree.map(lambda leaf: np.asarray(leaf[0]), self._now.obs)
