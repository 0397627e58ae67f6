"""A worker process that dies is named, leaves nobody behind, and costs no more than the steps since the last save.

Seen in openai/gym#3281, rainx0r/metaworld-algorithms#2, hill-a/stable-baselines#217, Smithsonian/layup#336.
"""

import os
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.testing import TableNet


def make_class(fault: Any = None, at: int = 5) -> Any:
    """A class of environments that do something at a step; local, so that it travels to a worker by value."""

    class Member(gymnasium.Env[Any, Any]):
        observation_space = spaces.Box(0, 1, (2,), np.float32)
        action_space = spaces.Discrete(2)

        def __init__(self) -> None:
            self.count = 0

        def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
            super().reset(seed=seed)
            return np.array([1, 0], np.float32), {}

        def step(self, action: Any) -> Any:
            self.count += 1
            if fault is not None and self.count == at:
                fault()
            return np.array([0, 1], np.float32), 1.0, False, self.count % 3 == 0, {}

    return Member


def vector(fault: Any, at: int) -> Any:
    """Two sound environments and in between one with a fault."""
    return mp.make_env([make_class(), make_class(fault, at), make_class()], vectorization="async")


def test_a_worker_that_dies_in_training(torch_engine: Any, tmp_path: Path):
    env = vector(lambda: os._exit(1), 5)
    processes = env.vector_env.processes
    network = TableNet([0.0, 0.0])
    began = time.monotonic()

    def save(state: Any, step: int) -> None:
        mp.save_checkpoint(tmp_path / f"step_{step}", state, network)

    config = mp.TrainConfig(
        ppo=mp.PPOConfig(rollout_length=4, total_steps=60, num_minibatches=3), checkpoint_every_steps=12
    )
    with pytest.raises(RuntimeError, match=r"worker process died \(exit codes by environment: \{1: 1\}\)"):
        mp.train_ppo(env, network, config, checkpoint_fn=save)
    assert time.monotonic() - began < 30
    assert not any(process.is_alive() for process in processes)
    # The first rollout was whole; the fifth step belongs to the second.
    state = mp.load_checkpoint(tmp_path, TableNet([1.0, 1.0]))
    assert (state.iteration, state.step) == (1, 12)


def the_fault_of_the_simulator() -> None:
    raise ArithmeticError("the mass is negative")


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_exception_keeps_its_own_traceback(jax_engine: Any, vectorization: str):
    # No process is forked from one that runs JAX: it would warn of a fork, and a warning is an error in these tests.
    import jax

    jax.block_until_ready(jax.jit(lambda x: x + 1)(1.0))
    env = mp.make_env([make_class(), make_class(the_fault_of_the_simulator, 2)], vectorization=vectorization)
    processes = env.vector_env.processes if vectorization == "async" else []
    state = env.step(env.reset(0), np.zeros(2, int))
    assert state.reward.tolist() == [1.0, 1.0]
    with pytest.raises(ArithmeticError, match="the mass is negative") as caught:
        env.step(state, np.zeros(2, int))
    notes = "\n".join(caught.value.__notes__)
    assert "environment 1" in notes
    assert "the_fault_of_the_simulator" in notes + str([entry.name for entry in caught.traceback])
    assert not any(process.is_alive() for process in processes)
