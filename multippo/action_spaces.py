"""Numbers of an action that are choices, and numbers with bounds.

A dimension of a Box of integers is a choice of one of its values, as in a MultiDiscrete space.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces

MOST_CHOICES = 1024
"""Most values in a dimension of a Box. Each value has a logit, and of more hardly any would be tried often enough."""


def num_choices(space: Any, path: str = "action") -> np.ndarray | None:
    """Number of choices of each number of an action, in the action's shape; None if the numbers are not choices.

    Args:
        space: Space of one action. The choices of a Box of integers count from ``space.low``.
        path: Name of the space in errors.

    Raises:
        ValueError: If a dimension of a Box of integers lacks a bound, or has more than ``MOST_CHOICES`` values.
    """
    if isinstance(space, spaces.Discrete):
        return np.asarray(int(space.n))
    if isinstance(space, spaces.MultiDiscrete):
        return space.nvec
    if isinstance(space, spaces.MultiBinary):
        return np.full(space.shape, 2)
    if not isinstance(space, spaces.Box) or space.dtype.kind == "f":
        return None
    # The difference of two 64-bit integers fits into 64 unsigned bits, in which it is right modulo 2**64.
    width = space.high.astype(np.uint64) - space.low.astype(np.uint64)
    if not space.is_bounded("both"):
        problem = "has a dimension that is not bounded on both sides"
    elif np.any(width >= MOST_CHOICES):
        problem = f"has {int(width.max()) + 1} integers in one dimension"
    else:
        return width.astype(np.int64) + 1
    raise ValueError(
        f"The action space {path} = {space} {problem}, expected at most {MOST_CHOICES} in each: every integer is a "
        "choice with a probability of its own. Declare it as a Box of floats that the environment rounds, or with "
        "bounds that leave fewer."
    )


def is_bounded(space: spaces.Box) -> np.ndarray:
    """True in each dimension of a Box of floats with both bounds.

    Environments also write the largest number of the type, or one near it, for the lack of a bound.
    """
    limit = float(np.finfo(space.dtype.name).max) / 4
    return (space.low > -limit) & (space.high < limit)
