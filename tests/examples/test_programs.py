"""The examples run, and replay repeats their rollouts."""

import numpy as np
import pytest
from pages import program

import multippo as mp

pytestmark = pytest.mark.nightly_if("jax")


@pytest.mark.nightly
@pytest.mark.parametrize("backends", [("jax", "torch"), ("torch", "jax")])
def test_distillation(backends, capsys):
    teacher, student, result = program("examples/distillation.py").train(256, *backends, rollout_length=16)
    assert (teacher.engine.name, student.engine.name) == backends
    assert result.total_iterations == 2 and result.final_metrics["kl/teacher"] > 0
    assert "KL from the teacher" in capsys.readouterr().out


def assert_learnt(before, network, num=None):
    after = mp.to_portable(network)
    learnt = [name for name in after if name.endswith(("kernel", "bias"))]
    assert len(learnt) == (num or len(learnt)) > 0
    assert all(np.any(after[name] != before[name]) for name in learnt)


def test_neural_circuit(engine, capsys):
    example = program("examples/neural_circuit.py")
    env = mp.make_env("multippo/PendulumNoVel-v0", num_envs=1)
    before = mp.to_portable(example.make_network(env, 0))
    # Three rollouts, so that the last begins with new episodes (of 200 steps).
    network, logged, _ = example.train(total_steps=600, num_envs=2, rollout_length=100)
    assert len(logged) == 3 and all(metrics["ratio/first_max_dev"] <= 1e-5 for metrics in logged)
    assert_learnt(before, network)
    assert "first ratio" in capsys.readouterr().out


def test_population_graph(engine, capsys):
    example = program("examples/population_graph.py")
    before = mp.to_portable(example.make_network(2, 2, 0))
    network, metrics = example.train(total_steps=128, num_envs=4, rollout_length=16)
    # Two iterations of 64 steps, less those in which an environment only reset itself.
    assert 100 < metrics["step"] <= 128 and metrics["ratio/first_max_dev"] < 1e-5
    assert_learnt(before, network, 2 * (6 + 2))
    assert "steps in an episode" in capsys.readouterr().out
