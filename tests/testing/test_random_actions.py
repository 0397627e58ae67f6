"""Random actions are of those that the mask allows, and each of them is drawn."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from multippo.testing import check_env
from multippo.testing.check_env import random_action

RNG = np.random.default_rng(0)


INTEGERS = spaces.Box(np.array([[-128, 5]]), np.array([[-126, 5]]), dtype=np.int8)


@pytest.mark.parametrize(
    ("space", "mask", "expected"),
    [
        (spaces.MultiDiscrete([[2, 3]]), None, [{0, 1}, {0, 1, 2}]),
        # Integers of a Box are choices; three of the mask's numbers are for the first, one for the second.
        (INTEGERS, None, [{0, 1, 2}, {0}]),
        (INTEGERS, [[0, 1, 1, 1]], [{1, 2}, {0}]),
        (spaces.Discrete(3), [[1, 0, 1]], [{0, 2}]),
        # Where nothing is allowed, or a mask has another size, it says nothing.
        (spaces.Discrete(3), [[0, 0, 0]], [{0, 1, 2}]),
        (spaces.Discrete(3), [[1, 1]], [{0, 1, 2}]),
    ],
)
def test_what_the_mask_allows_and_all_of_it(space, mask, expected):
    mask = None if mask is None else np.asarray(mask)
    drawn = np.stack([random_action(space, 1, RNG, mask) for _ in range(200)])
    assert drawn.shape == (200, 1, *space.shape) and drawn.dtype == np.int32
    assert [set(column.tolist()) for column in drawn.reshape(200, -1).T] == expected


def test_parts_of_an_action_have_parts_of_the_mask():
    space = spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.Discrete(2)})
    masks = {"a": (np.array([[0, 1]]), np.array([[1, 0, 1]]))}
    drawn = [random_action(space, 1, RNG, masks) for _ in range(100)]
    assert {tuple(action["a"][0]) for action in drawn} == {(1, 0), (1, 2)}
    assert {int(action["b"][0]) for action in drawn} == {0, 1}


class Strict(gymnasium.Env):
    """Fails at an action that its mask forbids."""

    observation_space = spaces.Dict(
        {"time": spaces.Box(0, 9, (1,), np.float32), "action_mask": spaces.Box(0, 1, (5,), np.int8)}
    )
    action_space = spaces.MultiDiscrete([3, 2])

    def _obs(self):
        self.mask = np.array([1, 0, 0, 0, 1], np.int8)
        self.mask[self.np_random.integers(0, 3)] = 1
        return {"time": np.array([self.time], np.float32), "action_mask": self.mask.copy()}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._obs(), {}

    def step(self, action):
        assert self.mask[action[0]] and self.mask[3 + action[1]]
        self.time += 1
        return self._obs(), 1.0, self.time == 9, False, {}


def test_an_environment_that_fails_at_forbidden_actions_is_played_by_its_mask():
    report = check_env(Strict, num_steps=50)
    assert report and report.episodes == 5, str(report)
