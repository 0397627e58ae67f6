"""Which sampler teaches which, told from the trees alone."""

from typing import Any

import numpy as np
import pytest

from multippo.algorithms.distillation.teacher import plan_route
from multippo.networks.recording import Lesson
from multippo.networks.samplers.distributions import Categorical


def lesson(value: int, options: int = 2, sampler: str = "CategoricalSampler") -> Lesson:
    return Lesson(np.full((4,), value), {sampler: Categorical(np.full((4, options), -0.5))})


def plain(tree: Any) -> Any:
    """The student's own snapshots: samples where the measured copy has lessons."""
    if isinstance(tree, Lesson):
        return tree.raw_action
    if isinstance(tree, dict):
        return {key: plain(value) for key, value in tree.items()}
    return [plain(value) for value in tree] if isinstance(tree, list) else tree


def test_one_sampler_each_is_a_pair_wherever_they_are():
    taught, features = lesson(1), np.ones((4, 3))
    teacher, student = [None, {"action": [None, None, taught], "value": None}], {"a": features, "b": [lesson(0)]}
    got = plan_route(teacher, student, "kl")(teacher, plain(student))
    assert got["b"][0] is taught and got["a"] is features


def test_several_are_paired_by_path_then_by_names_then_by_the_last_name():
    left, right = lesson(1), lesson(2)
    student = [np.ones(4), {"action": [None, {"left": lesson(0), "right": lesson(0)}]}]
    for teacher in (
        [np.zeros(4), {"action": [None, {"left": left, "right": right}]}],
        {"action": {"left": left, "right": [None, right]}},
        {"arms": {"right": [right]}, "hand": {"left": left}},
    ):
        got = plan_route(teacher, student, "kl")(teacher, plain(student))
        assert got[1]["action"][1]["left"] is left and got[1]["action"][1]["right"] is right
        assert got[0] is plain(student)[0] or np.array_equal(got[0], np.ones(4))


@pytest.mark.parametrize(
    ("teacher", "student"),
    [
        ({"left": lesson(1), "right": lesson(2)}, {"left": lesson(0), "middle": lesson(0)}),
        ([lesson(1), lesson(2)], [None, lesson(0), lesson(0)]),
    ],
)
def test_what_can_not_be_told_is_refused(teacher, student):
    with pytest.raises(ValueError, match=r"they can't be paired. Pass target_fn"):
        plan_route(teacher, student, "nll")


@pytest.mark.parametrize("other", [lesson(1, options=3), lesson(1, sampler="OtherSampler")])
def test_pairs_must_fit(other):
    with pytest.raises(ValueError, match=r"at \['a'\] of its snapshots does not fit the student's at \['b'\]\[0\]"):
        plan_route({"a": other}, {"b": [lesson(0)]}, "nll")


def test_networks_without_samplers_are_paired_as_a_whole():
    teacher, student = {"a": [np.ones((4, 2))]}, {"a": [np.zeros((4, 2))]}
    assert plan_route(teacher, student, "nll")(teacher, student) is teacher
    with pytest.raises(ValueError, match=r"of shapes \[\(4, 2\)\], are not like the student's, of shapes \[\(4, 3\)\]"):
        plan_route(teacher, {"a": [np.zeros((4, 3))]}, "nll")
