"""Observations, and what else a single environment returns: converted, or refused in words of the library's own."""

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
import torch
from gymnasium import spaces

from multippo.envs import make_env
from multippo.envs.observations import Observations, as_flag, as_reward, make_observation_map, put_rows, split_step
from multippo.trees import tree_map


def test_box_is_a_contiguous_copy_in_the_declared_type():
    to_policy = make_observation_map(spaces.Box(-1, 1, (2,), np.float32))
    raw = np.array([[1.0, 5.0], [2.0, 6.0], [3.0, 7.0]]).T.copy().T  # float64, column by column
    obs = to_policy(raw, 3)
    assert obs.dtype == np.float32
    assert obs.flags.c_contiguous
    # Values outside the bounds are no error.
    np.testing.assert_array_equal(obs, [[1, 5], [2, 6], [3, 7]])
    same_type = np.zeros((3, 2), np.float32)
    to_policy(same_type, 3)[:] = 1
    np.testing.assert_array_equal(same_type, 0)


def test_categories_become_one_hot():
    discrete = make_observation_map(spaces.Discrete(3, start=-1))
    assert discrete.space == spaces.Box(0, 1, (3,), np.float32)
    np.testing.assert_array_equal(discrete(np.array([-1, 1]), 2), [[1, 0, 0], [0, 0, 1]])
    # Blocks of 2 and 3: (1, 0) -> 01|100 and (0, 2) -> 10|001.
    multi = make_observation_map(spaces.MultiDiscrete([2, 3]))
    np.testing.assert_array_equal(multi(np.array([[1, 0], [0, 2]]), 2), [[0, 1, 1, 0, 0], [1, 0, 0, 0, 1]])
    binary = make_observation_map(spaces.MultiBinary(2))
    assert binary.space == spaces.Box(0, 1, (2,), np.float32)
    assert binary(np.array([[1, 0]], np.int8), 1).dtype == np.float32


def test_a_category_outside_its_space_is_refused():
    with pytest.raises(ValueError, match=r"the values \[3\].*from \[0\] to \[2\]"):
        make_observation_map(spaces.Discrete(3))(np.array([3]), 1)


NESTED = spaces.Dict(
    {
        "b": spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(2)]),
        "a": spaces.Dict({"image": spaces.Box(0, 255, (1, 1), np.uint8)}),
    }
)


def test_trees():
    to_policy = make_observation_map(NESTED)
    obs = to_policy(
        {"a": {"image": np.array([[[7]], [[8]]], np.uint8)}, "b": (np.array([[1.0, 2.0], [3.0, 4.0]]), [1, 0])}, 2
    )
    np.testing.assert_array_equal(obs["a"]["image"], [[[7]], [[8]]])
    np.testing.assert_array_equal(obs["b"][0], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(obs["b"][1], [[0, 1], [1, 0]])
    assert obs["b"][0].dtype == np.float32
    put = put_rows(obs, np.array([0]), tree_map(lambda leaf: leaf[1:], obs))
    np.testing.assert_array_equal(put["b"][0], [[3, 4], [3, 4]])
    np.testing.assert_array_equal(put["a"]["image"], [[[8]], [[8]]])
    # put copies.
    np.testing.assert_array_equal(obs["b"][0], [[1, 2], [3, 4]])


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        ({"a": {"image": np.zeros((1, 1, 1), np.uint8)}}, r"observation that.*entries \['a'\], .*\['a', 'b'\]"),
        ({"a": {"image": np.zeros((1, 2, 1), np.uint8)}, "b": ()}, r"\['a'\]\['image'\].*\(2, 1\), expected.*\(1, 1\)"),
        ({"a": {"image": np.zeros((1, 1, 1))}, "b": ()}, r"\['a'\]\['image'\].*float64 values, expected uint8"),
    ],
)
def test_a_mismatch_names_the_leaf(raw, message):
    with pytest.raises(ValueError, match=message):
        make_observation_map(NESTED)(raw, 1)


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict(x=spaces.Text(3)), r"observation\['x'\] = .*supported are Box.*TransformObservation"),
        (spaces.Dict(a=spaces.Dict({1: spaces.Discrete(2), "x": spaces.Discrete(2)})), "strings that are not empty"),
    ],
)
def test_other_spaces_are_refused_by_name(space, message):
    with pytest.raises(ValueError, match=message):
        make_observation_map(space)


# -- what a single environment returns

ZEROS = np.zeros(2, np.float32)
BOX = spaces.Box(-1, 1, (2,), np.float32)


@pytest.mark.parametrize(
    ("reward", "number"),
    [
        (True, 1.0),
        (np.uint8(7), 7.0),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (jnp.asarray(3), 3.0),
        (float("inf"), float("inf")),
    ],
)
def test_a_reward_is_any_real_number(reward, number):
    assert as_reward(reward) == number
    assert split_step((ZEROS, reward, False, False, {}))[1] == number


@pytest.mark.parametrize("cast", [int, float, np.bool_, np.float32, np.array, torch.tensor, jnp.asarray])
def test_flags(cast):
    for value in (True, False):
        assert as_flag("terminated", cast(value)) is value
    assert split_step((ZEROS, 0.0, cast(True), None, {}))[2:4] == (True, False)


def step(**changed):
    named = {"obs": ZEROS, "reward": 1.0, "terminated": False, "truncated": False, "info": {}, **changed}
    return tuple(named.values())


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ((ZEROS, 1.0, False, {}), TypeError, "step returned a tuple of 4 entries; .*truncated, info"),
        (step(reward=np.ones(1)), ValueError, r"a reward of shape \(1,\), expected one number"),
        (step(reward={"a": 1.0}), TypeError, r"a dict as reward, with the keys \['a'\].*functional environment"),
        (step(truncated="False"), TypeError, r"step returned a str \('False'\) as truncated; expected a bool"),
        (step(truncated=np.array([True])), ValueError, r"truncated of shape .*one bool: return bool\(truncated\)"),
    ],
)
def test_what_a_step_can_not_return(returned, error, message):
    with pytest.raises(error, match=message):
        split_step(returned)


class Returning(gymnasium.Env):
    """Returns what it is told; of ``step`` from the third step on."""

    observation_space = BOX
    action_space = spaces.Discrete(2)
    before = (ZEROS, 1.0, False, False, {})
    after = before

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return ZEROS, {}

    def step(self, action):
        self.time += 1
        return self.after if self.time >= 3 else self.before


def returning(**attributes):
    return type("Returning", (Returning,), attributes)


@pytest.mark.parametrize("action_repeat", [1, 3])
def test_what_step_returns_is_looked_at_in_every_step(action_repeat):
    env = make_env(returning(after=step(terminated="False")), num_envs=2, action_repeat=action_repeat)
    state = env.reset(0)
    with pytest.raises(TypeError, match=r"a str .* as terminated") as caught:
        for _ in range(3):
            state = env.step(state, np.zeros(2, np.int64))
    assert "Raised by environment 0 of the batch." in caught.value.__notes__
    env.close()


DICT = spaces.Dict({"x": BOX, "n": spaces.Discrete(3), "t": spaces.Tuple([BOX, spaces.MultiBinary(2)])})
RIGHT = {"x": ZEROS, "n": 1, "t": (ZEROS, np.zeros(2, np.int8))}


@pytest.mark.parametrize(
    ("space", "right", "wrong", "message"),
    [
        (BOX, ZEROS, np.array(["a", "b"]), "received str.* values, expected numbers"),
        (DICT, RIGHT, {**RIGHT, "n": 0.5}, r"observation\['n'\].*received float64 values, expected integers"),
        (DICT, RIGHT, {"x": ZEROS, "n": 1}, r"received a dict with the entries \['n', 'x'\]"),
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
