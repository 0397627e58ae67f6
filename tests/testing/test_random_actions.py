"""Random actions are of those that the mask allows, and each of them is drawn."""

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from multippo.testing import check_env
from multippo.testing.check_env import random_action

RNG = np.random.default_rng(0)


def test_without_a_mask_every_choice_is_drawn():
    drawn = np.stack([random_action(spaces.MultiDiscrete([[2, 3]]), 4, RNG) for _ in range(200)])
    assert drawn.shape == (200, 4, 1, 2) and drawn.dtype == np.int32
    assert set(drawn[..., 0].ravel()) == {0, 1} and set(drawn[..., 1].ravel()) == {0, 1, 2}


def test_the_integers_of_a_box_are_choices():
    space = spaces.Box(np.array([[-128, 5]]), np.array([[-126, 5]]), dtype=np.int8)
    drawn = np.stack([random_action(space, 4, RNG) for _ in range(100)])
    assert drawn.shape == (100, 4, 1, 2) and drawn.dtype == np.int32
    assert set(drawn[..., 0].ravel()) == {0, 1, 2} and set(drawn[..., 1].ravel()) == {0}
    # Three of the mask's numbers for the first, one for the second.
    masked = [random_action(space, 1, RNG, np.array([[0, 1, 1, 1]])) for _ in range(60)]
    assert {int(action[0, 0, 0]) for action in masked} == {1, 2}


def test_what_the_mask_allows_and_all_of_it():
    mask = np.array([[1, 0, 1], [0, 1, 0], [0, 0, 0]], np.int8)
    drawn = np.stack([random_action(spaces.Discrete(3), 3, RNG, mask) for _ in range(200)])
    assert set(drawn[:, 0]) == {0, 2} and set(drawn[:, 1]) == {1}
    assert set(drawn[:, 2]) == {0, 1, 2}  # where nothing is allowed, the mask says nothing


def test_parts_of_an_action_have_parts_of_the_mask():
    space = spaces.Dict({"a": spaces.MultiDiscrete([2, 3]), "b": spaces.Discrete(2)})
    masks = {"a": (np.array([[0, 1]]), np.array([[1, 0, 1]]))}
    drawn = [random_action(space, 1, RNG, masks) for _ in range(100)]
    assert {tuple(action["a"][0]) for action in drawn} == {(1, 0), (1, 2)}
    assert {int(action["b"][0]) for action in drawn} == {0, 1}
    # A mask of another size is none.
    assert {int(random_action(spaces.Discrete(3), 1, RNG, np.ones((1, 2)))[0]) for _ in range(60)} == {0, 1, 2}


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


class StrictBox(Strict):
    """The same with actions in a Box of integers."""

    action_space = spaces.Box(np.array([-1, 4]), np.array([1, 5]), dtype=np.int16)

    def step(self, action):
        return super().step(action - self.action_space.low)


@pytest.mark.parametrize("strict", [Strict, StrictBox])
def test_an_environment_that_fails_at_forbidden_actions_is_played_by_its_mask(strict):
    report = check_env(strict, num_steps=50)
    assert report and report.episodes == 5, str(report)
