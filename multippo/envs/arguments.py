"""What ``make_env`` and the classes behind it are asked for, checked before anything is made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

__all__ = ["check_wrappers", "time_limit", "whole"]


def whole(name: str, value: Any, least: int = 1, of: str = "", otherwise: str = "") -> int:
    """A whole number, as an int.

    Args:
        name: What it is, in an error.
        value: The number; a float that is whole will do.
        least: The smallest that is possible.
        of: The name of the environment it is for.
        otherwise: What else would be possible.

    Raises:
        ValueError: If it is no whole number, or below the smallest.
    """
    number = value
    if isinstance(number, float | np.floating) and float(number).is_integer():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int | np.integer) or number < least:
        where = f" for {of}" if of else ""
        shown = repr(value) if isinstance(value, str) else value
        raise ValueError(
            f"{name}={shown} is not possible{where}: expected a whole number of at least {least}{otherwise}."
        )
    return int(number)


def time_limit(value: Any, of: str = "") -> int | None:
    """A limit on an episode's steps, or None.

    Raises:
        ValueError: If it is neither None nor a whole number of at least 1.
    """
    return None if value is None else whole("max_episode_steps", value, 1, of, ", or None")


def check_wrappers(wrappers: Any) -> None:
    """Refuses what is no sequence of functions.

    Raises:
        TypeError: If it is something else, such as one function alone.
    """
    if isinstance(wrappers, Sequence) and all(isinstance(wrapper, Callable) for wrapper in wrappers):
        return
    mend = f" Pass [{getattr(wrappers, '__name__', wrappers)}]." if callable(wrappers) else ""
    raise TypeError(
        f"wrappers={wrappers!r} is not possible: expected a list of functions that take a gymnasium.Env and return "
        f"one.{mend}"
    )
