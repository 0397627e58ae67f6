"""The example runs on both engines, and replay repeats its rollouts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import multippo as mp

PATH = Path(__file__).resolve().parents[2] / "examples" / "neural_circuit.py"


def example():
    spec = importlib.util.spec_from_file_location("neural_circuit", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly_if("jax")
def test_a_few_steps(engine, capsys):
    env = mp.make_env("multippo/PendulumNoVel-v0", num_envs=1)
    before = mp.to_portable(example().make_network(env, 0))
    # Three rollouts, so that the last begins with new episodes (of 200 steps).
    network, logged, _ = example().train(total_steps=600, num_envs=2, rollout_length=100)
    assert len(logged) == 3 and all(metrics["ratio/first_max_dev"] <= 1e-5 for metrics in logged)
    after = mp.to_portable(network)
    learnt = [name for name in after if name.endswith(("kernel", "bias"))]
    assert learnt and all(np.any(after[name] != before[name]) for name in learnt)
    assert "first ratio" in capsys.readouterr().out
