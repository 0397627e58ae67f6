"""Actions in a Box of integers: in each dimension one of its values is chosen, as in a MultiDiscrete space."""

from __future__ import annotations

from typing import Any, TypeGuard

import numpy as np
from gymnasium import spaces

MOST_CHOICES = 1024
"""Most values of one dimension. Each has a logit, so of more hardly any would be tried often enough."""


def is_integer_box(space: Any) -> TypeGuard[spaces.Box]:
    """True for a Box of integers or bools."""
    return isinstance(space, spaces.Box) and space.dtype.kind in "iub"


def num_choices(space: spaces.Box, path: str) -> np.ndarray:
    """Number of values in each dimension of a Box of integers, of the space's shape; they count from ``space.low``.

    Args:
        space: Of one action.
        path: Its name in an error.

    Raises:
        ValueError: If a dimension lacks a bound, or has more than ``MOST_CHOICES`` values.
    """
    # The difference of two 64-bit integers fits into 64 bits without a sign, where it comes out right modulo 2**64.
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
