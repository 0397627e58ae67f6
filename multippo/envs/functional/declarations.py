"""Declarations of functional environments: their spaces, and their time limits, kept apart from terminations.

An environment describes itself by sizes and by the result of ``reset``. A brax-like state has one flag, ``done``. A
wrapper that ends episodes by time sets ``done`` as well and reports the limit in ``info``, under one of several names.
Overlooking the name would turn every time limit into a termination, and make the values of all states near it wrong
without a sign.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from multippo.envs.observations import mismatch
from multippo.networks.factories.observations import check_keys, map_space


def functional_observation_space(env: Any, declared: spaces.Space[Any] | None, obs: Any) -> spaces.Space[Any]:
    """The space of an environment's observations.

    Args:
        env: The environment.
        declared: Space that the user declares; by default the environment's ``observation_space``, if it has one.
        obs: Shapes and types of one environment's observation from ``reset``.

    Returns:
        The declared space; otherwise a tree of unbounded Boxes, in which floats and flags are ``float32`` (also where
        JAX computes in 64 bits) and integers keep their type, so that images stay ``uint8``.

    Raises:
        ValueError: If the declared space is not supported or does not fit ``obs``; the message names the leaf.
    """
    space = declared if declared is not None else getattr(env, "observation_space", None)
    if not isinstance(space, spaces.Space):
        return _infer(obs, "observation")
    _check(space, obs, f"{type(env).__name__}.reset")
    return space


def functional_action_space(env: Any, declared: spaces.Space[Any] | None) -> spaces.Space[Any]:
    """The space an environment declares, else [-1, 1] in each of its ``action_size`` dimensions.

    brax and playground take actions in [-1, 1] by convention. brax's tasks either scale actions to the actuators' range
    themselves (humanoid, pusher, inverted_pendulum) or have actuators whose range is [-1, 1].

    Raises:
        ValueError: If the environment has neither a space nor an ``action_size``.
    """
    space = declared if declared is not None else getattr(env, "action_space", None)
    if isinstance(space, spaces.Space):
        return space
    size = getattr(env, "action_size", None)
    if size is None:
        raise ValueError(
            f"{type(env).__name__} does not say which actions it takes: expected a gymnasium space as its "
            "action_space, or an integer action_size. Add one, or pass action_space=."
        )
    return spaces.Box(-1.0, 1.0, (int(size),), np.float32)


def as_declared(space: spaces.Space[Any], obs: Any) -> Any:
    """Observations ``[B, ...]`` as plain dicts, tuples and arrays in the types the space declares."""
    if isinstance(space, spaces.Dict):
        return {key: as_declared(sub, obs[key]) for key, sub in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(as_declared(sub, leaf) for sub, leaf in zip(space.spaces, obs, strict=True))
    # Without 64-bit mode JAX has no float64, whatever the space declares.
    return jax.lax.convert_element_type(obs, jax.dtypes.canonicalize_dtype(space.dtype))


def _infer(obs: Any, path: str) -> spaces.Space[Any]:
    if isinstance(obs, Mapping):
        space = spaces.Dict({key: _infer(value, f"{path}[{key!r}]") for key, value in obs.items()})
        check_keys(space, path)
        return space
    if isinstance(obs, tuple | list):
        return spaces.Tuple([_infer(value, f"{path}[{index}]") for index, value in enumerate(obs)])
    if jnp.issubdtype(obs.dtype, jnp.integer):
        info = np.iinfo(obs.dtype)
        # gymnasium rounds the largest 64-bit integers up beyond their type.
        low, high = max(info.min, -(2**31)), min(info.max, 2**31 - 1)
        return spaces.Box(low, high, obs.shape, np.dtype(obs.dtype).type)
    return spaces.Box(-np.inf, np.inf, obs.shape, np.float32)


def _check(space: spaces.Space[Any], obs: Any, name: str) -> None:
    expected, received = (
        {f"observation{jax.tree_util.keystr(path)}": leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (map_space(lambda leaf: leaf, space), obs)
    )
    if expected.keys() != received.keys():
        raise mismatch("observation", f"the leaves {list(received)}", f"{list(expected)}", name)
    for path, leaf in received.items():
        declared = expected[path]
        if not isinstance(declared, spaces.Box):
            raise ValueError(
                f"The observation space {path} = {declared} of {name} is not supported: a functional environment can "
                "observe a Box, and Dict and Tuple of those. Return categories one-hot."
            )
        if leaf.shape != declared.shape:
            raise mismatch(path, f"shape {leaf.shape}", f"shape {declared.shape}", name)
        if jnp.issubdtype(leaf.dtype, jnp.inexact) and declared.dtype.kind != "f":
            raise mismatch(path, f"{leaf.dtype.name} values", f"{declared.dtype.name} values", name)


TRUNCATION_KEYS = ("truncation", "truncated", "time_out")

_LIMIT_NAMES = ("episode_length", "max_episode_steps", "max_steps_in_episode", "max_steps", "time_limit")


def find_truncation_key(env: Any, info_keys: set[str], requested: str | None, episode_length: int | None) -> str | None:
    """The key of ``info`` under which an environment reports that its own time limit ended an episode.

    Args:
        env: The environment.
        info_keys: Keys of ``info`` in the environment's state.
        requested: Key that the user names; None if the user declares that none exists; ``"auto"`` to find a known one.
        episode_length: The adapter's own limit in steps, or None.

    Returns:
        The key, or None if every end that the environment itself declares is a termination.

    Raises:
        ValueError: If the requested key is missing, or no key is found and the environment has a limit of its own.
    """
    name = type(env).__name__
    if requested is None:
        return None
    if requested != "auto":
        if requested not in info_keys:
            raise ValueError(
                f"truncation_key={requested!r} is not in the info of {name}: received the keys {sorted(info_keys)}."
            )
        return requested
    for key in TRUNCATION_KEYS:
        if key in info_keys and not (key == "time_out" and _is_brax_task(env)):
            return key
    limit = own_episode_limit(env)
    if limit is not None and (episode_length is None or limit <= episode_length):
        raise ValueError(
            f"{name} has an episode limit of its own ({limit} steps), but its info says nowhere whether an episode was "
            f"cut: received the keys {sorted(info_keys)}, expected one of {list(TRUNCATION_KEYS)}. Name the key with "
            "truncation_key= (None if time never ends an episode), or leave the limit to episode_length=."
        )
    if limit is None and episode_length is None:
        warnings.warn(
            f"The info of {name} has none of {list(TRUNCATION_KEYS)} and no episode_length was given, so every end "
            "counts as a termination (a state without value). If time limits end some episodes, name the key with "
            "truncation_key= or pass episode_length=; if none do, pass truncation_key=None.",
            UserWarning,
            stacklevel=2,
        )
    return None


def own_episode_limit(env: Any) -> int | None:
    """The number of steps after which an environment or a wrapper of it ends an episode; None if not found."""
    for attribute in (*_LIMIT_NAMES, "_episode_length"):
        limit = getattr(env, attribute, None)
        if isinstance(limit, int | float | np.integer) and not isinstance(limit, bool) and limit > 0:
            return int(limit)
    return None


def _is_brax_task(env: Any) -> bool:
    # brax's own inverted_pendulum copies `done` to info["time_out"], so that a fallen pole would read as a time limit.
    return type(getattr(env, "unwrapped", env)).__module__.startswith("brax.envs.")
