"""What a single ``gymnasium.Env`` returns, looked at before anything wraps, stacks or casts it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from multippo.arguments import describe
from multippo.envs.returned import Observations, split_reset, split_step
from multippo.integer_boxes import is_integer_box
from multippo.testing.random_actions import mask_in, random_action, to_space

__all__ = ["look_at_single"]


def look_at_single(env: Any, seed: int, error: Callable[[str, str], None], warn: Callable[[str, str], None]) -> bool:
    """Makes one environment, where ``env`` is a function that makes some, and looks at its first reset and step.

    Args:
        env: What ``check_env`` was given.
        seed: Of the reset and the action.
        error: Called with a kind and a sentence.
        warn: Likewise.

    Returns:
        Whether it is worth while to go on.
    """
    if not callable(env) or (not inspect.isclass(env) and hasattr(env, "step")):
        return True
    try:
        single = env()
    except Exception:  # make_env tells of it
        return True
    if not isinstance(single, gymnasium.Env):
        return True
    try:
        return _look(single, seed, error, warn)
    finally:
        single.close()


def _action(space: spaces.Space[Any], obs: Any, seed: int) -> Any:
    """One that the observation's mask allows, where there is one for such actions."""
    mask = mask_in(obs)
    is_choice = isinstance(space, spaces.Discrete | spaces.MultiDiscrete) or is_integer_box(space)
    if mask is None or not is_choice:
        return space.sample()
    mask = tuple(np.asarray(part)[None] for part in mask) if isinstance(mask, tuple) else np.asarray(mask)[None]
    return to_space(space, random_action(space, 1, np.random.default_rng(seed), mask)[0])


def _look(
    env: gymnasium.Env[Any, Any], seed: int, error: Callable[[str, str], None], warn: Callable[[str, str], None]
) -> bool:
    try:
        observations = Observations(env.observation_space)
    except ValueError:  # make_env tells of it
        return True
    try:
        first = env.reset(seed=seed)
    except Exception as raised:
        error("reset", f"reset(seed={seed}) raised {type(raised).__name__}: {raised}")
        return False
    try:
        first_obs, _ = split_reset(first)
        observations.check(first_obs)
    except (TypeError, ValueError) as wrong:
        error("reset", str(wrong))
        return False
    _types(first_obs, env.observation_space, "reset", warn)
    env.action_space.seed(seed)
    try:
        after = env.step(_action(env.action_space, first_obs, seed))
    except Exception as raised:
        error("step", f"step raised {type(raised).__name__} in the first step: {raised}")
        return False
    try:
        obs, *_ = split_step(after)
        observations.check(obs)
    except (TypeError, ValueError) as wrong:
        error("step", str(wrong))
        return False
    _types(obs, env.observation_space, "step", warn)
    for name, flag in (("terminated", after[2]), ("truncated", after[3])):
        if not isinstance(flag, bool | np.bool_):
            warn(name, f"step returned {describe(flag)} as {name}; expected a bool.")
    return True


def _types(obs: Any, space: Any, where: str, warn: Callable[[str, str], None], name: str = "") -> None:
    """Warns of leaves that are cast on the way to the network."""
    if isinstance(space, spaces.Dict) and isinstance(obs, Mapping):
        for key in space.spaces:
            if key in obs:
                _types(obs[key], space.spaces[key], where, warn, f"{name}.{key}" if name else str(key))
    elif isinstance(space, spaces.Tuple) and isinstance(obs, tuple):
        for place, (entry, sub) in enumerate(zip(obs, space.spaces, strict=False)):
            _types(entry, sub, where, warn, f"{name}.{place}" if name else str(place))
    elif isinstance(space, spaces.Box):
        received = obs.dtype.name if isinstance(obs, np.ndarray | np.generic) else f"a {type(obs).__name__}"
        if received != space.dtype.name:
            called = f"The observation{f' {name!r}' if name else ''}"
            warn(
                f"type {name}",
                f"{called} of {where} is {received}, its space declares {space.dtype.name}; it is cast to that.",
            )
