"""The process of one measurement: ``python -m multippo.bench.worker FILE REQUEST`` writes its result to FILE."""

from __future__ import annotations

import importlib
import json
import sys
import warnings
from pathlib import Path
from typing import Any

from multippo.bench import ours, peers
from multippo.bench.recorder import Enough, Recorder
from multippo.bench.works import LIMITS, OURS, WORKS


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
    recorder = Recorder(task, began, seconds)
    try:
        if who in LIMITS:
            importlib.import_module(f"multippo.bench.{LIMITS[who]}").run(task, recorder)
        elif who in OURS:
            ours.solve(task, who, seed, recorder) if task.measure == "return" else ours.train(task, who, recorder)
        else:
            peer = peers.PEERS[who]
            peer.solve(task, seed, recorder) if task.measure == "return" else peer.train(task, recorder)
    except Enough:
        return recorder.result()
    raise RuntimeError(f"{who} ended {work} before enough was measured.")


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    request = json.loads(sys.argv[2])
    Path(sys.argv[1]).write_text(json.dumps(measure(**request)))
