"""Medians, ratios and a plot of what was measured."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from multippo.bench.works import GOALS, LIMITS, OURS, WORKS, Work
from multippo.envs.host.workers import num_cores

Record = Mapping[str, Any]

_OF_MEASURE = {"rate": "steps_per_s", "start": "first_iteration_s", "return": "seconds_to_return"}
_PACKAGES = ("jax", "jaxlib", "flax", "optax", "torch", "numpy", "gymnasium", "mujoco", "multippo")


def machine(packages: Iterable[str]) -> dict[str, Any]:
    """Hardware and versions.

    Args:
        packages: Distributions beside those that multippo uses.
    """
    versions: dict[str, str] = {}
    for name in (*_PACKAGES, *packages):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "processor": _processor(),
        "cores": num_cores(),
        "load": round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def summarise(records: Iterable[Record]) -> dict[str, dict[str, dict[str, Any]]]:
    """Medians over the rounds by work and contestant, or ``{"error": ...}``.

    Each has ``rounds`` and, of its main number, ``least`` and ``most``.
    """
    grouped: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        grouped.setdefault(record["work"], {}).setdefault(record["who"], []).append(record)
    return {work: {who: _median(work, found) for who, found in by_who.items()} for work, by_who in grouped.items()}


def _median(work: str, records: Sequence[Record]) -> dict[str, Any]:
    good = [record for record in records if "error" not in record]
    if not good:
        return {"error": records[-1]["error"]}
    names = [name for name, value in good[0].items() if isinstance(value, int | float) and name != "round"]
    found: dict[str, Any] = {name: statistics.median(r[name] for r in good if name in r) for name in names}
    main = _OF_MEASURE[WORKS[work].measure]
    values = [record[main] for record in good if main in record]
    if "arithmetic_s" in found:
        found["needed_s"] = found["environment_s"] + found["arithmetic_s"]
        found["rollout_overhead_s"] = found["rollout_s"] - found["needed_s"]
    return found | {"rounds": len(good), "least": min(values), "most": max(values)}


def ratios(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[dict[str, Any]]:
    """Rows of the goals whose numbers are there: ours, the best of the others, the ratio, whether it is reached."""
    rows: list[dict[str, Any]] = []
    for goal in GOALS:
        main = _OF_MEASURE[WORKS[goal.work].measure]
        number, their_number = goal.number or main, goal.their_number or goal.number or main
        is_rate = number == "steps_per_s"
        ours = _numbers(summary.get(goal.work, {}), goal.ours, number)
        theirs = _numbers(summary.get(goal.theirs or goal.work, {}), goal.against, their_number)
        if not ours or not theirs:
            continue
        us, them = ((max if is_rate else min)(values, key=values.__getitem__) for values in (ours, theirs))
        ratio = ours[us] / theirs[them]
        rows.append(
            {"work": goal.work, "number": number, "ours": us, "against": them, "ratio": ratio, "goal": goal.ratio}
            | {"reached": ratio >= goal.ratio if is_rate else ratio <= goal.ratio}
            | {"their_number": their_number, "ours_value": ours[us], "their_value": theirs[them]}
        )
    return rows


def _numbers(found: Mapping[str, Mapping[str, Any]], names: Iterable[str], number: str) -> dict[str, float]:
    return {who: found[who][number] for who in names if number in found.get(who, {})}


def where_time_goes(values: Mapping[str, Any]) -> dict[str, float]:
    """Seconds of an iteration by part.

    Where Python stands between the parts they are measured in the same iterations as the whole, and the rest is
    overhead. Of one compiled programme the environment alone and a rollout alone were measured in between.
    """
    parts = "rollout", "environment", "acting", "update"
    spent = {name: values[f"{name}_s"] for name in parts if f"{name}_s" in values}
    if "iteration_s" not in values or len(spent) < 2:
        return {}
    if "update" not in spent:
        spent["acting"] = spent["rollout"] - spent["environment"]
        spent["update and the rest"] = values["iteration_s"] - spent.pop("rollout")
        return spent
    if "environment" in spent:
        spent.pop("rollout", None)
    return {**spent, "overhead": values["iteration_s"] - sum(spent.values())}


def lines(records: Sequence[Record], about: Mapping[str, Any]) -> list[str]:
    """The report as Markdown."""
    summary = summarise(records)
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    hardware = f"{about['processor']}, {about['cores']} cores, load {about['load']} at the start"
    out = [f"{hardware}; Python {about['python']}; {versions}.", ""]
    for name, found in summary.items():
        work = WORKS[name]
        out += [f"## {name}: {_described(work)}", "", *_table(work, found), ""]
        for who, values in found.items():
            if spent := where_time_goes(values):
                parts = ", ".join(f"{part} {1e3 * seconds:.2f}" for part, seconds in spent.items())
                out += [f"Milliseconds of an iteration, {who}: {parts}.", ""]
    rows = ratios(summary)
    if rows:
        out += ["## Ratios", "", "| work | number | ours | against | ratio | goal | |", "|---|---|---|---|---|---|---|"]
        for row in rows:
            sign = "≥" if row["number"] == "steps_per_s" else "≤"
            other = "" if row["their_number"] == row["number"] else f" {row['their_number']}"
            cells = [row["work"], row["number"], f"{row['ours']} {row['ours_value']:,.4g}"]
            cells += [f"{row['against']}{other} {row['their_value']:,.4g}", f"{row['ratio']:.2f}"]
            cells += [f"{sign} {row['goal']:g}", "reached" if row["reached"] else "missed"]
            out.append("| " + " | ".join(cells) + " |")
    return out


def _described(work: Work) -> str:
    layers = [*([f"LSTM {work.lstm}"] if work.lstm else []), *map(str, work.hidden)]
    cache = f", {work.cache} compilation cache" if work.cache else ""
    return f"{work.env}, {work.num_envs} × {work.rollout_length}, {' × '.join(layers)}{cache}"


def _table(work: Work, found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    main = _OF_MEASURE[work.measure]
    limits = [values[main] for who, values in found.items() if who.startswith("limit-") and main in values]
    head = ["who", main, "least – most", "of the limit", "first iteration (s)", "peak memory (MiB)"]
    rows = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    for who, values in sorted(found.items(), key=lambda item: -item[1].get(main, 0.0)):
        if "error" in values:
            rows.append(f"| {who} | failed: {values['error'].replace('|', '/')} | | | | |")
            continue
        own = found.get(f"limit-{who}", {}).get(main) or (max(limits) if limits else None)
        share = f"{values[main] / own:.2f}" if own and who != "environment" else ""
        first = f"{values['first_iteration_s']:.1f}" if "first_iteration_s" in values else ""
        cells = [who, f"{values[main]:,.4g}" if values[main] < 1000 else f"{values[main]:,.0f}"]
        cells += [f"{values['least']:,.5g} – {values['most']:,.5g}", share, first, f"{values['memory_mib']:,.0f}"]
        rows.append("| " + " | ".join(cells) + " |")
    return rows


def plot(records: Sequence[Record], path: Path) -> None:
    """Draws a panel of bars for each work."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    summary = summarise(records)
    figure, axes = pyplot.subplots(len(summary), 1, figsize=(7, 1.9 * len(summary)), squeeze=False)
    for axis, (name, found) in zip(axes[:, 0], summary.items(), strict=True):
        main = _OF_MEASURE[WORKS[name].measure]
        bars = sorted((values[main], who) for who, values in found.items() if main in values and who != "environment")
        colours = ["C1" if who in OURS else "C7" if who in LIMITS else "C0" for _, who in bars]
        axis.barh([who for _, who in bars], [value for value, _ in bars], color=colours)
        axis.set_title(f"{name} ({main})", fontsize=9, loc="left")
        axis.tick_params(labelsize=8)
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)
