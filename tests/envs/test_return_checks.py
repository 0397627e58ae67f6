"""What a single environment returns: taken for what it is, or refused in words of the library's own."""

from __future__ import annotations

import fractions

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces

from multippo.envs import make_env
from multippo.envs.return_checks import Observations, as_flag, as_reward, split_step

ZEROS = np.zeros(2, np.float32)
BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (True, 1.0),
        (np.float16(0.5), 0.5),
        (np.uint8(7), 7.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (jnp.asarray(3), 3.0),
        (fractions.Fraction(1, 4), 0.25),
        (float("inf"), float("inf")),
    ],
)
def test_a_reward_is_any_real_number(reward, number):
    assert as_reward(reward) == number
    assert split_step((ZEROS, reward, False, False, {}))[1] == number


@pytest.mark.parametrize(
    ("reward", "error", "message"),
    [
        (None, TypeError, "step returned a NoneType as reward; expected a number"),
        ("1", TypeError, r"a str \('1'\) as reward"),
        ([1.0], TypeError, "a list of 1 entries as reward"),
        (1j, TypeError, "a complex as reward"),
        (np.array(None), TypeError, "an array of shape .* as reward"),
        (np.ones(1), ValueError, r"a reward of shape \(1,\), expected one number"),
        ({"a": 1.0}, TypeError, r"a dict as reward, with the keys \['a'\].*functional environment"),
    ],
)
def test_what_is_no_reward(reward, error, message):
    with pytest.raises(error, match=message):
        split_step((ZEROS, reward, False, False, {}))


@pytest.mark.parametrize("cast", [int, float, np.bool_, np.float32, np.array, torch.tensor, jnp.asarray])
def test_flags(cast):
    for value in (True, False):
        assert as_flag("terminated", cast(value)) is value
    assert split_step((ZEROS, 0.0, cast(True), None, {}))[2:4] == (True, False)


@pytest.mark.parametrize(
    ("flag", "error", "message"),
    [
        ("False", TypeError, r"step returned a str \('False'\) as truncated; expected a bool"),
        (0.5, TypeError, "a float .* as truncated"),
        (2, TypeError, r"a int \(2\) as truncated"),
        (np.array([True]), ValueError, r"truncated of shape \(1,\), expected one bool: return bool\(truncated\)"),
    ],
)
def test_what_is_no_flag(flag, error, message):
    with pytest.raises(error, match=message):
        split_step((ZEROS, 0.0, False, flag, {}))


class Returning(gymnasium.Env):
    """Returns what it is told; of ``step`` from the third step on."""

    observation_space = BOX
    action_space = spaces.Discrete(2)
    first = (ZEROS, {})
    before = (ZEROS, 1.0, False, False, {})
    after = before

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.first

    def step(self, action):
        self.time += 1
        return self.after if self.time >= 3 else self.before


def returning(**attributes):
    return type("Returning", (Returning,), attributes)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (None, r"reset returned a NoneType; expected \(observation, info\)"),
        (ZEROS, "reset returned an array of shape .*; expected"),  # of two entries
        ((ZEROS, None), "reset returned a NoneType as info; expected a dict"),
        ((ZEROS, {}, {}), "reset returned a tuple of 3 entries"),
    ],
)
def test_what_reset_returns(first, message):
    env = make_env(returning(first=first), num_envs=2)
    with pytest.raises(TypeError, match=message) as caught:
        env.reset(0)
    assert "Raised by environment 0 of the batch." in caught.value.__notes__
    env.close()


def step(**changed):
    named = {"obs": ZEROS, "reward": 1.0, "terminated": False, "truncated": False, "info": {}, **changed}
    return tuple(named.values())


@pytest.mark.parametrize("action_repeat", [1, 3])
@pytest.mark.parametrize(
    ("after", "message"),
    [
        ((ZEROS, 1.0, False, {}), "step returned a tuple of 4 entries; .*truncated, info.*`done` is in two parts"),
        (None, "step returned a NoneType; expected"),
        (step(reward=None), "step returned a NoneType as reward"),
        (step(terminated="False"), "a str .* as terminated"),
        (step(info=None), "step returned a NoneType as info; expected a dict"),
    ],
)
def test_what_step_returns(after, message, action_repeat):
    env = make_env(returning(after=after), num_envs=2, action_repeat=action_repeat)
    state = env.reset(0)
    with pytest.raises(TypeError, match=message) as caught:
        for _ in range(3):
            state = env.step(state, np.zeros(2, np.int64))
    assert "Raised by environment 0 of the batch." in caught.value.__notes__
    env.close()


def test_an_end_in_four_values_under_a_wrapper_of_gymnasiums():
    env = make_env(returning(before=(ZEROS, 1.0, False, {})), max_episode_steps=9)
    state = env.reset(0)
    with pytest.raises(ValueError, match="unpack") as caught:
        env.step(state, np.zeros(1, np.int64))
    assert any("what Returning returned: gymnasium expects" in note for note in caught.value.__notes__)
    env.close()


DICT = spaces.Dict({"x": BOX, "n": spaces.Discrete(3), "t": spaces.Tuple([BOX, spaces.MultiBinary(2)])})
RIGHT = {"x": ZEROS, "n": 1, "t": (ZEROS, np.zeros(2, np.int8))}


@pytest.mark.parametrize(
    ("space", "right", "wrong", "message"),
    [
        (BOX, ZEROS, None, "observation that .* received object values, expected numbers"),
        (BOX, ZEROS, np.array(["a", "b"]), "received str.* values, expected numbers"),
        (BOX, ZEROS, np.zeros((1, 2), np.float32), r"received shape \(1, 2\)"),
        (BOX, [0.0, 0.0], [0.0, 0.0, 0.0], r"received shape \(3,\)"),
        (DICT, RIGHT, {**RIGHT, "x": None}, r"observation\['x'\].*received object values"),
        (DICT, RIGHT, {**RIGHT, "n": 0.5}, r"observation\['n'\].*received float64 values, expected integers"),
        (DICT, RIGHT, {"x": ZEROS, "n": 1}, r"received a dict with the entries \['n', 'x'\]"),
        (DICT, RIGHT, {**RIGHT, "t": (ZEROS,)}, r"observation\['t'\].*received a tuple of 1 entries"),
        (DICT, RIGHT, {**RIGHT, "t": (ZEROS, np.zeros(3, np.int8))}, r"observation\['t'\]\[1\].*received shape \(3,\)"),
    ],
)
def test_an_observation_that_stops_fitting(space, right, wrong, message):
    observations = Observations(space)
    for _ in range(3):
        observations.check(right)
    with pytest.raises(ValueError, match=message):
        observations.check(wrong)
    observations.check(right)
    with pytest.raises(ValueError, match=message):
        observations.check(wrong)


def test_what_looks_different_and_fits():
    observations = Observations(BOX)
    for obs in (ZEROS, np.zeros(2), [0.5, 0.5], torch.zeros(2), np.zeros(2, np.int64), ZEROS):
        observations.check(obs)
    observations = Observations(DICT)
    for n in (1, np.int64(1), np.array(2), 0):
        observations.check({**RIGHT, "n": n})
