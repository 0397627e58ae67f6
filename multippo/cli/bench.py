"""``multippo bench``, which measures multippo beside other libraries and hand-written limits."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from multippo.arguments import check_number, check_size, did_you_mean
from multippo.bench.peers import PEERS
from multippo.bench.report import lines, machine, plot
from multippo.bench.running import in_a_process, order, run_all
from multippo.bench.works import LIMITS, OURS, WORKS, Work
from multippo.cli.flags import parse
from multippo.errors import UsageError

_WHO = (*OURS, *PEERS, *LIMITS)


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flags:
    """Measures multippo beside other libraries and hand-written limits, each in a process of its own.

    The libraries are those that are installed: pip install 'multippo[bench]'.
    """

    works: tuple[str, ...] = ()
    """Works to measure, by name; all but those for a GPU by default."""

    peers: tuple[str, ...] = ()
    """Contestants to measure: jax and torch are multippo's engines, limit-jax and limit-torch hand-written programmes,
    environment the environment alone; all that are installed by default."""

    rounds: int = 3
    """Measurements of each, of which the median counts; of a work to a return, seeds."""

    seconds: float = 8.0
    """Length of one measurement after compilation."""

    output: str = "bench"
    """Directory for results.json, report.md and plot.png."""

    quick: bool = False
    """One round of one small work in about a minute: shows that everything runs, and little more."""


def run(argv: Sequence[str]) -> int:
    """Runs the command.

    Raises:
        UsageError: If a name is unknown.
        ValueError: If ``--rounds`` or ``--seconds`` is out of range.
    """
    flags = parse("bench", _Flags, argv)
    check_size("", "rounds", flags.rounds)
    check_number("", "seconds", flags.seconds, least=0)
    works = [WORKS[_known(name, WORKS, "work")] for name in flags.works]
    chosen = [_known(name, _WHO, "contestant") for name in flags.peers]
    if flags.quick:
        works, flags = works or [WORKS["quick"]], dataclasses.replace(flags, rounds=1, seconds=1.0)
    works = works or [work for work in WORKS.values() if work.default]
    missing = {name for name, peer in PEERS.items() if peer.version is None}

    def who(work: Work) -> list[str]:
        return [name for name in work.who if name not in missing and (not chosen or name in chosen)]

    absent = sorted(missing & {name for work in works for name in work.who if not chosen or name in chosen})
    if absent:
        packages = " ".join(PEERS[name].package for name in absent)
        print(f"Not installed, and left out: {', '.join(absent)} (pip install {packages}).", flush=True)
    planned = order(works, who, flags.rounds)
    about = machine(peer.package for peer in PEERS.values())
    folder = Path(flags.output)
    folder.mkdir(parents=True, exist_ok=True)
    records: list[dict[str, Any]] = []

    def tell(record: dict[str, Any]) -> None:
        records.append(record)
        # After each, so that an interrupt loses nothing.
        (folder / "results.json").write_text(json.dumps({**about, "records": records}, indent=1))
        numbers = [f"{name} {value:,.4g}" for name, value in record.items() if isinstance(value, float)]
        words = record.get("error") or ", ".join(numbers)
        print(f"[{len(records)}/{len(planned)}] {record['work']}, {record['who']}: {words}", flush=True)

    run_all(planned, in_a_process(flags.seconds), tell)
    report = "\n".join(lines(records, about))
    (folder / "report.md").write_text(report + "\n")
    plot(records, folder / "plot.png")
    print(f"\n{report}\n\nWritten to {folder}: results.json, report.md, plot.png.")
    return 0


def _known(name: str, names: Any, what: str) -> str:
    if name not in names:
        raise UsageError(f"unknown {what} {name!r}.{did_you_mean(name, names)} Expected any of {', '.join(names)}.")
    return name
