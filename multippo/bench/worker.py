"""The process of one measurement: ``python -m multippo.bench.worker FILE REQUEST`` writes its result to FILE."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from multippo.bench.recorder import Enough, Recorder
from multippo.bench.works import OURS, WORKS


def measure(work: str, who: str, seconds: float, began: float, seed: int = 0) -> dict[str, Any]:
    """Runs one contestant on one work in this process; see ``Recorder.result``.

    Args:
        work: Name of the work.
        who: Contestant.
        seconds: Length of the measurement.
        began: ``time.time()`` when the process was started.
        seed: Seed of a work of measure "return".

    Raises:
        RuntimeError: If the contestant ended before enough was measured.
    """
    task = WORKS[work]
    recorder = Recorder(began, seconds, task.measure == "start")
    try:
        if who in OURS:
            from multippo.bench import ours

            if task.measure == "return":
                ours.solve(task, who, seed, recorder)
            else:
                ours.train(task, who, recorder)
        elif who.startswith("limit-") or who == "environment":
            from multippo.bench import limits

            limits.LIMITS[who](task, recorder)
        else:
            from multippo.bench import peers

            if task.measure == "return":
                peers.PEERS[who].solve(task, seed, recorder)
            else:
                peers.PEERS[who].train(task, recorder)
    except Enough:
        return recorder.result()
    raise RuntimeError(f"{who} ended {work} before enough was measured.")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[2])
    Path(sys.argv[1]).write_text(json.dumps(measure(**request)))
