"""Where two runs part: the first iteration, the leaf, the place in it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from multippo.runs.comparing import Parting, apart, first_parting, logged_by_iteration


def differences(a, b, tolerance=0.0):
    return list(apart("x", a, b, tolerance))


def test_the_place_that_is_furthest_apart():
    a = np.array([[1.0, 2.0], [3.0, 400.0]])
    b = a + np.array([[0.0, 0.1], [0.0, 0.2]])
    (found,) = differences(a, b)
    # 0.1 of 2.1 is more than 0.2 of 400.2.
    assert found.index == (0, 1) and (found.a, found.b) == (2.0, 2.1)
    assert found.by == pytest.approx(0.1 / 2.1)
    assert not differences(a, b, 0.05) and differences(a, b, 0.04)


def test_small_numbers_are_apart_by_their_distance():
    (found,) = differences(1e-9, 2e-9)
    assert found.index == () and found.by == pytest.approx(1e-9)


@pytest.mark.parametrize("same", [math.nan, math.inf, -math.inf, 0.0])
def test_what_is_no_number_equals_itself(same):
    assert not differences(np.array([1.0, same]), np.array([1.0, same]))


@pytest.mark.parametrize(("a", "b"), [(math.nan, 1.0), (math.inf, 1.0), (math.inf, -math.inf), (1.0, math.nan)])
def test_no_tolerance_makes_a_number_of_what_is_none(a, b):
    (found,) = differences(np.array([5.0, a]), np.array([5.0, b]), tolerance=1e9)
    assert found.index == (1,) and found.by == math.inf


def test_whole_numbers_are_equal_or_not():
    a = np.array([2**62, 7])
    (found,) = differences(a, a + np.array([1, 0]), tolerance=1.0)
    assert found.index == (0,) and found.by > 0
    assert differences(True, False, tolerance=10.0)


def test_a_leaf_of_another_shape_or_none():
    (found,) = differences(np.ones(2), np.ones(3))
    assert (found.by, found.shapes) == (math.inf, ((2,), (3,)))
    (found,) = differences(1.5, None)
    assert (found.a, found.b, found.shapes) == (1.5, None, ((), None))


def test_the_first_iteration_that_both_have():
    a = {1: {"x": 1.0}, 2: {"x": 2.0, "y": 0.0}, 3: {"x": 3.0}, 5: {"x": 9.0}}
    b = {1: {"x": 1.0}, 2: {"x": 2.0, "y": 0.0}, 4: {"x": 7.0}, 5: {"x": 9.5, "z": 1.0}}
    found = first_parting(a, b)
    assert isinstance(found, Parting)
    assert (found.iteration, found.num_equal, found.num_leaves) == (5, 2, 2)
    assert [leaf.leaf for leaf in found.leaves] == ["z", "x"]  # a leaf that one lacks comes first
    assert first_parting({1: {"x": 1.0}, 2: {}}, {1: {"x": 1.0}}) == 1


def test_leaves_are_read_when_it_is_their_turn():
    read = []

    def leaves(name):
        read.append(name)
        return {"x": float(name[1])}

    assert isinstance(first_parting({1: "a1", 2: "a2"}, {1: "b3", 2: "b4"}, read=leaves), Parting)
    assert read == ["a1", "b3"]


def test_an_evaluation_is_of_the_iteration_before_it_and_speeds_are_left_out():
    records = [
        {"iteration": 1, "step": 8, "losses/actor": 1.0, "time/compile_s": 3.0, "throughput/train_sps": 9.0},
        {"step": 8, "eval/episode_reward/mean": None},
        {"iteration": 2, "step": 16, "losses/actor": None},
    ]
    found = logged_by_iteration(records)
    assert set(found) == {1, 2} and set(found[1]) == {"iteration", "step", "losses/actor", "eval/episode_reward/mean"}
    assert math.isnan(found[2]["losses/actor"]) and math.isnan(found[1]["eval/episode_reward/mean"])
