"""Time limits of functional environments, kept apart from terminations.

A brax-like state has one flag, ``done``. A wrapper that ends episodes by time sets it as well and says so in ``info``,
under a name on which nobody agreed. To overlook that name would turn every time limit into a termination, and the
values of all states near it would be wrong without a sign.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

TRUNCATION_KEYS = ("truncation", "truncated", "time_out")

_LIMIT_NAMES = ("episode_length", "max_episode_steps", "max_steps_in_episode", "max_steps", "time_limit")


def find_truncation_key(env: Any, info_keys: set[str], requested: str | None, episode_length: int | None) -> str | None:
    """The key of ``info`` under which an environment reports that its own time limit ended an episode.

    Args:
        env: The environment.
        info_keys: The keys of its state's ``info``.
        requested: The key the user names; None if the user declares that none exists; ``"auto"`` to find a known one.
        episode_length: The adapter's own limit, if any.

    Returns:
        The key, or None if every end that the environment itself declares is a termination.

    Raises:
        ValueError: If the requested key is not there, or there is none and the environment has a limit of its own.
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
    """The number of steps after which an environment or one of its wrappers ends an episode, where it can be seen."""
    for attribute in (*_LIMIT_NAMES, "_episode_length"):
        limit = getattr(env, attribute, None)
        if isinstance(limit, int | float | np.integer) and not isinstance(limit, bool) and limit > 0:
            return int(limit)
    return None


def _is_brax_task(env: Any) -> bool:
    # brax's own inverted_pendulum copies `done` to info["time_out"], so that a fallen pole would read as a time limit.
    return type(getattr(env, "unwrapped", env)).__module__.startswith("brax.envs.")
