"""The example runs on both engines, and replay repeats its rollouts."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

import multippo as mp

PATH = Path(__file__).resolve().parents[2] / "examples" / "population_graph.py"


def example():
    spec = importlib.util.spec_from_file_location("population_graph", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.nightly_if("jax")
def test_a_few_steps(engine, capsys):
    before = mp.to_portable(example().make_network(2, 2, 0))
    network, metrics = example().train(total_steps=128, num_envs=4, rollout_length=16)
    # Two iterations of 64 steps, less those in which an environment only reset itself.
    assert 100 < metrics["step"] <= 128 and metrics["ratio/first_max_dev"] < 1e-5
    after = mp.to_portable(network)
    learnt = [name for name in after if name.endswith(("kernel", "bias"))]
    assert len(learnt) == 2 * (6 + 2) and all(np.any(after[name] != before[name]) for name in learnt)
    assert "steps in an episode" in capsys.readouterr().out
