"""Spaces of functional environments, which describe themselves by sizes and by what ``reset`` returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from multippo.arguments import describe
from multippo.envs.observations import mismatch
from multippo.networks.factories.observations import check_keys


def functional_observation_space(env: Any, declared: spaces.Space[Any] | None, obs: Any) -> spaces.Space[Any]:
    """The space of an environment's observations.

    Args:
        env: The environment.
        declared: The space the user declares; by default the environment's ``observation_space``, if it has one.
        obs: Shapes and types of what ``reset`` returns for one environment.

    Returns:
        The declared space; otherwise a tree of unbounded Boxes, in which floats and flags are ``float32`` (also where
        JAX computes in 64 bits) and integers keep their type, so that images stay ``uint8``.

    Raises:
        ValueError: If the declared space is not supported or does not fit ``obs``; the message names the leaf.
    """
    space = declared if declared is not None else getattr(env, "observation_space", None)
    if not isinstance(space, spaces.Space):
        return _infer(obs, "observation")
    _check(space, obs, "observation", f"{type(env).__name__}.reset")
    return space


def functional_action_space(env: Any, declared: spaces.Space[Any] | None) -> spaces.Space[Any]:
    """The space an environment declares; or [-1, 1] in each of its ``action_size`` dimensions.

    brax and playground take actions in [-1, 1] by convention. brax's tasks either scale them to the actuators' range
    themselves (humanoid, pusher, inverted_pendulum) or have actuators whose range is [-1, 1].
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


def _check(space: spaces.Space[Any], obs: Any, path: str, name: str) -> None:
    if isinstance(space, spaces.Dict):
        check_keys(space, path)
        if not isinstance(obs, Mapping) or set(obs) != set(space.spaces):
            raise mismatch(path, describe(obs), f"a dict with the entries {sorted(space.spaces)}", name)
        for key, sub in space.spaces.items():
            _check(sub, obs[key], f"{path}[{key!r}]", name)
    elif isinstance(space, spaces.Tuple):
        if not isinstance(obs, tuple | list) or len(obs) != len(space.spaces):
            raise mismatch(path, describe(obs), f"a tuple of {len(space.spaces)} entries", name)
        for index, sub in enumerate(space.spaces):
            _check(sub, obs[index], f"{path}[{index}]", name)
    elif not isinstance(space, spaces.Box):
        raise ValueError(
            f"The observation space {path} = {space} of {name} is not supported: a functional environment can observe "
            "a Box, and Dict and Tuple of those. Return categories one-hot."
        )
    else:
        shape = getattr(obs, "shape", None)
        if shape != space.shape:
            received = f"a {type(obs).__name__}" if shape is None else f"shape {shape}"
            raise mismatch(path, received, f"shape {space.shape}", name)
        if jnp.issubdtype(obs.dtype, jnp.inexact) and space.dtype.kind != "f":
            raise mismatch(path, f"{obs.dtype.name} values", f"{space.dtype.name} values", name)
