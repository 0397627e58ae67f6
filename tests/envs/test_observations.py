import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs.observations import make_observation_map, put_rows, take_rows


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


def test_images_stay_uint8():
    image = np.full((2, 64, 64), 200, np.uint8)
    obs = make_observation_map(spaces.Box(0, 255, (64, 64), np.uint8))(image, 2)
    assert obs.dtype == np.uint8
    np.testing.assert_array_equal(obs, 200)


def test_float64_stays_where_it_is_declared():
    assert make_observation_map(spaces.Box(-1, 1, (1,), np.float64))(np.zeros((1, 1)), 1).dtype == np.float64


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
    rows = [
        {"a": {"image": np.array([[7]], np.uint8)}, "b": (np.array([1.0, 2.0]), 1)},
        {"a": {"image": np.array([[8]], np.uint8)}, "b": (np.array([3.0, 4.0]), 0)},
    ]
    obs = to_policy(to_policy.stack(rows), 2)
    np.testing.assert_array_equal(obs["a"]["image"], [[[7]], [[8]]])
    np.testing.assert_array_equal(obs["b"][0], [[1, 2], [3, 4]])
    np.testing.assert_array_equal(obs["b"][1], [[0, 1], [1, 0]])
    assert obs["b"][0].dtype == np.float32
    second = take_rows(obs, np.array([1]))
    put = put_rows(obs, np.array([0]), second)
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
        ({"a": {"image": np.zeros((1, 1, 1), np.uint8)}, "b": ()}, r"\['b'\].*an empty tuple, expected a tuple of 2"),
        (np.zeros((1, 2)), r"an array of shape .1, 2., expected a dict"),
    ],
)
def test_a_mismatch_names_the_leaf(raw, message):
    with pytest.raises(ValueError, match=message):
        make_observation_map(NESTED)(raw, 1)


@pytest.mark.parametrize("space", [spaces.Text(3), spaces.Sequence(spaces.Discrete(2))])
def test_other_spaces_are_refused_by_name(space):
    with pytest.raises(
        ValueError, match=r"observation\['x'\] = .*not supported; supported are Box.*TransformObservation"
    ):
        make_observation_map(spaces.Dict({"x": space}))


@pytest.mark.parametrize("keys", [("", "x"), (1, "x")])
def test_keys_that_name_no_entry_are_refused(keys):
    inner = spaces.Dict(dict.fromkeys(keys, spaces.Discrete(2)))
    with pytest.raises(
        ValueError, match=r"observation\['a'\] space has the keys \[.*expected strings that are not empty"
    ):
        make_observation_map(spaces.Dict(a=inner))
    assert make_observation_map(spaces.Dict({1: spaces.Discrete(2), 0: spaces.Discrete(2)})).space[1].shape == (2,)
