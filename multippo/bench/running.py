"""Measurements one after another, each in a process of its own, contestants in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import multippo
from multippo.bench.works import Work

Measure = Callable[[Work, str, int], dict[str, Any]]
"""Function of a work, a contestant and the number of the round to a record, with "error" in it if it failed."""

_LIMIT_S = 900.0
"""Seconds after which a process is stopped, beside those of the measurement itself."""

_CACHE = "JAX_COMPILATION_CACHE_DIR"


def order(works: Iterable[Work], who: Callable[[Work], Sequence[str]], rounds: int) -> list[tuple[int, Work, str]]:
    """Measurements in their order: rounds outermost, all contestants of a work together, every second round backwards.

    Neighbours in time see the same machine, and nobody is always first.
    """
    planned: list[tuple[int, Work, str]] = []
    for number in range(rounds):
        for work in works:
            contestants = list(who(work))
            planned += [(number, work, name) for name in (contestants if number % 2 == 0 else contestants[::-1])]
    return planned


def run_all(
    planned: Iterable[tuple[int, Work, str]], measure: Measure, tell: Callable[[dict[str, Any]], None]
) -> list[dict[str, Any]]:
    """Measures in the given order; who failed at a work once is not asked again.

    Args:
        planned: Measurements from ``order``.
        measure: Function that makes one of them.
        tell: Receiver of each record as it is made.
    """
    records: list[dict[str, Any]] = []
    failed: set[tuple[str, str]] = set()
    for number, work, who in planned:
        if (work.name, who) in failed:
            continue
        record = {"work": work.name, "who": who, "round": number, **measure(work, who, number)}
        if "error" in record:
            failed.add((work.name, who))
        records.append(record)
        tell(record)
    return records


def in_a_process(seconds: float) -> Measure:
    """Measures in a process of one OpenMP thread.

    Args:
        seconds: Length of a measurement after the warm-up.
    """

    def measure(work: Work, who: str, number: int) -> dict[str, Any]:
        with tempfile.TemporaryDirectory() as folder:
            cache = str(Path(folder) / "cache") if work.cache else None
            if work.cache == "full":
                _process(work, who, seconds, number, cache)
            return _process(work, who, seconds, number, cache)

    return measure


def _process(work: Work, who: str, seconds: float, seed: int, cache: str | None) -> dict[str, Any]:
    # The same multippo as here, wherever it was imported from.
    path = [str(Path(multippo.__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(path)}
    if cache is None:
        variables.pop(_CACHE, None)
    else:
        # Even what is compiled quickly is kept.
        variables |= {_CACHE: cache, "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0"}
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "result.json"
        request = {"work": work.name, "who": who, "seconds": seconds, "began": time.time(), "seed": seed}
        command = [sys.executable, "-m", "multippo.bench.worker", str(file), json.dumps(request)]
        try:
            # In a folder of its own, for libraries that write logs where they are started.
            done = subprocess.run(
                command, env=variables, cwd=folder, capture_output=True, text=True, timeout=_LIMIT_S + seconds
            )
        except subprocess.TimeoutExpired:
            return {"error": f"not done after {_LIMIT_S + seconds:.0f} s"}
        if done.returncode or not file.exists():
            lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
            return {"error": lines[-1][:300]}
        return json.loads(file.read_text())
