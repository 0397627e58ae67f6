"""Which bytes are images."""

import numpy as np
import pytest
from gymnasium import spaces

from multippo.networks.factories.observations import is_image


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((16, 16, 1), True),
        ((210, 160, 3), True),
        ((3, 64, 64), True),  # channels first
        ((4, 84, 84), True),  # grey frames, stacked
        ((84, 84, 3, 4), True),
        ((7, 7, 3), False),  # MiniGrid
        ((84, 84), False),
        ((128,), False),  # Atari's memory
        ((2, 4, 84, 84, 3), False),
    ],
)
def test_by_shape(shape, expected):
    assert is_image(spaces.Box(0, 255, shape, np.uint8)) is expected


def test_bounds_and_type():
    assert not is_image(spaces.Box(0, 1, (64, 64, 3), np.uint8))
    assert not is_image(spaces.Box(0, 255, (64, 64, 3), np.float32))
    assert not is_image(spaces.Discrete(3))
