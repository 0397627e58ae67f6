"""``multippo compare``, which finds where two runs part first, by iteration and leaf."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multippo.algorithms.checkpointing.checkpoint import load_checkpoint
from multippo.algorithms.metrics import json_ready, read_metrics
from multippo.arguments import check_number, check_size
from multippo.cli.flags import parse
from multippo.errors import UsageError
from multippo.runs.comparing import Apart, Parting, checkpoint_arrays, first_parting, logged_by_iteration
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
        logged: The place where the logs part, or the number of iterations in which they are the same.
        saved: The same for checkpoints.
    """

    settings: dict[str, tuple[Any, Any]]
    logged: Parting | int
    saved: Parting | int

    @property
    def equal(self) -> bool:
        """True if they never part."""
        return isinstance(self.logged, int) and isinstance(self.saved, int)


def run(argv: Sequence[str]) -> int:
    """Runs the command; the exit code is 1 if the runs part.

    Raises:
        UsageError: If a run or a flag is not what it should be, or the runs have no iteration in common.
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
    settings = [_settings(run) for run in (a, b)]
    logged = [logged_by_iteration(read_metrics(run.metrics)) for run in (a, b)]
    saved = [_checkpoints(run.checkpoints) for run in (a, b)]
    if not (set(logged[0]) & set(logged[1]) or set(saved[0]) & set(saved[1])):
        raise UsageError(
            f"{a.path} and {b.path} have no iteration in common, neither logged nor saved: there is nothing to compare."
        )
    return _Comparison(
        settings={
            name: (settings[0].get(name), settings[1].get(name))
            for name in sorted({*settings[0], *settings[1]})
            if settings[0].get(name) != settings[1].get(name)
        },
        logged=first_parting(logged[0], logged[1], tolerance),
        saved=first_parting(saved[0], saved[1], tolerance, checkpoint_arrays),
    )


def _settings(run: RunDirectory) -> dict[str, Any]:
    return {name: value for name, value in run.read_settings().items() if name != "backend"}


def _checkpoints(directory: Path) -> dict[int, Path]:
    """Complete checkpoints by iterations finished."""
    found = {}
    for path in sorted(directory.glob("step_*")) if directory.is_dir() else ():
        try:
            found[load_checkpoint(path).manifest.iteration] = path
        except (FileNotFoundError, ValueError):
            continue
    return found


def _lines(found: _Comparison, a: RunDirectory, b: RunDirectory, tolerance: float, most: int) -> list[str]:
    lines = [f"A: {a.path} ({a.read_settings()['backend']})", f"B: {b.path} ({b.read_settings()['backend']})"]
    differing = [f"{name} ({one!r}, {other!r})" for name, (one, other) in found.settings.items()]
    lines.append(f"Settings: {'differ in ' + ', '.join(differing) if differing else 'the same'}.")
    bound = f", to within {tolerance:g}" if tolerance else ""
    for what, outcome in (("Logged", found.logged), ("Checkpoints", found.saved)):
        if isinstance(outcome, int):
            lines.append(f"{what}: the same{bound} in {_iterations(outcome)} that both have.")
            continue
        lines.append(
            f"{what}: part in iteration {outcome.iteration}, after {_iterations(outcome.num_equal)} that are the "
            f"same{bound}. {len(outcome.leaves)} of {outcome.num_leaves} leaves differ:"
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
