"""Runs of the command, of two iterations or five."""

from pathlib import Path
from typing import Any

import multippo as mp
from multippo.algorithms.metrics import read_metrics

# Two iterations of 4 x 8 steps. Of CartPole's, those that only reset do not count.
SHORT = ("--num-envs", 4, "--rollout-length", 8, "--num-epochs", 1, "--num-minibatches", 2, "--total-steps", 64)
SMALL = ("--actor-hidden-sizes", 8, "--critic-hidden-sizes", 8)
FIVE = ("--total-steps", 160, "--final-eval-episodes", 0, "--checkpoint-every-steps", 1)


def train(command: Any, *arguments: object, env: str = "CartPole-v1", backend: str = "torch") -> Any:
    """``multippo train`` for two iterations."""
    return command("train", env, "--backend", backend, "--progress", "plain", *SHORT, *SMALL, *arguments)


def numbers(path: Path) -> list[dict[str, Any]]:
    """What was logged, without what the clock says."""
    return [
        {name: value for name, value in record.items() if not name.startswith(("time/", "throughput/"))}
        for record in read_metrics(path / "metrics.jsonl")
    ]


def checkpoints(run: Path = Path("run")) -> list[Path]:
    return sorted((run / "checkpoints").glob("step_*"))


def iterations(run: Path = Path("run")) -> list[int]:
    """Of the checkpoints of a run."""
    return [mp.load_checkpoint(path).manifest.iteration for path in checkpoints(run)]


def contents(path: Path) -> dict[Path, bytes | None]:
    """Everything below a directory; None for what is not a file."""
    return {entry: entry.read_bytes() if entry.is_file() else None for entry in path.rglob("*")}
