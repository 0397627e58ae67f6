"""Keys of environments, equal for two with which a compiled programme would be the same."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
from collections.abc import Callable, Hashable
from typing import Any

import gymnasium
import numpy as np

from multippo.envs.api import Env
from multippo.envs.wrappers import EnvWrapper
from multippo.programmes import frozen, identity


@functools.singledispatch
def structure(env: Env) -> Hashable:
    """The key of an environment that is compiled in, made from its present content."""
    return contents(env, identity)


@structure.register
def _(env: EnvWrapper) -> Hashable:
    held = {name: value for name, value in vars(env).items() if name not in ("env", "_latest")}
    return type(env), contents(held, identity), structure(env.env)


def stepped_structure(env: Env) -> Hashable:
    """The key of an environment that is stepped from Python, of which the network sees arrays alone."""
    return env.num_envs, env.may_skip, repr(env.observation_space), repr(getattr(env, "action_space", None))


def contents(
    value: Any, other: Callable[[Any], Hashable], known: dict[int, tuple[Any, Hashable]] | None = None
) -> Hashable:
    """A key of an object and the objects it wraps, with numbers, arrays, spaces and dataclasses by their values.

    Args:
        value: The object, such as an environment.
        other: Function that makes the key of anything else, such as a function.
        known: Keys made before, of frozen dataclasses such as a simulator's model, which take long.
    """
    known = {} if known is None else known

    def key(value: Any) -> Hashable:
        if id(value) in known:
            return known[id(value)][1]
        if isinstance(value, gymnasium.Space):
            held = {name: part for name, part in vars(value).items() if name != "_np_random"}
            return type(value), frozen(held, key)
        if isinstance(value, np.dtype):
            return value.str
        if hasattr(value, "__array__"):
            array = np.asarray(value) if not str(value.dtype).startswith("key<") else None
            if array is None or array.dtype.hasobject:
                return other(value)
            return array.shape, array.dtype.str, hashlib.sha256(array.tobytes()).digest()
        if dataclasses.is_dataclass(value):
            made = type(value), frozen([getattr(value, f.name, None) for f in dataclasses.fields(value)], key)
            if type(value).__dataclass_params__.frozen:  # pyright: ignore[reportAttributeAccessIssue]
                known[id(value)] = value, made
            return made
        if callable(getattr(value, "items", None)):  # a configuration that is not a Mapping
            return type(value), frozen(dict(value.items()), key)
        return other(value)

    if not hasattr(value, "__dict__"):
        return frozen(value, key)
    of_class = {
        name: part
        for cls in reversed(type(value).__mro__)
        for name, part in vars(cls).items()
        if not (name.startswith("__") or callable(part) or hasattr(part, "__get__"))
    }
    held = {name: part for name, part in vars(value).items() if name != "env"}
    inner = contents(value.env, other, known) if "env" in vars(value) else None
    return type(value), frozen(of_class, key), frozen(held, key), inner


class Content:
    """The key of an environment's content, which changes that the environment makes while traced leave as it is.

    Args:
        env: The environment.
        made_by: Name and all arguments of an environment made by name. All that it holds beside numbers, arrays and
            dataclasses is then taken to be equal in all environments made with them.
    """

    def __init__(self, env: Any, *made_by: Any) -> None:
        self._env, self._other = env, type if made_by else identity
        self._made_by = contents(made_by, identity)
        self._known: dict[int, tuple[Any, Hashable]] = {}
        self._key = self._seen = self._now()

    @property
    def key(self) -> Hashable:
        """The present key, another one after somebody has changed the environment."""
        now = self._now()
        if now != self._seen:
            self._key = self._seen = now
        return self._made_by, self._key

    def keep_key(self) -> None:
        """Keeps the key after a method of the environment was traced, though the method may have changed it."""
        self._seen = self._now()

    def _now(self) -> Hashable:
        return contents(self._env, self._other, self._known)
