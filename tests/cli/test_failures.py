"""``multippo train`` in a directory that another process trains in, and with an environment that fails."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.cli.runs import RunDirectory

SMALL = ("--backend", "torch", "--actor-hidden-sizes", 4, "--critic-hidden-sizes", 4, "--num-envs", 2)
SHORT = ("--rollout-length", 8, "--num-epochs", 1, "--num-minibatches", 1, "--final-eval-episodes", 0)


def files(directory: Path) -> dict[str, bytes]:
    return {str(file.relative_to(directory)): file.read_bytes() for file in directory.rglob("*") if file.is_file()}


def test_two_processes_can_not_train_in_one_directory(command: Any, tmp_path: Path):
    run = tmp_path / "run"
    start = ("train", "CartPole-v1", *SMALL, *SHORT, "--total-steps", 16, "--run-dir", run)
    assert command(*start).code == 0
    before = files(run)
    resume = ("train", "--run-dir", run, "--resume", "--total-steps", 64)
    with RunDirectory(run).held():
        done = command(*resume)
        assert (done.code, done.out) == (2, "")
        assert done.err.count("\n") == 1 and f"another process is training in {run}: wait for it or stop it" in done.err
        assert files(run) == before
    assert command(*resume).code == 0
    assert files(run) != before


class Faulty(gymnasium.Env[Any, Any]):
    """Fails in its twentieth step."""

    observation_space = spaces.Box(-1, 1, (1,))
    action_space = spaces.Discrete(2)
    steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {}

    def step(self, action: Any) -> Any:
        self.steps += 1
        if self.steps == 20:
            raise OSError("the simulator is gone")
        return np.zeros(1, np.float32), 1.0, False, self.steps % 5 == 0, {}


def test_an_environment_that_fails_costs_one_iteration(command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(gymnasium.registry, "Faulty-v0", gymnasium.envs.registration.EnvSpec("Faulty-v0", Faulty))
    run = tmp_path / "run"
    with pytest.raises(OSError, match="the simulator is gone") as caught:
        command("train", "Faulty-v0", *SMALL, *SHORT, "--total-steps", 320, "--run-dir", run)
    (saved,) = (run / "checkpoints").iterdir()
    assert mp.load_checkpoint(saved).manifest.iteration == 2
    assert any(
        f"Saved: {saved}. Go on with: multippo train --run-dir {run} --resume" in n for n in caught.value.__notes__
    )
