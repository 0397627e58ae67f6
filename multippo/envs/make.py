"""``make_env``, which makes an environment to train on from a name or an object."""

from __future__ import annotations

import functools
import inspect
import math
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.wrappers import TimeLimit

from multippo.arguments import check_size, refuse_unknown
from multippo.envs.api import Env
from multippo.envs.host.host_env import GymnasiumEnv
from multippo.envs.host.members import Wrapper
from multippo.envs.host.pools import is_pool, pool_env
from multippo.envs.host.vector_forms import Vectorization, chosen, creator, first_made, vectorize, vectorize_id
from multippo.envs.host.workers import WORKER_TIMEOUT_S
from multippo.envs.registry import FAMILIES, maker, refuse_other_interface, registered, unknown_env
from multippo.envs.wrappers import (
    ActionRepeat,
    EpisodeLimit,
    FilterObservation,
    ScaleReward,
    filter_single,
    report_wrapper_statistics,
)
from multippo.errors import needing


def make_env(
    env: Any,
    num_envs: int | None = None,
    *,
    reward_scale: float | Mapping[str, float] | None = None,
    observation_keys: Sequence[str] | None = None,
    **kwargs: Any,
) -> Env:
    """Makes an environment to train on, from a name or an object.

    Wrappers that normalise by running statistics of their own, which are not saved, are reported.

    Args:
        env: One of

            * a name: ``"CartPole-v1"``, ``"gymnasium/CartPole-v1"``, or one with its suite, such as ``"brax/ant"``
              and ``"popgym/RepeatPreviousEasy-v0"``;
            * a ``gymnasium.vector.VectorEnv``, in any autoreset mode;
            * a vector environment in torch tensors, such as one of IsaacLab or ManiSkill: see ``TensorEnv``;
            * a function that makes a ``gymnasium.Env``, or a list of such functions, one for each environment;
            * a functional JAX environment, such as an object of brax or playground (with ``randomization_fn=``, see
              ``RandomizedEnv``), gymnax (with ``params=``), craftax, jumanji or navix: see ``FunctionalEnv``;
            * an ``Env``, which is returned as it is.
        num_envs: Number of environments, stepped side by side; by default 1, or as many as ``env`` has.
        reward_scale: Factor of the rewards; see ``wrappers.ScaleReward``.
        observation_keys: Keys of a Dict observation that are shown, all by default; see ``wrappers.FilterObservation``.
        **kwargs: Arguments for gymnasium names and functions: ``vectorization`` (``"auto"``, ``"native"``, ``"sync"``,
            ``"threads"`` or ``"async"``), ``max_episode_steps`` (None for a name: no limit at all), ``action_repeat``,
            and for names ``wrappers`` and the arguments of the environment's constructor. For brax names the arguments
            of ``make_brax`` (``backend``, ``episode_length``, ``action_repeat``, …), for playground names those of
            ``make_playground``. For objects the arguments of ``GymnasiumEnv``, ``TensorEnv`` or ``FunctionalEnv``, and
            for vector environments in NumPy ``max_episode_steps``, which is kept by ``wrappers.EpisodeLimit``.

    Raises:
        ValueError: If the name is not known (the message has the nearest ones), or a space or an argument is not
            supported.
        TypeError: If ``env`` is none of the above, or nothing takes an argument (the message has the nearest name).
        ImportError: If the environment needs a package that is not installed; the message has the command.
        RuntimeError: If a worker process dies or takes too long.

    >>> env = make_env("CartPole-v1", num_envs=2)
    >>> env.reset(0).obs.shape
    (2, 4)
    """
    try:
        made = _make(env, num_envs, observation_keys, dict(kwargs))
    except TypeError as error:
        _explain_unknown(error, env, kwargs)
        raise
    return made if reward_scale is None else ScaleReward(made, reward_scale)


def _explain_unknown(error: TypeError, env: Any, kwargs: Mapping[str, Any]) -> None:
    """Raises a TypeError with the nearest argument, if ``error`` is of an argument that no function takes."""
    found = re.search(r"unexpected keyword argument '(\w+)'", str(error))
    if found is None or found[1] not in kwargs:
        return
    functions = [make_env, *_takers(env)]
    taken = {
        parameter.name: None
        for function in functions
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    refuse_unknown("make_env", [found[1]], [name for name in taken if name not in _INTERNAL])


def _takers(env: Any) -> list[Any]:
    """Functions that take the arguments with which an environment is made."""
    if isinstance(env, str):
        family = env.partition("/")[0]
        if family in FAMILIES:
            return [maker(family)]
        spec = gymnasium.registry[registered(env)[0]]
        return [_make_gymnasium, TimeLimit, creator(spec.entry_point or spec.vector_entry_point)]
    if _is_functional(env):
        from multippo.envs.functional.functional_env import FunctionalEnv

        return [FunctionalEnv]
    return [_make_constructed, GymnasiumEnv]


def _is_functional(env: Any) -> bool:
    """True for an object with ``reset`` and ``step`` that is not of gymnasium's classes."""
    return (
        not inspect.isclass(env)
        and not isinstance(env, Env | gymnasium.Env | VectorEnv)
        and all(callable(getattr(env, method, None)) for method in ("reset", "step"))
    )


_INTERNAL = {"env", "env_id", "name", "constructors", "can_repeat", "vector_env", "remake"}
"""Names of parameters that ``make_env`` fills in itself."""


def _make(env: Any, num_envs: int | None, keys: Sequence[str] | None, kwargs: dict[str, Any]) -> Env:
    num_envs = None if num_envs is None else check_size("", "num_envs", num_envs)
    limit = kwargs.get("max_episode_steps")
    if limit is not None:
        kwargs["max_episode_steps"] = check_size("", "max_episode_steps", limit, otherwise=", or None")
    if isinstance(env, str):
        return _make_named(env, num_envs or 1, keys, kwargs)
    if "torch" in sys.modules and not isinstance(env, Env):  # else nobody has made a tensor
        from multippo.envs.host.tensor_env import TensorEnv, is_tensor_env

        if is_tensor_env(env):
            made = TensorEnv(env, **kwargs)
            _check_count(num_envs, made.num_envs, f"{type(env).__name__} has")
            return _shown(made, keys)
    if is_pool(env):
        _check_count(num_envs, env.num_envs, f"{type(env).__name__} has")
        return pool_env(env, observation_keys=keys, **kwargs)
    if isinstance(env, VectorEnv):
        _check_count(num_envs, env.num_envs, f"{type(env).__name__} has")
        limit = kwargs.pop("max_episode_steps", None)
        made = GymnasiumEnv(env, observation_keys=keys, **kwargs)
        report_wrapper_statistics(made.id, env)
        # A limit at or above the environment's own changes nothing.
        return EpisodeLimit(made, limit) if limit and limit < (made.max_episode_steps or math.inf) else made
    if isinstance(env, Env):
        _check_count(num_envs, env.num_envs, f"{type(env).__name__} has")
        if kwargs:
            raise ValueError(
                f"{type(env).__name__} is finished; the arguments {sorted(kwargs)} can't be applied to it."
            )
        return _shown(env, keys)
    if isinstance(env, gymnasium.Env):
        if num_envs not in (None, 1):
            raise ValueError(
                f"One {type(env).__name__} can't become {num_envs} environments: pass a function that makes one, such "
                f"as lambda: {type(env).__name__}(...)."
            )
        return _make_constructed([lambda: env], can_repeat=False, observation_keys=keys, **kwargs)
    if isinstance(env, Sequence):
        _check_count(num_envs, len(env), "the list makes")
        return _make_constructed(list(env), observation_keys=keys, **kwargs)
    if _is_functional(env):
        refuse_other_interface(env)
        with needing("jax", f"The functional environment {type(env).__name__}"):
            from multippo.envs.functional.brax import without_batching
            from multippo.envs.functional.functional_env import FunctionalEnv
            from multippo.envs.functional.randomized import RandomizedEnv
            from multippo.envs.functional.suites import adapted

        own = {"params": kwargs.pop("params")} if "params" in kwargs else {}
        single = adapted(without_batching(env), **own)
        if (randomization_fn := kwargs.pop("randomization_fn", None)) is not None:
            single = RandomizedEnv(single, randomization_fn)
        kwargs.setdefault("id", type(env).__name__)
        return _shown(FunctionalEnv(single, num_envs or 1, **kwargs), keys)
    if callable(env):
        return _make_constructed([env] * (num_envs or 1), observation_keys=keys, **kwargs)
    raise TypeError(
        f"An environment can't be made from {env!r} of type {type(env).__name__}: expected a name, a "
        "gymnasium.vector.VectorEnv, a function (or a list of functions) that makes a gymnasium.Env, or a functional "
        "environment with reset and step."
    )


def _check_count(num_envs: int | None, count: int, there: str) -> None:
    if num_envs not in (None, count):
        raise ValueError(
            f"num_envs={num_envs} was asked for, but {there} {count} environments: leave num_envs out, or pass as many."
        )


def _shown(env: Env, keys: Sequence[str] | None) -> Env:
    return env if keys is None else FilterObservation(env, keys)


def _make_named(env_id: str, num_envs: int, keys: Sequence[str] | None, kwargs: dict[str, Any]) -> Env:
    prefix, _, name = env_id.partition("/")
    if prefix not in FAMILIES:
        return _make_gymnasium(env_id, num_envs, observation_keys=keys, **kwargs)
    with needing(prefix, env_id):
        try:
            return _shown(maker(prefix)(name, num_envs, **kwargs), keys)
        except KeyError as error:
            if error.args == (name,):
                raise unknown_env(env_id) from None
            raise


def _make_gymnasium(
    env_id: str,
    num_envs: int,
    /,
    *,
    vectorization: Vectorization = "auto",
    wrappers: Sequence[Wrapper] = (),
    action_repeat: int = 1,
    observation_keys: Sequence[str] | None = None,
    reward_dtype: Any = np.float32,
    worker_timeout: float = WORKER_TIMEOUT_S,
    **kwargs: Any,
) -> GymnasiumEnv:
    gymnasium_id, package = registered(env_id)
    if observation_keys is None and package is not None:
        observation_keys = package.keys
    wrappers = (*wrappers, *_changes(action_repeat, observation_keys))
    spec = gymnasium.registry.get(gymnasium_id)
    if spec is None:
        if ":" in gymnasium_id:
            module, _, rest = gymnasium_id.partition(":")
            raise ValueError(
                f"The name {env_id!r} asks to import the module {module!r}, which names must not do: import it in your "
                f"program and pass {rest!r}, or call multippo.cli.main() there."
            )
        raise unknown_env(env_id)

    def remake(count: int) -> VectorEnv[Any, Any, Any]:
        nonlocal vectorization
        try:
            made = vectorize_id(spec, count, vectorization, wrappers, worker_timeout, **kwargs)
            vectorization = chosen(made) or vectorization
            return made
        except gymnasium.error.DependencyNotInstalled as error:
            raise ImportError(f"{env_id} needs a package that is not installed: {error}") from error

    limit = kwargs.get("max_episode_steps", spec.max_episode_steps)
    if "max_episode_steps" in kwargs and limit is None:
        kwargs["max_episode_steps"] = -1  # gymnasium takes None for the registered limit
    options = {"reward_dtype": reward_dtype, "remake": remake, "worker_timeout": worker_timeout}
    return _adapted(remake(num_envs), limit, action_repeat, id=spec.id, **options)


def _make_constructed(
    constructors: Sequence[Callable[[], Any]],
    vectorization: Vectorization = "auto",
    can_repeat: bool = True,
    max_episode_steps: int | None = None,
    action_repeat: int = 1,
    observation_keys: Sequence[str] | None = None,
    worker_timeout: float = WORKER_TIMEOUT_S,
    **kwargs: Any,
) -> GymnasiumEnv:
    wrappers = _changes(action_repeat, observation_keys)
    if max_episode_steps is not None:
        wrappers.insert(0, functools.partial(TimeLimit, max_episode_steps=max_episode_steps))
    if not constructors or not all(callable(constructor) for constructor in constructors):
        raise TypeError(
            f"A list of functions that make one gymnasium.Env each was expected, received {constructors!r}: pass "
            "[lambda: MyEnv(), ...]."
        )

    def remake(count: int) -> VectorEnv[Any, Any, Any]:
        # Another batch size repeats the list, so that a mixture of tasks stays one.
        nonlocal vectorization
        repeated = [constructors[index % len(constructors)] for index in range(count)]
        made = vectorize(repeated, vectorization, worker_timeout, wrappers)
        vectorization = chosen(made) or vectorization
        return made

    vector_env = remake(len(constructors))
    made = first_made(vector_env)
    kwargs.setdefault("id", made.name)
    kwargs |= {"remake": remake if can_repeat else None, "worker_timeout": worker_timeout}
    return _adapted(vector_env, max_episode_steps or made.max_episode_steps, action_repeat, **kwargs)


def _adapted(
    vector_env: VectorEnv[Any, Any, Any], limit: int | None, action_repeat: int, **kwargs: Any
) -> GymnasiumEnv:
    try:
        env = GymnasiumEnv(vector_env, max_episode_steps=math.ceil(limit / action_repeat) if limit else None, **kwargs)
        report_wrapper_statistics(env.id, vector_env)
        return env
    except BaseException:
        vector_env.close()
        raise


def _changes(action_repeat: int, keys: Sequence[str] | None) -> list[Wrapper]:
    """Wrappers of a single environment for two arguments of ``make_env``."""
    repeating = [] if action_repeat == 1 else [functools.partial(ActionRepeat, repeats=action_repeat)]
    return [*repeating, *([] if keys is None else [functools.partial(filter_single, keys=keys)])]
