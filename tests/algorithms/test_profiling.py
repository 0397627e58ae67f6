"""Traces of a run name its phases."""

import contextlib
import gzip
from pathlib import Path
from typing import Any

import pytest
from checkpoints import clock, table_net

import multippo as mp
from multippo.algorithms.profiling import Profile
from multippo.algorithms.run import Run
from multippo.testing import Clock

PHASES = ("rollout", "environment", "acting", "update", "evaluation", "checkpoint")


def written(directory: Path) -> bytes:
    """All that lies in a directory, unpacked."""
    files = [path for path in directory.rglob("*") if path.is_file()]
    return b"".join(gzip.decompress(f.read_bytes()) if f.suffix == ".gz" else f.read_bytes() for f in files)


@pytest.mark.parametrize(
    ("name", "kind"), [("torch", "host"), ("jax", "functional"), pytest.param("jax", "host", marks=pytest.mark.nightly)]
)
def test_a_trace_names_the_phases(name: str, kind: str, tmp_path: Path):
    env: Any = clock() if kind == "functional" else Clock(3, "truncated", num_envs=4)
    evaluation = mp.EvalConfig(every_steps=16, num_episodes=1)
    profile = Profile(tmp_path, first=1, num_iterations=2)
    with mp.use_backend(name) as engine:
        state = run_profiled(env, profile, evaluation)
    assert profile.close() and not engine.profiling
    assert state.iteration == 4
    content = written(tmp_path)
    assert [phase for phase in PHASES if phase.encode() not in content] == []


def run_profiled(env: Any, profile: Profile, evaluation: mp.EvalConfig) -> mp.TrainingState:
    ppo = mp.PPOConfig(rollout_length=4, num_minibatches=2, num_epochs=1, total_steps=64)
    config = mp.TrainConfig(ppo=ppo, eval=evaluation, checkpoint_every_steps=16)
    with contextlib.ExitStack() as made:
        run = Run(env, table_net(), config, None, lambda state, step: None, None, None, made, profile=profile)
        return run.go().training_state


def test_a_run_of_too_few_iterations_has_no_trace(torch_engine: Any, tmp_path: Path):
    profile = Profile(tmp_path, first=4)
    run_profiled(Clock(3, "truncated", num_envs=4), profile, mp.EvalConfig())
    assert not profile.close()
    assert not list(tmp_path.iterdir())
