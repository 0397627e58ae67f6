"""The teacher of a distillation, which shows its actions on a student's observations.

A teacher has no part in the rollout. The stored observations are shown to the teacher afterwards, all steps at once
where its layers allow, with a carry of its own; so a teacher may be on another engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import optree

from multippo.algorithms.advantages import mean_over
from multippo.algorithms.checks import run_once
from multippo.algorithms.losses import LossOutput, mean_metrics
from multippo.algorithms.minibatches import has_memory, unroll_sequences
from multippo.algorithms.types import Sequences, Transition
from multippo.networks.core.error_paths import message_of, where_it_failed
from multippo.networks.core.modes import evaluation_mode
from multippo.networks.core.outputs import per_environment
from multippo.networks.core.random_state import reseed
from multippo.networks.core.unrolling import reset_where
from multippo.networks.recording import Lesson, is_lesson, measured
from multippo.programmes import identity, programmes_of
from multippo.trees import named_leaves, select, tree_leaves, tree_map, tree_structure, tree_sum

TargetFn = Callable[[Any, Any], Any]
"""``target_fn(teacher_extras, student_extras)``, both ``[T, B, ...]``, to a tree like ``student_extras``."""
_REMEDY = (
    "Pass target_fn(teacher_extras, student_extras), which returns student_extras with the samplers' entries replaced "
    "by the teacher's."
)


class TeacherState(NamedTuple):
    """Arrays of a teacher during a run, on its own engine.

    Attributes:
        params: Parameters; never written.
        variables: Variables; never written.
        carry: Carry ``[B, ...]``, reset where an episode ends, and kept from one rollout to the next.
    """

    params: Any
    variables: Any
    carry: Any


class Teacher:
    """A frozen network, acting by the mode of its distributions.

    Args:
        network: The teacher; neither the network nor its mode are changed.
        student: The network to be trained.
        loss: "nll" or "kl".
        target_fn: User's routing of samples, in place of the one by the samplers' places.
        may_skip: True if steps may be invalid.

    Attributes:
        replayed: Definition of the student that the loss evaluates; its parameters are the student's own.
        structure: Key of all that is compiled in of the teacher and of the student.
    """

    def __init__(self, network: Any, student: Any, loss: str, target_fn: TargetFn | None, may_skip: bool) -> None:
        self.network, self.student, self.loss = network, student, loss
        self.engine, self.student_engine = network.engine, student.engine
        self.abroad = self.engine is not self.student_engine
        # A user's function may expect arrays of samples, and "nll" compares no distributions.
        samplers = None if target_fn is not None and loss == "nll" else loss
        with evaluation_mode(network, True):  # the copy keeps the modes of this moment
            self._acting = measured(network, samplers)
        self._replayed = measured(student, samplers)
        self.replayed = self.student_engine.split(self._replayed).definition
        self._split = self.engine.split(self._acting)
        self._may_skip, self._stepwise = may_skip, False
        self._planned, self._route = target_fn is None, cast("TargetFn", target_fn)
        own = Teacher, self.engine, self.engine.float_dtype, self.engine.structure(self._split.definition), may_skip
        self._look = programmes_of(*own).compiled(self, Teacher._look_untraced, self.engine.jit)
        self.structure = (
            *own,
            self.student_engine.structure(self.replayed),
            loss,
            None if target_fn is None else identity(target_fn),
        )

    def start(self, num_envs: int, key: Any, leaves: list[np.ndarray] | None = None) -> TeacherState:
        """State before the first step, or with the carry that ``carry_leaves`` kept.

        Args:
            num_envs: B.
            key: NumPy words of a key, for the noise of a teacher that has any.
            leaves: Leaves from ``carry_leaves``; None for a fresh carry.

        Raises:
            ValueError: If ``leaves`` are of another teacher.
        """
        random = self.engine.random
        fresh = self.network.initialize_state(num_envs)
        self._stepwise = self._may_skip and has_memory(fresh)
        carry = reseed(random, fresh, random.wrap_key(key))
        if leaves is not None:
            own = tree_leaves(carry)
            shapes = [[tuple(leaf.shape) for leaf in side] for side in (leaves, own)]
            if shapes[0] != shapes[1]:
                raise ValueError(
                    f"initial_state holds the carry of another teacher, of shapes {shapes[0]}; this one's has "
                    f"{shapes[1]}. Go on with the same teacher."
                )
            types = [self.engine.to_numpy(leaf).dtype for leaf in own]
            kept = [self.engine.asarray(leaf.astype(dtype)) for leaf, dtype in zip(leaves, types, strict=True)]
            carry = optree.tree_unflatten(optree.tree_structure(carry), kept)
        return TeacherState(self._split.params, self._split.variables, self.engine.snapshot(carry))

    def carry_leaves(self, state: TeacherState) -> list[np.ndarray]:
        """Leaves of the carry as copies in NumPy, in the same order on every engine."""
        return [np.array(self.engine.to_numpy(leaf)) for leaf in tree_leaves(state.carry)]

    def check(self, state: TeacherState, student_carry: Any, obs: Any) -> None:
        """Runs the teacher on the first observation, and the student on the teacher's samples.

        Args:
            state: The teacher's state, from ``start``.
            student_carry: The student's fresh carry.
            obs: The first observation ``[B, ...]``, in the student's arrays.

        Raises:
            ValueError: If the teacher fails, or its samples do not fit the student.
        """
        engine = self.student_engine
        seen = _carried_over(obs, engine, self.engine)
        with self._acting.engine.no_grad():
            run_once(self._acting, state.carry, seen, "teacher")
        lessons = _carried_over(_snapshots(self._acting, state.carry, seen), self.engine, engine)
        own = _snapshots(self._replayed, student_carry, obs)
        if self._planned:
            self._route = plan_route(lessons, own, self.loss)
        own = _samples(own)
        targets = self._route(_with_time(lessons), _with_time(own))
        if not self._planned:
            _check_targets(targets, own)
        done = _with_time(engine.asarray(np.zeros(tree_leaves(obs)[0].shape[0], np.bool_)))

        def replay(carry: Any, xs: Any, done: Any, extras: Any) -> Any:
            return self._replayed.unroll(carry, xs, done, extras).output.loglikelihoods

        try:
            engine.shapes(replay, student_carry, _with_time(obs), done, targets)
        except Exception as error:
            raise ValueError(
                f"The student failed on what the teacher would have done at {where_it_failed(self._replayed, error)}: "
                f"{message_of(error)}"
            ) from error

    def teach(self, state: TeacherState, transition: Transition) -> tuple[TeacherState, Transition]:
        """Runs the teacher over a rollout of the student.

        Args:
            state: The teacher's state before the rollout.
            transition: The rollout, ``[T, B, ...]``.

        Returns:
            The teacher's state after the rollout, and the rollout with ``targets``.
        """
        seen = (transition.obs, transition.done, transition.valid)
        carry, lessons = self._look(*state, _carried_over(seen, self.student_engine, self.engine))
        lessons = _carried_over(lessons, self.engine, self.student_engine)
        targets = self._route(lessons, transition.rollout_extras)
        return state._replace(carry=carry), transition._replace(targets=targets)

    def _look_untraced(self, params: Any, variables: Any, carry: Any, seen: Any) -> tuple[Any, Any]:
        """Carry of the teacher after the rollout, and its snapshots ``[T, B, ...]``."""
        obs, done, valid = seen
        engine, xp = self.engine, self.engine.xp
        with engine.no_grad():
            network = engine.merge(self._split.definition, params, variables)
            if not self._stepwise:
                out = network.unroll(carry, obs, done)
                after, lessons = out.next_state, out.rollout_extras
            else:  # the carry stands still in a step that is not valid

                def step(carry: Any, inputs: Any) -> tuple[Any, Any]:
                    x, done_t, valid_t = inputs
                    out = network(carry, x)
                    after = reset_where(network, done_t, out.next_state)
                    return select(xp, valid_t, after, carry), out.rollout_extras

                after, lessons = engine.scan(step, carry, (obs, done, valid), done.shape[0])
        # Copied outside ``no_grad``: arrays made inside can't be part of a gradient on every engine.
        return engine.snapshot(after), engine.stop_gradient(engine.snapshot(lessons))


def _carried_over(tree: Any, source: Any, target: Any) -> Any:
    """Tree as arrays and in types of the engine ``target``, copied through NumPy if it is of another engine."""
    if source is target:
        return tree
    zeros = target.zeros((1,))
    own = {"f": target.to_numpy(zeros).dtype, "i": target.to_numpy(target.xp.argmax(zeros, axis=0)).dtype}

    def carry(x: Any) -> Any:
        array = source.to_numpy(x)
        return target.asarray(array.astype(own.get(array.dtype.kind, array.dtype), copy=False))

    return tree_map(carry, tree)


def distillation_loss(
    network: Any, sequences: Sequences, loss: str, remat_steps: int | None = None
) -> tuple[Any, LossOutput]:
    """The loss of one minibatch (Rusu et al., 2015, arXiv:1511.06295, equations 1 and 3).

    ``L = mean -log p(u_teacher | obs) + mean regularisation`` for "nll", and ``L = mean KL(p_teacher || p) + mean
    regularisation`` for "kl"; both are sums over the keys of an action tree, and means over valid entries. The
    paper's teacher is a table of values, and its KL divergence that of softmaxes of these with a temperature; here the
    teacher has a distribution, which is taken as it is.

    Args:
        network: The student, measured (see ``networks.recording``); evaluated by its ``unroll``.
        sequences: Training sequences ``[L, S, ...]``; ``rollout_extras`` are the teacher's.
        loss: "nll" or "kl".
        remat_steps: See ``PPOConfig``.

    Returns:
        The scalar loss, and its metrics.

    Raises:
        ValueError: If a metric or the regularisation loss is of a shape that would broadcast.
    """
    xp = network.xp
    out = unroll_sequences(network, sequences, remat_steps)
    likelihoods = tree_sum(out.output.loglikelihoods)
    weight = xp.astype(sequences.valid, likelihoods.dtype)
    zero, mean = xp.zeros_like(weight), mean_over(xp, sequences.valid, weight.dtype)
    distillation = -mean(likelihoods)
    regularization = mean(per_environment("regularization_loss", out.regularization_loss, zero))
    total = distillation + regularization
    metrics = {"losses/distillation": distillation, "losses/regularization": regularization, "losses/total": total}
    targets = optree.tree_leaves(sequences.rollout_extras, is_leaf=is_lesson)
    if loss == "kl":
        metrics["kl/teacher"] = distillation
    elif out.output.entropies is not None and any(map(is_lesson, targets)):  # targets with distributions
        metrics["kl/teacher"] = mean(tree_sum(out.output.entropies))
    metrics |= mean_metrics(out.metrics, zero, mean)
    return total, LossOutput(metrics)


def _with_time(tree: Any) -> Any:
    return tree_map(lambda x: x[None], tree)


def _snapshots(network: Any, carry: Any, obs: Any) -> Any:
    """Snapshots that a network emits on an observation."""
    engine = network.engine
    definition, params, variables = engine.split(network)
    programmes = programmes_of(_snapshots, engine, engine.float_dtype, engine.structure(definition))
    emit = programmes.compiled((engine, definition), _emitted, engine.jit)
    with engine.no_grad():
        emitted = emit(params, variables, carry, obs)
    return engine.snapshot(emitted)


def _emitted(owner: tuple[Any, Any], params: Any, variables: Any, carry: Any, obs: Any) -> Any:
    engine, definition = owner
    return engine.merge(definition, params, variables)(carry, obs).rollout_extras


def _samples(extras: Any) -> Any:
    """Snapshots with samples in place of lessons."""
    return optree.tree_map(lambda node: node.raw_action if is_lesson(node) else node, extras, is_leaf=is_lesson)


def _check_targets(targets: Any, own: Any) -> None:
    """Raises a ValueError unless ``target_fn`` returned a tree like the student's snapshots, lessons for samples."""
    samples = _samples(targets)
    if tree_structure(samples) != tree_structure(own):
        raise ValueError(
            f"target_fn returned a tree of structure {tree_structure(samples)}; expected that of student_extras, "
            f"{tree_structure(own)}. Return student_extras with the samplers' entries replaced by the teacher's."
        )
    for (name, got), (_, expected) in zip(named_leaves(samples), named_leaves(own), strict=True):
        if tuple(got.shape) != (1, *expected.shape):
            raise ValueError(
                f"target_fn returned an array of shape {tuple(got.shape)} as entry {name!r} of student_extras, for a "
                f"rollout of 1 step; expected {(1, *expected.shape)}, [T, B, ...] as it was given."
            )


class _Place(NamedTuple):
    """A sampler's place in a network's snapshots."""

    position: int
    path: str
    names: tuple[str, ...]
    lesson: Lesson


def plan_route(teacher_extras: Any, student_extras: Any, loss: str) -> TargetFn:
    """Pairs the samplers of two networks.

    Where each has one sampler, these are a pair. Else samplers are paired by their paths in the snapshots, by the keys
    on these paths, or by the last of them, such as the entry of the action space: by the first of the three that is
    unique in both networks and the same in both. Networks without samplers of the library are paired as a whole where
    their snapshots are of the same structure.

    Args:
        teacher_extras: Snapshots ``[B, ...]`` of the measured teacher.
        student_extras: Snapshots ``[B, ...]`` of the measured student.
        loss: "nll" or "kl".

    Returns:
        A function of the teacher's snapshots and the student's: the latter with the lessons in place of its samples.

    Raises:
        ValueError: If the samplers can't be paired, or those of a pair differ in kind or size.
    """
    teachers, students = _places(teacher_extras), _places(student_extras)
    if not teachers and not students:
        _check_wholes(teacher_extras, student_extras, loss)
        return lambda lessons, _: lessons
    pairs = _pairs(teachers, students)
    if pairs is None:
        taught, own = (", ".join(place.path for place in side) or "no place" for side in (teachers, students))
        raise ValueError(
            f"The teacher's samplers are at {taught} of its snapshots, the student's at {own}; they can't be paired. "
            f"{_REMEDY}"
        )
    for student, teacher in pairs:
        ours, theirs = _describe(student.lesson), _describe(teacher.lesson)
        if ours != theirs:
            raise ValueError(
                f"The teacher's sampler at {teacher.path} of its snapshots does not fit the student's at "
                f"{student.path}: it is {theirs}, the student's {ours}. Build the student with the same distribution. "
                f"{_REMEDY}"
            )

    def route(lessons: Any, student_extras: Any) -> Any:
        emitted = optree.tree_leaves(lessons, is_leaf=is_lesson)
        leaves, structure = optree.tree_flatten(student_extras)
        for student, teacher in pairs:
            leaves[student.position] = emitted[teacher.position]
        return optree.tree_unflatten(structure, leaves)

    return route


def _places(tree: Any) -> list[_Place]:
    accessors, leaves, _ = optree.tree_flatten_with_accessor(tree, is_leaf=is_lesson)
    places: list[_Place] = []
    for position, (accessor, leaf) in enumerate(zip(accessors, leaves, strict=True)):
        if is_lesson(leaf):
            names = tuple(str(entry) for entry in accessor.path if not isinstance(entry, int))
            places.append(_Place(position, accessor.codify("") or "the top", names, leaf))
    return places


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


def _describe(lesson: Lesson) -> str:
    sample = tuple(lesson.raw_action.shape[1:])
    parameters = [tuple(leaf.shape[1:]) for leaf in tree_leaves(lesson.distribution)]
    return f"a {lesson.sampler} with samples {sample} and parameters {', '.join(map(str, parameters))}"


def _check_wholes(teacher_extras: Any, student_extras: Any, loss: str) -> None:
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
