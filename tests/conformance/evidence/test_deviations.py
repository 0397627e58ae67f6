"""Deviations: their size, their place, and what a number can't say."""

import numpy as np
import pytest
from multippo.conformance.evidence.deviations import compare, portable_deviation


def test_the_largest_difference_and_its_step_and_environment():
    expected = np.zeros((4, 3, 2))
    got = expected.copy()
    got[1, 2, 0], got[3, 0, 1] = 0.25, -0.5
    found = compare({"a": expected, "b": got}, {"a": expected, "b": expected})
    assert found.worst == 0.5
    assert found.where == "t=3, env=0, b[1]"


def test_entries_that_do_not_count_may_hold_anything():
    expected = np.zeros((2, 2))
    got = np.asarray([[0.0, np.nan], [0.0, 0.0]])
    assert compare(got, expected).worst == np.inf
    assert compare(got, expected, mask=np.asarray([[True, False], [True, True]])).worst == 0.0


@pytest.mark.parametrize("got", [np.zeros((2, 1)), {"a": np.zeros(2)}, np.full(2, np.nan)])
def test_other_shapes_structures_and_nan_are_infinitely_far(got: object):
    assert compare(got, np.zeros(2), axes=()).worst == np.inf


def test_relative_to_the_largest_magnitude_where_that_is_above_one():
    # Off by 2 where the largest is 8: a quarter. Off by 0.5 where the largest is 0.25: 0.5 still.
    found = portable_deviation({"a": np.asarray([8.0, 3.0])}, {"a": np.asarray([8.0, 1.0])}, relative=True)
    assert (found.worst, found.where) == (0.25, "a[1]")
    assert portable_deviation({"a": np.asarray(0.75)}, {"a": np.asarray(0.25)}, relative=True).worst == 0.5
