"""EnvPool's environments, many stepped in threads of its own; an optional package."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium.vector import VectorWrapper
from gymnasium.vector.utils import batch_space

from multippo.envs.host.host_env import GymnasiumEnv


class SeededPool(VectorWrapper):
    """A pool of EnvPool that takes seeds in ``reset``, by making the pool anew: EnvPool sets seeds when one is made.

    Args:
        pool: The pool, with the interface of gymnasium.
    """

    def __init__(self, pool: Any) -> None:
        super().__init__(pool)
        self._pool_class, self._spec_class, self.config = type(pool), type(pool.spec), pool.spec.config
        self.single_observation_space, self.single_action_space = pool.observation_space, pool.action_space
        self.observation_space = batch_space(self.single_observation_space, self.num_envs)
        self.action_space = batch_space(self.single_action_space, self.num_envs)

    @property
    def spec(self) -> None:
        """None: a pool is not registered with gymnasium."""
        return None

    @property
    def limit(self) -> int | None:
        """Steps after which the pool cuts an episode."""
        return getattr(self.config, "max_episode_steps", None)

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """See ``gymnasium.vector.VectorEnv.reset``."""
        if seed is not None:
            self.env.close()
            seeds = [int(one) % 2**31 for one in np.broadcast_to(seed, self.num_envs)]
            own = {"env_seed": seeds} if hasattr(self.config, "env_seed") else {"seed": seeds[0]}
            self.env = self._made(**own)
        return self.env.reset(options=options)

    def similar(self, num_envs: int) -> SeededPool:
        """The same environments in another number."""
        changes: dict[str, Any] = {"env_seed": []} if hasattr(self.config, "env_seed") else {}
        return SeededPool(self._made(num_envs=num_envs, batch_size=num_envs, **changes))

    def _made(self, **changes: Any) -> Any:
        return self._pool_class(self._spec_class(self.config._replace(**changes)))


def is_pool(env: Any) -> bool:
    """True for a pool of EnvPool's."""
    return any(base.__module__.partition(".")[0] == "envpool" for base in type(env).__mro__)


def pool_env(pool: Any, **kwargs: Any) -> GymnasiumEnv:
    """A pool behind the library's contract.

    Args:
        pool: The pool.
        **kwargs: Arguments of ``GymnasiumEnv``.
    """
    seeded = SeededPool(pool)
    kwargs.setdefault("id", getattr(seeded.config, "task_id", type(pool).__name__))
    return GymnasiumEnv(seeded, max_episode_steps=seeded.limit, remake=seeded.similar, **kwargs)


def make_envpool(name: str, num_envs: int, **kwargs: Any) -> GymnasiumEnv:
    """An environment from EnvPool's registry.

    Args:
        name: Name in the registry, such as ``"Pong-v5"``.
        num_envs: Number of environments.
        **kwargs: Arguments of ``envpool.make_gymnasium``.

    Raises:
        KeyError: If the name is not known.
    """
    import envpool  # pyright: ignore[reportMissingImports]

    if name not in envpool.list_all_envs():
        raise KeyError(name)
    return pool_env(envpool.make_gymnasium(name, num_envs=num_envs, **kwargs), id=f"envpool/{name}")


def envpool_names() -> tuple[str, ...]:
    """The names in EnvPool's registry."""
    import envpool  # pyright: ignore[reportMissingImports]

    return tuple(envpool.list_all_envs())
