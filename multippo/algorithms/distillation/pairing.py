"""Pairing of a teacher's samplers with those of a student that is built differently."""

from __future__ import annotations

from typing import Any, NamedTuple

import optree

from multippo.networks.recording import Lesson, is_lesson
from multippo.trees import tree_leaves, tree_structure

_REMEDY = (
    "Pass target_fn(teacher_extras, student_extras), which returns student_extras with the samplers' entries replaced "
    "by the teacher's."
)


class Route(NamedTuple):
    """Way of a teacher's samples into the snapshots that the student is given in replay.

    Attributes:
        pairs: Position of the student's sample among the leaves of its snapshots, and of the teacher's lesson among
            those of its own. None: the teacher's snapshots are used as they are.
    """

    pairs: tuple[tuple[int, int], ...] | None

    def __call__(self, lessons: Any, student_extras: Any) -> Any:
        """The student's snapshots with the lessons in place of its samples."""
        if self.pairs is None:
            return lessons
        emitted = optree.tree_leaves(lessons, is_leaf=is_lesson)
        leaves, structure = optree.tree_flatten(student_extras)
        for own, taught in self.pairs:
            leaves[own] = emitted[taught]
        return optree.tree_unflatten(structure, leaves)


class _Place(NamedTuple):
    """A sampler's place in a network's snapshots."""

    position: int
    path: str
    names: tuple[str, ...]
    lesson: Lesson


def plan_route(teacher_extras: Any, student_extras: Any, loss: str) -> Route:
    """Pairs the samplers of two networks.

    Where each has one sampler, these are a pair. Else samplers are paired by their paths in the snapshots, by the keys
    on these paths, or by the last of them, such as the entry of the action space: by the first of the three that is
    unique in both networks and the same in both. Networks without samplers of the library are paired as a whole where
    their snapshots are of the same structure.

    Args:
        teacher_extras: Snapshots ``[B, ...]`` of the measured teacher.
        student_extras: Snapshots of the measured student.
        loss: "nll" or "kl".

    Raises:
        ValueError: If there is no such pairing, or what is paired does not fit.
    """
    teachers, students = _places(teacher_extras), _places(student_extras)
    if not teachers and not students:
        return _as_a_whole(teacher_extras, student_extras, loss)
    pairs = _pairs(teachers, students)
    if pairs is None:
        raise ValueError(
            f"The teacher's samplers are at {_paths(teachers)} of its snapshots, the student's at {_paths(students)}; "
            f"they can't be paired. {_REMEDY}"
        )
    for student, teacher in pairs:
        _check_pair(teacher, student)
    return Route(tuple((student.position, teacher.position) for student, teacher in pairs))


def _places(tree: Any) -> list[_Place]:
    accessors, leaves, _ = optree.tree_flatten_with_accessor(tree, is_leaf=is_lesson)
    return [
        _Place(position, accessor.codify(""), tuple(str(e) for e in accessor.path if not isinstance(e, int)), leaf)
        for position, (accessor, leaf) in enumerate(zip(accessors, leaves, strict=True))
        if is_lesson(leaf)
    ]


def _pairs(teachers: list[_Place], students: list[_Place]) -> list[tuple[_Place, _Place]] | None:
    """Pairs of a student's and a teacher's sampler; None if no key pairs them."""
    if len(teachers) == len(students) == 1:
        return [(students[0], teachers[0])]
    for key in (lambda p: p.path, lambda p: p.names, lambda p: p.names[-1:]):
        by_key = {key(place): place for place in teachers}
        keys = [key(place) for place in students]
        if len(by_key) == len(teachers) and sorted(by_key) == sorted(keys):
            return [(place, by_key[key(place)]) for place in students]
    return None


def _check_pair(teacher: _Place, student: _Place) -> None:
    ours, theirs = _describe(student.lesson), _describe(teacher.lesson)
    if ours != theirs:
        raise ValueError(
            f"The teacher's sampler at {_path(teacher)} of its snapshots does not fit the student's at "
            f"{_path(student)}: it is {theirs}, the student's {ours}. Build the student with the same distribution. "
            f"{_REMEDY}"
        )


def _describe(lesson: Lesson) -> str:
    sample = tuple(lesson.raw_action.shape[1:])
    parameters = [tuple(leaf.shape[1:]) for leaf in tree_leaves(lesson.distribution)]
    return f"a {lesson.sampler} with samples {sample} and parameters {', '.join(map(str, parameters))}"


def _as_a_whole(teacher_extras: Any, student_extras: Any, loss: str) -> Route:
    if loss == "kl":
        raise ValueError(
            "loss='kl' compares the distributions of multippo's samplers, but neither network has one. "
            "Use loss='nll', or samplers derived from multippo's."
        )
    shapes = [[tuple(leaf.shape) for leaf in tree_leaves(tree)] for tree in (teacher_extras, student_extras)]
    if tree_structure(teacher_extras) != tree_structure(student_extras) or shapes[0] != shapes[1]:
        raise ValueError(
            f"Neither network has a sampler of multippo's, and the teacher's snapshots, of shapes {shapes[0]}, are not "
            f"like the student's, of shapes {shapes[1]}. {_REMEDY}"
        )
    if not shapes[0]:
        raise ValueError("The teacher emits no samples in rollout_extras, so there is nothing to learn from it.")
    return Route(None)


def _paths(places: list[_Place]) -> str:
    return ", ".join(map(_path, places)) or "no place"


def _path(place: _Place) -> str:
    return place.path or "the top"
