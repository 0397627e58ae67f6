"""MuJoCo Playground environments, an optional package."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from typing import Any

from multippo.envs.functional.functional_env import FunctionalEnv, precision_of_engine
from multippo.envs.functional.randomized import RandomizedEnv
from multippo.envs.structure import Content


def make_playground(
    name: str,
    num_envs: int,
    *,
    episode_length: int | None = None,
    action_repeat: int | None = None,
    pool_size: int | None = None,
    randomization_fn: Callable[..., Any] | None = None,
    **config_overrides: Any,
) -> FunctionalEnv:
    """An environment from playground's registry, with the time limit kept by the adapter.

    Args:
        name: Name in playground's registry, such as ``"CartpoleBalance"``.
        num_envs: Number of copies.
        episode_length: Number of the environment's steps after which an episode is cut; by default its configuration's.
        action_repeat: Number of the environment's steps per action; by default its configuration's.
        pool_size: Number of fresh starts; see ``FunctionalEnv``.
        randomization_fn: Function that draws models, for domain randomisation; see ``RandomizedEnv``.
        **config_overrides: Entries of the environment's configuration.

    Raises:
        KeyError: If the name is not known.
    """
    registry = _registry()
    if name not in registry.ALL_ENVS:
        raise KeyError(name)
    config = registry.get_default_config(name)
    with precision_of_engine():
        env = registry.load(name, config=config, config_overrides=config_overrides or None)
    return FunctionalEnv(
        env if randomization_fn is None else RandomizedEnv(env, randomization_fn),
        num_envs,
        id=f"playground/{name}",
        episode_length=episode_length or int(config.episode_length),
        action_repeat=action_repeat or int(config.action_repeat),
        pool_size=pool_size,
        # The environments themselves know no time limit.
        truncation_key=None,
        content=Content(env, "playground", name, config_overrides, randomization_fn),
    )


def playground_names() -> tuple[str, ...]:
    """The names in playground's registry."""
    return tuple(_registry().ALL_ENVS)


def _registry() -> Any:
    # MJX prints to standard output when warp is missing; see brax.py.
    with contextlib.redirect_stdout(io.StringIO()):
        from mujoco_playground import registry  # pyright: ignore[reportMissingImports]
    return registry
