"""Environments with the interfaces of other libraries, and the way to train on each of them."""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

__all__ = ["refuse_other_interface"]

_FUNCTIONAL = (
    "write a class whose reset(key) and step(state, action) return a dataclass or named tuple with obs, reward, done, "
    "and info for the environment's own state and a random key, and pass action_space="
)


class _Interface(NamedTuple):
    """One library's environments.

    Attributes:
        name: The library's, or what its environments are.
        packages: Where the base classes are from.
        marks: Attributes by which a lookalike is known, if it has all of them.
        arguments: How many its step then needs: 1 for the action, 2 for a state besides, 3 for a key too; None for any.
        way: To train on one.
    """

    name: str
    packages: tuple[str, ...]
    marks: tuple[str, ...]
    arguments: int | None
    way: str


_INTERFACES = (
    _Interface(
        "a PettingZoo environment",
        ("pettingzoo",),
        ("possible_agents",),
        None,
        "Several agents are not supported: write a gymnasium.Env of one of them, in which the others act on their own.",
    ),
    _Interface(
        "a vector environment of Stable-Baselines3's",
        ("stable_baselines3",),
        ("step_async", "step_wait"),
        None,
        "Pass the functions that make its single environments: make_env([make, make, ...]).",
    ),
    _Interface(
        "a PufferLib environment",
        ("pufferlib",),
        ("driver_env",),
        None,
        "Pass a function that makes the gymnasium.Env inside, or write a gymnasium.vector.VectorEnv with a row for "
        "each of its agents.",
    ),
    _Interface(
        "a dm_env environment",
        ("dm_env", "dm_control"),
        ("observation_spec", "action_spec"),
        1,
        "Pass lambda: shimmy.DmControlCompatibilityV0(...) with a new environment in it (pip install shimmy).",
    ),
    _Interface(
        "a jumanji environment",
        ("jumanji",),
        ("observation_spec", "action_spec"),
        2,
        "Pass lambda: jumanji.wrappers.JumanjiToGymWrapper(env); or, to have it compiled, " + _FUNCTIONAL + ".",
    ),
    _Interface(
        "a craftax environment",
        ("craftax",),
        (),
        None,
        f"Make it with auto_reset=False and {_FUNCTIONAL}gymnasium.spaces.Discrete(env.num_actions).",
    ),
    _Interface(
        "a gymnax environment",
        ("gymnax",),
        ("default_params",),
        3,
        f"Pass lambda: gymnax.wrappers.gym.GymnaxToGymWrapper(env); or, to have it compiled, {_FUNCTIONAL}.",
    ),
    _Interface(
        "an environment of the old package gym",
        ("gym",),
        ("observation_space", "action_space"),
        1,
        "Derive it from gymnasium.Env, with five values from step; or pass lambda: "
        "shimmy.GymV26CompatibilityV0(env=...) with a new environment in it (GymV21CompatibilityV0 before gym 0.26; "
        "pip install shimmy).",
    ),
    _Interface(
        "an object whose step takes the action alone",
        (),
        ("step",),
        1,
        "Derive it from gymnasium.Env and pass a function that makes one.",
    ),
)


def refuse_other_interface(env: Any) -> None:
    """Refuses an object with ``reset`` and ``step`` that is not a functional environment; imports nothing for that.

    Raises:
        TypeError: If it is not one; the message names what it is and the way to train on it.
    """
    if hasattr(env, "action_size"):  # brax's interface, such as gymnax's wrapper for it
        return
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    arguments = _needed(env.step)
    for interface in _INTERFACES:
        marked = interface.marks and all(hasattr(env, mark) for mark in interface.marks)
        if not packages.isdisjoint(interface.packages) or (marked and interface.arguments in (None, arguments)):
            raise TypeError(
                f"{type(env).__name__} is {interface.name}; expected a gymnasium.Env, made by a function, or a "
                f"functional JAX environment. {interface.way}"
            )


def _needed(step: Any) -> int | None:
    """The number of arguments that a method needs; None where that is not known."""
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return None
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is each.empty and each.kind in positional for each in parameters)
