"""Runs of the command, of two iterations."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from multippo.algorithms.metrics import read_metrics

__all__ = ["SHORT", "SMALL", "numbers", "train"]

# Two iterations of 4 x 8 steps.
SHORT = ("--num-envs", 4, "--rollout-length", 8, "--num-epochs", 1, "--num-minibatches", 2, "--total-steps", 64)
SMALL = ("--actor-hidden-sizes", 8, "--critic-hidden-sizes", 8)


def train(command: Any, *arguments: object, env: str = "CartPole-v1", backend: str = "torch") -> Any:
    """``multippo train`` for two iterations."""
    return command("train", env, "--backend", backend, "--progress", "plain", *SHORT, *SMALL, *arguments)


def numbers(path: Path) -> list[dict[str, Any]]:
    """What was logged, without what the clock says."""
    return [
        {name: value for name, value in record.items() if not name.startswith(("time/", "throughput/"))}
        for record in read_metrics(path / "metrics.jsonl")
    ]
