"""Gymnasium vector environments from an id, or from the user's constructors."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, get_args

import gymnasium
from gymnasium.envs.registration import EnvSpec, load_env_creator
from gymnasium.vector import VectorEnv

from multippo.arguments import check_number
from multippo.envs.host.in_process import InProcessVectorEnv, most_threads
from multippo.envs.host.members import MadeMember, MemberConstructor, Wrapper
from multippo.envs.host.workers import WORKER_TIMEOUT_S, WatchedVectorEnv

_LOG = logging.getLogger("multippo")

Vectorization = Literal["auto", "native", "sync", "threads", "async"]


def vectorize(
    constructors: Sequence[Callable[[], gymnasium.Env[Any, Any]]],
    vectorization: Vectorization = "auto",
    worker_timeout: float = WORKER_TIMEOUT_S,
    wrappers: Sequence[Wrapper] = (),
) -> VectorEnv[Any, Any, Any]:
    """One environment from each constructor, side by side, reset in the step in which an episode ends.

    Args:
        constructors: Functions that make one environment each.
        vectorization: ``"sync"`` for one after another in this process, ``"threads"`` for some threads of it, which
            pay where steps release the interpreter's lock, ``"async"`` for one worker process each. Trajectories are
            the same bit for bit, as long as environments share nothing. ``"auto"`` leaves the choice between the first
            two to a clock for gymnasium's MuJoCo environments, and is ``"sync"`` for others. Workers are started
            afresh instead of forked, since JAX and torch run threads that a fork would break; as always with Python's
            ``multiprocessing``, a script then needs ``if __name__ == "__main__":``.
        worker_timeout: Seconds that a worker may take for an answer; see ``WatchedVectorEnv``.
        wrappers: Wrappers applied to each environment in turn.

    Raises:
        ValueError: If the environments' spaces differ or are not supported, ``vectorization`` is not known, or
            ``worker_timeout`` is not above 0.
        TypeError: If a constructor returns something else than a ``gymnasium.Env``.
        RuntimeError: If a worker dies or takes longer; no process is left behind.
    """
    known = get_args(Vectorization)
    if vectorization not in known:
        raise ValueError(f"vectorization={vectorization!r} is not known: expected one of {', '.join(known)}.")
    worker_timeout = check_number("", "worker_timeout", worker_timeout, above=0.0)
    first: list[MadeMember] = []
    members = [MemberConstructor(make, index, wrappers, first) for index, make in enumerate(constructors)]
    if vectorization == "async":
        return WatchedVectorEnv(members, worker_timeout)
    vector_env = InProcessVectorEnv(members, most_threads(len(members)) if vectorization == "threads" else 1)
    if vectorization == "auto":
        vector_env.choose_threads()
    return vector_env


def chosen(vector_env: VectorEnv[Any, Any, Any]) -> Literal["sync", "threads"] | None:
    """The form that a clock has chosen for a vector environment, or None."""
    return vector_env.vectorization if isinstance(vector_env, InProcessVectorEnv) else None


def first_made(vector_env: VectorEnv[Any, Any, Any]) -> MadeMember:
    """The first member of a vector environment from ``vectorize``."""
    constructor: Any = vector_env.env_fns[0]  # type: ignore[attr-defined]
    return constructor.first[0]


def vectorize_id(
    spec: EnvSpec,
    num_envs: int,
    vectorization: Vectorization = "auto",
    wrappers: Sequence[Wrapper] = (),
    worker_timeout: float = WORKER_TIMEOUT_S,
    **kwargs: Any,
) -> VectorEnv[Any, Any, Any]:
    """Makes registered environments, side by side.

    Args:
        spec: The environment's registration.
        num_envs: Number of environments.
        vectorization: ``"native"`` for the environment's own vector form, if it has one; ``"sync"``, ``"threads"`` and
            ``"async"`` as in ``vectorize``; ``"auto"`` for the native form where it allows all other arguments and is
            the same task, by its spaces and its arguments' defaults, else as in ``vectorize``.
        wrappers: Wrappers applied to each environment in turn; with any the native form is not possible.
        worker_timeout: Seconds that a worker may take for an answer, as in ``vectorize``.
        **kwargs: Arguments of the environment's constructor, and ``max_episode_steps`` (-1 for no limit).

    Raises:
        ValueError: If the native form is asked for and does not exist or does not allow another argument; or as in
            ``vectorize``.
        RuntimeError: If a worker dies or takes longer, as in ``vectorize``.
    """
    obstacle = _obstacle_to_native(spec, wrappers, kwargs)
    if vectorization == "native" and obstacle:
        raise ValueError(
            f"{spec.id} can't run in its own vector form: {obstacle}. Use vectorization='sync', 'threads' or 'async'."
        )
    if vectorization == "native" or (vectorization == "auto" and not obstacle):
        native = gymnasium.make_vec(spec, num_envs, vectorization_mode="vector_entry_point", **kwargs)
        difference = _difference_of_native(native, spec, kwargs) if vectorization == "auto" else None
        if difference is None:
            return native
        native.close()
        _report_difference(spec.id, difference)
    # Member makes the checks of gymnasium's checker, and costs nothing per step.
    make = functools.partial(gymnasium.make, spec, **{"disable_env_checker": True, **kwargs})
    return vectorize([make] * num_envs, vectorization, worker_timeout, wrappers)


def _obstacle_to_native(spec: EnvSpec, wrappers: Sequence[Any], kwargs: dict[str, Any]) -> str | None:
    """The reason against an environment's own vector form, or None."""
    if spec.vector_entry_point is None:
        return "it has none"
    if wrappers or spec.additional_wrappers:
        return "wrappers apply to single environments"
    limit = kwargs.get("max_episode_steps", spec.max_episode_steps)
    if limit is not None and limit < 1:
        # The vector form takes gymnasium's -1 for a limit, and would end an episode in every step.
        return "it can't do without a limit (max_episode_steps=None)"
    parameters = _parameters(spec.vector_entry_point)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in {**spec.kwargs, **kwargs} if name not in parameters]
    return f"it does not take {unknown}" if unknown and not takes_any else None


def _difference_of_native(native: VectorEnv[Any, Any, Any], spec: EnvSpec, kwargs: dict[str, Any]) -> str | None:
    """The first difference between an environment's own vector form and the environment itself, or None."""
    if spec.entry_point is None:
        return None
    unrendered = {name: value for name, value in kwargs.items() if name != "render_mode"}
    with contextlib.closing(gymnasium.make(spec, **{"disable_env_checker": True, **unrendered})) as env:
        for kind in ("observation_space", "action_space"):
            theirs, own = getattr(native, f"single_{kind}"), getattr(env, kind)
            if theirs != own:
                return f"the {kind} {theirs} instead of {own}"
    given = {**spec.kwargs, **kwargs}
    single = _parameters(spec.entry_point)
    for name, parameter in _parameters(spec.vector_entry_point).items():
        default = parameter.default
        if name in given or name in _NOT_OF_THE_TASK or default is parameter.empty:
            continue
        if name in single and single[name].default != default:
            return f"{name}={default} instead of {single[name].default}"
        if name not in single and default:
            return f"{name}={default}, which the environment itself does not have"
    return None


_NOT_OF_THE_TASK = ("num_envs", "max_episode_steps", "render_mode", "autoreset_mode")
"""Arguments of vector forms that do not change the task."""


@functools.cache
def _report_difference(env_id: str, difference: str) -> None:
    """Reports once that an environment's own vector form was not taken."""
    _LOG.warning(
        "The vector form of %s has %s, so its environments run one by one. Pass vectorization='native' for the vector "
        "form as it is, or 'async' for worker processes.",
        env_id,
        difference,
    )


def _parameters(entry_point: Any) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(creator(entry_point)).parameters


def creator(entry_point: Any) -> Callable[..., Any]:
    """The class or function at a registered entry point."""
    return load_env_creator(entry_point) if isinstance(entry_point, str) else entry_point
