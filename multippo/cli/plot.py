"""``multippo plot``: a metric of runs over environment steps, as a picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

from multippo.algorithms.metric_names import RETURN
from multippo.algorithms.metrics import plot_metric, read_metrics
from multippo.arguments import did_you_mean
from multippo.cli.flags import parse
from multippo.errors import UsageError
from multippo.runs.directory import RunDirectory, runs_in


@dataclasses.dataclass(frozen=True)
class _Flags:
    """Draws a metric of runs over environment steps; of several seeds under one directory mean and deviation."""

    runs: Sequence[str] = ()
    """Directories of runs, or of several runs with different seeds."""

    _: dataclasses.KW_ONLY

    metric: str = RETURN
    """Name of the metric; an unknown one is answered with the nearest."""

    output: str = "plot.png"
    """The picture; its ending says the format: png, svg, pdf."""


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If a run is missing, or none has the metric.
    """
    flags = parse("plot", _Flags, argv)
    if not flags.runs:
        raise UsageError("a run is missing: multippo plot runs/CartPole-v1/…, the directory multippo train printed.")
    groups: dict[str, list[list[dict[str, float]]]] = {}
    for name in flags.runs:
        found = runs_in(Path(name))
        if not found:
            RunDirectory(Path(name)).read_settings()  # raises
        groups[name] = [read_metrics(directory.metrics) for directory in found]
    known = {metric: None for group in groups.values() for records in group for line in records for metric in line}
    if flags.metric not in known:
        raise UsageError(f"no run logged {flags.metric!r}.{did_you_mean(flags.metric, known)}")
    plot_metric(groups, flags.metric).savefig(flags.output, dpi=120)
    print(flags.output)
    return 0
