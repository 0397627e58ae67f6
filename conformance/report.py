"""Reports of results: one table, or JSON."""

from __future__ import annotations

import dataclasses
import io
import json
import math
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from .checks.check import Result
from .evidence.engines import numerics
from .random_networks.drawn_networks import LEFT_OUT, can_draw
from .specimens.module_specimens import MODULES
from .specimens.network_specimens import NETWORKS

_COLUMNS = ("check", "on", "of", "float32", "float64", "farthest off", "verdict")
_TITLES = {
    1: "Level 1: each engine alone",
    2: "Level 2: engines against each other",
    3: "Level 3: modules that are wrong on purpose",
}
_WIDTH = 160


def as_json(results: Sequence[Result]) -> str:
    """Text of one JSON object: the verdict, the subjects left out, the precisions in force, and every result.

    An infinite deviation is null; ``detail`` says why.
    """
    rows = [dataclasses.asdict(result) for result in results]
    for row in rows:
        row["worst"] = row["worst"] if math.isfinite(row["worst"]) else None
    found = {
        "passed": bool(results) and all(result.passed for result in results),
        "left_out": left_out(_engines(results)),
        "numerics": numerics(_all_engines(results)),
        "results": rows,
    }
    return json.dumps(found, indent=1, allow_nan=False)


def as_text(results: Sequence[Result]) -> str:
    """Text of one table, then every failure in full, the devices and precisions in force, and a summary in one line.

    A row is one check on one engine, with the number of subjects, the worst deviation in each precision beside the
    largest allowed, and the subject, step and environment that came nearest to failing.
    """
    groups: dict[Any, list[Result]] = {}
    for result in results:
        name = result.subject if result.level == 3 else result.check
        groups.setdefault((result.level, name, result.backend), []).append(result)
    sections: dict[str, list[tuple[str, ...]]] = {}
    for (level, name, backend), group in groups.items():
        sections.setdefault(_TITLES[level], []).append(_row(level, name, backend, group))
    failures = [result for result in results if not result.passed]
    lines = [_table(sections)] if results else []
    lines += [f"FAILED {_describe(result)}" for result in failures]
    if not results:
        lines.append("No check was made: no engine can make any that was asked for.")
    elif not any(result.level == 2 for result in results):
        lines.append("Level 2 was not run: it was left out, or there is no other engine to compare with.")
    lines += left_out(_engines(results))
    lines += [
        f"Computed by {backend}: {', '.join(f'{name} {value}' for name, value in settings.items())}."
        for backend, settings in numerics(_all_engines(results)).items()
    ]
    lines.append(f"{len(results) - len(failures)} of {len(results)} checks passed.")
    return "\n".join(lines)


def left_out(backends: Iterable[str]) -> list[str]:
    """Lines for the subjects that are not run on each of some engines, with the reasons."""
    lines = [
        f"Left out on {backend}: {specimen.name} ({reason})."
        for backend in backends
        for specimen in (*MODULES, *NETWORKS)
        if (reason := specimen.why_not(backend)) is not None
    ]
    return lines if can_draw() else [*lines, LEFT_OUT]


def _engines(results: Sequence[Result]) -> list[str]:
    """Names of the engines under test."""
    return list(dict.fromkeys(result.backend.partition(" against ")[0] for result in results))


def _all_engines(results: Sequence[Result]) -> list[str]:
    """Names of the engines under test, and of those that they were compared with."""
    return list(dict.fromkeys(name for result in results for name in result.backend.split(" against ")))


def _row(level: int, name: str, backend: str, group: Sequence[Result]) -> tuple[str, ...]:
    nearest = max(group, key=_closeness)
    wrong = sum(not result.passed for result in group)
    cells = (_cell([r for r in group if r.precision == precision]) for precision in ("float32", "float64"))
    if level == 3:
        place = f"{nearest.check}, {nearest.where}".removesuffix(", ")
        return (name, backend, "", *cells, place, "NOT CAUGHT" if wrong else "caught")
    place = nearest.where if len(group) == 1 or not nearest.worst else f"{nearest.subject}: {nearest.where}"
    subjects = len({result.subject for result in group})
    return (name, backend, str(subjects), *cells, place, f"FAIL ({wrong} of {len(group)})" if wrong else "pass")


def _closeness(result: Result) -> tuple[bool, float]:
    """Nearness to failing, or distance beyond; at level 3 the weakest catch comes first."""
    share = result.worst / result.tolerance if result.tolerance else result.worst
    return (not result.passed, -share if result.level == 3 else share)


def _cell(group: Sequence[Result]) -> str:
    if not group:
        return ""
    worst = max(group, key=lambda result: result.worst)
    sign = "≤" if worst.worst <= worst.tolerance else ">"
    return f"{_number(worst.worst)} {sign} {_number(worst.tolerance)}"


def _number(value: float) -> str:
    return "0" if value == 0 else "inf" if math.isinf(value) else f"{value:.1e}"


def _describe(result: Result) -> str:
    what = f"{result.check} of {result.subject} on {result.backend} in {result.precision}"
    size = f"{_number(result.worst)}, allowed {_number(result.tolerance)}"
    where, detail = result.where and f", at {result.where}", result.detail and f": {result.detail}"
    return f"{what}: {size}{where}{detail}"


def _table(sections: Mapping[str, Sequence[tuple[str, ...]]]) -> str:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1), pad_edge=False)
    for column in _COLUMNS:
        table.add_column(column, overflow="fold", no_wrap=column in ("float32", "float64"))
    for title, rows in sections.items():
        table.add_row(title, style="bold")
        for row in rows:
            table.add_row(f"  {row[0]}", *row[1:], style=None if row[-1] in ("pass", "caught") else "bold red")
    terminal = sys.stdout.isatty()
    out = io.StringIO()
    width = shutil.get_terminal_size((_WIDTH, 24)).columns if terminal else _WIDTH
    Console(file=out, width=width, force_terminal=terminal, highlight=False).print(table)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines()).strip("\n")
