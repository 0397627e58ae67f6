import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from multippo.envs.actions import make_action_map

INF = np.inf
# Bounds, an action in policy coordinates, and the environment's action by
# clip((high + low)/2 + a (high - low)/2, low, high) where bounded on both sides, clip(a, low, high) elsewhere.
BOX_CASES = {
    "symmetric": ([-0.4], [0.4], [0.5], [0.2]),
    "positive, middle": ([0.0], [5.0], [0.0], [2.5]),
    "positive, lower end": ([0.0], [5.0], [-1.0], [0.0]),
    # Middle 1 and half width 2: 1 + 0.5·2 = 2. Middle 15 and half width 5: 15 - 0.2·5 = 14.
    "per dimension": ([-1.0, 10.0], [3.0, 20.0], [0.5, -0.2], [2.0, 14.0]),
    "half open": ([0.0, -INF], [INF, 1.0], [7.5, -7.5], [7.5, -7.5]),
    "half open, outside": ([0.0, -INF], [INF, 1.0], [-7.5, 7.5], [0.0, 1.0]),
    "mixed": ([-INF, 0.0], [INF, 4.0], [9.0, 0.5], [9.0, 3.0]),
    "zero width": ([2.0], [2.0], [0.7], [2.0]),
    # The largest float32 as a bound means none.
    "largest number": ([-3.4028235e38], [3.4028235e38], [0.5], [0.5]),
}


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize(("low", "high", "action", "expected"), BOX_CASES.values(), ids=BOX_CASES)
def test_box(low, high, action, expected, xp):
    space = spaces.Box(np.array(low, np.float32), np.array(high, np.float32))
    mapped = make_action_map(space, 1, xp)(xp.asarray([action], dtype=np.float32))
    assert mapped.dtype == np.float32
    np.testing.assert_allclose(mapped, [expected], rtol=1e-6)
    assert space.contains(np.asarray(mapped[0]))


def test_both_ends_of_any_box_are_reached_exactly():
    rng = np.random.default_rng(0)
    low, high = np.sort(rng.normal(size=(2, 1000)).astype(np.float32) * 3, axis=0)
    to_env = make_action_map(spaces.Box(low, high), 1)
    np.testing.assert_array_equal(to_env(-np.ones((1, 1000), np.float32))[0], low)
    np.testing.assert_array_equal(to_env(np.ones((1, 1000), np.float32))[0], high)


def test_the_policys_own_array_is_never_handed_out():
    for space in (spaces.Box(-1, 1, (2,)), spaces.Box(-INF, INF, (2,)), spaces.Box(-2, 2, (2,))):
        action = np.full((1, 2), 3.0, np.float32)
        make_action_map(space, 1)(action)[:] = 0
        np.testing.assert_array_equal(action, 3.0)
    action = np.ones(2, np.int64)
    make_action_map(spaces.Discrete(3), 2)(action)[:] = 0
    np.testing.assert_array_equal(action, 1)


@pytest.mark.parametrize("xp", [np, jnp])
def test_integers_count_from_the_start_of_their_space(xp):
    action = xp.asarray([0, 1, 2])
    np.testing.assert_array_equal(make_action_map(spaces.Discrete(3, start=-1), 3, xp)(action), [-1, 0, 1])
    np.testing.assert_array_equal(make_action_map(spaces.Discrete(1, start=2), 1, xp)(action[:1]), [2])
    multi = spaces.MultiDiscrete([2, 5], start=[10, 0])
    np.testing.assert_array_equal(make_action_map(multi, 1, xp)(xp.asarray([[1, 4]])), [[11, 4]])
    np.testing.assert_array_equal(make_action_map(spaces.MultiBinary(3), 1, xp)(xp.asarray([[1, 0, 1]])), [[1, 0, 1]])
    grid = spaces.MultiDiscrete(np.array([[2], [3]]))
    np.testing.assert_array_equal(make_action_map(grid, 1, xp)(xp.asarray([[[1], [2]]])), [[[1], [2]]])


INTEGERS = {
    # low, high, type, actions that count from 0, and low + action
    "offset": ([-5], [5], np.int32, [[0], [5], [10]], [[-5], [0], [5]]),
    "whole type": ([-128], [127], np.int8, [[0], [127], [128], [255]], [[-128], [-1], [0], [127]]),
    "whole type, no sign": ([0], [255], np.uint8, [[0], [200], [255]], [[0], [200], [255]]),
    "zero width": ([7, 2], [7, 3], np.int16, [[0, 1]], [[7, 3]]),
    "two axes": ([[0, -3]], [[2, -1]], np.int32, [[[1, 0]], [[2, 2]]], [[[1, -3]], [[2, -1]]]),
    "flags": ([False, True], [True, True], np.bool_, [[0, 0], [1, 0]], [[False, True], [True, True]]),
}


@pytest.mark.parametrize("xp", [np, jnp])
@pytest.mark.parametrize(("low", "high", "dtype", "action", "expected"), INTEGERS.values(), ids=INTEGERS)
def test_a_box_of_integers_counts_from_its_lower_bound(low, high, dtype, action, expected, xp):
    low, high = np.array(low, dtype), np.array(high, dtype)
    space = spaces.Box(low, high, low.shape, dtype)
    mapped = make_action_map(space, len(action), xp)(xp.asarray(action))
    np.testing.assert_array_equal(mapped, expected)
    assert all(space.contains(np.asarray(row, dtype)) for row in mapped)
    # Without its 64-bit mode JAX has no int64.
    assert mapped.dtype == (np.int32 if xp is jnp and dtype is np.int64 else dtype)


@pytest.mark.parametrize(
    ("space", "problem"),
    [
        (spaces.Box(0, 1024, (2,), np.int32), "has 1025 integers in one dimension"),
        (spaces.Box(-(2**63), 2**63 - 2, (1,), np.int64), f"has {2**64 - 1} integers"),
        (spaces.Box(0, np.inf, (1,), np.int32), "not bounded on both sides"),
    ],
    ids=str,
)
def test_a_box_of_too_many_integers_is_refused(space, problem):
    with pytest.raises(ValueError, match=rf"action space action\['a'\] = Box.*{problem}.*at most 1024.*Box of floats"):
        make_action_map(spaces.Dict(a=space), 1)


TWO = spaces.Discrete(2)


@pytest.mark.parametrize(
    ("space", "action", "message"),
    [
        (spaces.Box(-1, 1, (2,)), np.zeros((1, 1)), r"\(1, 1\); expected \(1, 2\)"),
        (TWO, np.zeros(1, np.float32), "float32; expected integers: use a sampler for discrete"),
        (spaces.Dict(a=TWO, b=TWO), {"a": np.zeros(1, int)}, r"\['a'\]; expected .*\['a', 'b'\]"),
        (spaces.Discrete(3, start=-1), np.array([3]), r"\[3\]; expected numbers from 0 to below 3: give the network's"),
        (spaces.Box(-1, 1, (2,), np.int32), np.array([[-1, 0]]), r"from 0 to below \[3, 3\]"),
    ],
)
def test_wrong_actions_are_refused(space, action, message):
    with pytest.raises(ValueError, match=message):
        make_action_map(space, 1)(action)
