"""Environments with the interfaces of other libraries, and the way to train on each of them."""

from __future__ import annotations

import inspect
from typing import Any

_FUNCTIONAL = (
    "write a class whose reset(key) and step(state, action) return a dataclass or named tuple with obs, reward, done, "
    "and info for the environment's own state and a random key, and pass action_space="
)

_WAYS = {
    "pettingzoo": (
        "a PettingZoo environment",
        "Several agents are not supported: write a gymnasium.Env of one of them, in which the others act on their own.",
    ),
    "stable_baselines3": (
        "a vector environment of Stable-Baselines3's",
        "Pass the functions that make its single environments: make_env([make, make, ...]).",
    ),
    "pufferlib": (
        "a PufferLib environment",
        "Pass a function that makes the gymnasium.Env inside, or write a gymnasium.vector.VectorEnv with a row for "
        "each of its agents.",
    ),
    "dm_env": (
        "a dm_env environment",
        "Pass lambda: shimmy.DmControlCompatibilityV0(...) with a new environment in it (pip install shimmy).",
    ),
    "jumanji": (
        "a jumanji environment",
        f"Pass lambda: jumanji.wrappers.JumanjiToGymWrapper(env); or, to have it compiled, {_FUNCTIONAL}.",
    ),
    "craftax": (
        "a craftax environment",
        f"Make it with auto_reset=False and {_FUNCTIONAL}gymnasium.spaces.Discrete(env.num_actions).",
    ),
    "gymnax": (
        "a gymnax environment",
        f"Pass lambda: gymnax.wrappers.gym.GymnaxToGymWrapper(env); or, to have it compiled, {_FUNCTIONAL}.",
    ),
    "gym": (
        "an environment of the old package gym",
        "Derive it from gymnasium.Env, with five values from step; or pass lambda: "
        "shimmy.GymV26CompatibilityV0(env=...) with a new environment in it (GymV21CompatibilityV0 before gym 0.26; "
        "pip install shimmy).",
    ),
}
"""By the package in which an environment's base class is defined: its name, and the way to train on it."""

_PLAIN = (
    "an object whose step takes the action alone",
    "Derive it from gymnasium.Env and pass a function that makes one.",
)


def refuse_other_interface(env: Any) -> None:
    """Raises for an object with ``reset`` and ``step`` that is not a functional environment; imports nothing for that.

    Raises:
        TypeError: If it is not one; the message names what it is and the way to train on it.
    """
    if hasattr(env, "action_size"):  # brax's interface, such as gymnax's wrapper for it
        return
    packages = {base.__module__.partition(".")[0] for base in type(env).__mro__}
    # craftax derives its environments from gymnax's, and is asked for first.
    found = next((way for package, way in _WAYS.items() if package in packages), None)
    if found is None and _takes_one(env.step):
        found = _PLAIN
    if found is not None:
        raise TypeError(
            f"{type(env).__name__} is {found[0]}; expected a gymnasium.Env, made by a function, or a functional JAX "
            f"environment. {found[1]}"
        )


def _takes_one(step: Any) -> bool:
    try:
        parameters = inspect.signature(step).parameters.values()
    except (TypeError, ValueError):
        return False
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(each.default is each.empty and each.kind in positional for each in parameters) == 1
