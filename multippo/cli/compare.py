"""``multippo compare``, which finds where two runs part first, by iteration and leaf."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from multippo.algorithms.checkpointing.checkpoint import load_checkpoint
from multippo.algorithms.checkpointing.manifest import read_steps
from multippo.algorithms.metrics import json_ready, read_metrics
from multippo.arguments import check_number, check_size
from multippo.cli.flags import parse
from multippo.errors import UsageError
from multippo.runs.directory import RunDirectory


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Finds where two runs part first, by iteration and leaf."""

    a: str | None = None
    """Directory that multippo train wrote."""

    b: str | None = None
    """Directory that multippo train wrote."""

    _: dataclasses.KW_ONLY

    tolerance: float = 0.0
    """Distance, in proportion to the larger number and 1, up to which numbers count as equal."""

    most: int = 5
    """Leaves to list where the runs part; those furthest apart come first."""

    json: bool = False
    """Print one JSON object and nothing else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Comparison:
    """Outcome of a comparison of two runs.

    Attributes:
        settings: Settings that differ, the engine apart.
        logged: Place where the logs part, or the number of iterations in which they are the same.
        saved: Place where the checkpoints part, or the number of iterations in which they are the same.
    """

    settings: dict[str, tuple[Any, Any]]
    logged: Parting | int
    saved: Parting | int

    @property
    def equal(self) -> bool:
        """True if neither logs nor checkpoints part."""
        return isinstance(self.logged, int) and isinstance(self.saved, int)


def run(argv: Sequence[str]) -> int:
    """Runs the command; the exit code is 1 if the runs part.

    Raises:
        UsageError: If a run or a flag can't be used, or the runs have no iteration in common.
        ValueError: If ``--tolerance`` or ``--most`` is out of range.
    """
    flags = parse("compare", _Flags, argv)
    if not flags.a or not flags.b:
        raise UsageError("two runs are compared: multippo compare RUN_A RUN_B, directories that multippo train wrote.")
    check_number("", "tolerance", flags.tolerance, least=0)
    check_size("", "most", flags.most)
    a, b = RunDirectory(Path(flags.a)), RunDirectory(Path(flags.b))
    found = _compare(a, b, flags.tolerance)
    if flags.json:
        print(json.dumps(json_ready({**dataclasses.asdict(found), "equal": found.equal}), allow_nan=False))
    else:
        print("\n".join(_lines(found, a, b, flags.tolerance, flags.most)))
    return 0 if found.equal else 1


def _compare(a: RunDirectory, b: RunDirectory, tolerance: float) -> _Comparison:
    ours, theirs = ({**run.read_settings(), "backend": None} for run in (a, b))
    logged = [logged_by_iteration(read_metrics(run.metrics)) for run in (a, b)]
    saved = [{manifest.iteration: path for path, manifest in read_steps(run.checkpoints)} for run in (a, b)]
    if not (set(logged[0]) & set(logged[1]) or set(saved[0]) & set(saved[1])):
        raise UsageError(
            f"{a.path} and {b.path} have no iteration in common, neither logged nor saved: there is nothing to compare."
        )
    differing = [name for name in sorted({*ours, *theirs}) if ours.get(name) != theirs.get(name)]
    return _Comparison(
        settings={name: (ours.get(name), theirs.get(name)) for name in differing},
        logged=first_parting(logged[0], logged[1], tolerance),
        saved=first_parting(saved[0], saved[1], tolerance, checkpoint_arrays),
    )


def _lines(found: _Comparison, a: RunDirectory, b: RunDirectory, tolerance: float, most: int) -> list[str]:
    lines = [f"A: {a.path} ({a.read_settings()['backend']})", f"B: {b.path} ({b.read_settings()['backend']})"]
    differing = [f"{name} ({one!r}, {other!r})" for name, (one, other) in found.settings.items()]
    lines.append(f"Settings: {'differ in ' + ', '.join(differing) if differing else 'the same'}.")
    bound = f", to within {tolerance:g}" if tolerance else ""
    for what, outcome in (("Logged", found.logged), ("Checkpoints", found.saved)):
        if isinstance(outcome, int):
            lines.append(f"{what}: the same{bound} in {_iterations(outcome)} that both have.")
            continue
        before = f"after {_iterations(outcome.num_equal)} that are the same{bound}"
        lines.append(
            f"{what}: part in iteration {outcome.iteration}, {before if outcome.num_equal else 'the first of both'}. "
            f"{len(outcome.leaves)} of {outcome.num_leaves} leaves differ:"
        )
        lines += [_line(leaf) for leaf in outcome.leaves[:most]]
        if len(outcome.leaves) > most:
            lines.append(f"  and {len(outcome.leaves) - most} more (--most {len(outcome.leaves)} lists them)")
    if isinstance(found.logged, Parting) and not isinstance(found.saved, Parting):
        lines.append("To see which array parts first, train both with --checkpoint-every-steps 1.")
    return lines


def _line(leaf: Apart) -> str:
    place = f"[{', '.join(map(str, leaf.index))}]" if leaf.index else ""
    if leaf.shapes is not None:
        a, b = (_described(shape, value) for shape, value in zip(leaf.shapes, (leaf.a, leaf.b), strict=True))
        return f"  {leaf.leaf}: {a} in A, {b} in B"
    return f"  {leaf.leaf}{place}: {leaf.a:.9g} in A, {leaf.b:.9g} in B, apart by {leaf.by:.1e}"


def _described(shape: tuple[int, ...] | None, value: float | None) -> str:
    if shape is None:
        return "missing"
    return f"of shape {shape}" if value is None else f"{value:.9g}"


def _iterations(count: int) -> str:
    return "1 iteration" if count == 1 else f"{count} iterations"


_OF_THE_MACHINE = ("time/", "throughput/")
"""Metrics that no two runs have in common."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Apart:
    """A number that two runs do not share.

    Attributes:
        leaf: Name of the metric or array.
        index: Position in the array at which the two are furthest apart; empty for a number.
        a: The first run's number; None if that run lacks the leaf, or the two are of different shapes.
        b: The second run's number; None likewise.
        shapes: Shapes of the two, where they differ; None for the run that lacks the leaf.
        by: Distance in proportion to the larger of the two and 1; infinite where one lacks the leaf or is NaN.
    """

    leaf: str
    index: tuple[int, ...]
    a: float | None
    b: float | None
    by: float
    shapes: tuple[tuple[int, ...] | None, ...] | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parting:
    """The first iteration after which two runs are not the same.

    Attributes:
        iteration: Number of iterations finished.
        num_equal: Number of earlier iterations that both have, and in which they are the same.
        num_leaves: Number of leaves compared in the iteration.
        leaves: Leaves that differ, the one furthest apart first.
    """

    iteration: int
    num_equal: int
    num_leaves: int
    leaves: tuple[Apart, ...]


def logged_by_iteration(records: Sequence[Mapping[str, Any]]) -> dict[int, dict[str, Any]]:
    """Metrics of each iteration, without times and speeds.

    Args:
        records: Metrics from ``read_metrics``, in the order of the log. An evaluation belongs to the iteration before.
    """
    found: dict[int, dict[str, Any]] = {}
    iteration = 0
    for record in records:
        iteration = int(record.get("iteration") or iteration)
        kept = {name: value for name, value in record.items() if not name.startswith(_OF_THE_MACHINE)}
        # Numbers that were not finite are null in the file.
        found.setdefault(iteration, {}).update({name: math.nan if x is None else x for name, x in kept.items()})
    return found


def checkpoint_arrays(path: Path) -> dict[str, np.ndarray]:
    """Every array of a checkpoint: ``weights: NAME``, ``optimizer: NAME``, ``carry: NAME``, ``environment: NAME``.

    Raises:
        ValueError: If a file is damaged, or of a later format.
        FileNotFoundError: If a file is missing.
    """
    parts = load_checkpoint(path).arrays()
    return {f"{part}: {name}": array for part, arrays in parts.items() for name, array in arrays.items()}


def first_parting(
    a: Mapping[int, Any], b: Mapping[int, Any], tolerance: float = 0.0, read: Any = lambda leaves: leaves
) -> Parting | int:
    """First iteration of two runs in which a leaf differs.

    Args:
        a: The first run's leaves by name, by iteration.
        b: The second run's.
        tolerance: Distance up to which two numbers count as equal; see ``Apart.by``.
        read: Function from an entry of ``a`` or ``b`` to its leaves, called when they are compared.

    Returns:
        The place where the runs part; or the number of iterations in which they are the same, if they never part.
    """
    both = sorted(set(a) & set(b))
    for place, iteration in enumerate(both):
        left, right = read(a[iteration]), read(b[iteration])
        names = sorted(set(left) | set(right))
        compared = [apart(name, left.get(name), right.get(name), tolerance) for name in names]
        differing = sorted((found for found in compared if found is not None), key=lambda found: -found.by)
        if differing:
            return Parting(iteration=iteration, num_equal=place, num_leaves=len(names), leaves=tuple(differing))
    return len(both)


def apart(leaf: str, a: Any, b: Any, tolerance: float) -> Apart | None:
    """Place in a leaf where two runs are furthest apart; None if they are within the tolerance everywhere.

    NaN equals NaN, and an infinity the same infinity. Whole numbers (counters, the words of random keys) are equal or
    are not, whatever the tolerance.
    """
    if a is None or b is None or np.shape(a) != np.shape(b):
        shapes = tuple(None if value is None else np.shape(value) for value in (a, b))
        lone = [float(value) if value is not None and np.ndim(value) == 0 else None for value in (a, b)]
        return Apart(leaf=leaf, index=(), a=lone[0], b=lone[1], by=math.inf, shapes=shapes)
    left, right = np.asarray(a), np.asarray(b)
    whole = left.dtype.kind not in "fc" and right.dtype.kind not in "fc"
    same = (left == right) | ((left != left) & (right != right))
    if np.all(same):
        return None
    x, y = left.astype(np.float64), right.astype(np.float64)
    with np.errstate(invalid="ignore"):
        distance = np.abs(x - y) / np.maximum(np.maximum(np.abs(x), np.abs(y)), 1.0)
    distance = np.where(same, 0.0, np.where(np.isfinite(distance), distance, math.inf))
    if whole:
        # Different words of 64 bits may become the same number in double precision.
        distance = np.where(same, 0.0, np.maximum(distance, np.finfo(np.float64).tiny))
    index = np.unravel_index(int(np.argmax(distance)), distance.shape)
    by = float(distance[index])
    if by > (0.0 if whole else tolerance):
        return Apart(leaf=leaf, index=tuple(map(int, index)), a=float(x[index]), b=float(y[index]), by=by)
    return None
