"""A resumed run is the run that was never interrupted, bit for bit.

Seen in google/brax#655, chainer/chainerrl#376, leggedrobotics/rsl_rl#221, Denys88/rl_games#173,
DLR-RM/stable-baselines3#1256 and #1277, thu-ml/tianshou#846.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import checkpoints
import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalGoal, Spy

ROOT = Path(__file__).resolve().parents[2]
HALF, WHOLE, NUM_ENVS, STEPS = 2, 4, 4, 8


def go(network: Any, **options: Any) -> training.Run:
    """A run with a falling rate and scaled rewards, saved at its half and at its end."""
    config = {"checkpoint_every_steps": HALF * NUM_ENVS * STEPS, "seed": 3}
    options = {"lr_schedule": "linear", "config": config, **options}
    env = mp.make_env(FunctionalGoal(3), num_envs=NUM_ENVS)
    return training.train(env, network, iterations=WHOLE, rollout_length=STEPS, **options)


def save(folder: Path, network: Any, run: training.Run) -> None:
    for state, step in run.checkpoints:
        mp.save_checkpoint(folder / f"step_{step:012d}", state, network)


def in_a_new_process(backend: str, folder: Path) -> None:
    """Continues the run saved in ``folder/whole`` and saves it in ``folder/rest``."""
    with mp.use_backend(backend):
        network = checkpoints.noisy_network(1)  # other weights, which loading replaces
        state = mp.load_checkpoint(folder / "whole" / f"step_{HALF * NUM_ENVS * STEPS:012d}", network)
        save(folder / "rest", network, go(network, initial_state=state))


@pytest.mark.nightly
def test_in_a_new_process(engine: Any, tmp_path: Path):
    network = checkpoints.noisy_network(0)
    run = go(network)
    save(tmp_path / "whole", network, run)
    environment = dict(os.environ)
    if engine.name == "jax":
        import jax

        environment["JAX_COMPILATION_CACHE_DIR"] = jax.config.jax_compilation_cache_dir or ""
        environment["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), str(ROOT / "tests"), *sys.path]))
    command = [sys.executable, "-W", "ignore", __file__, engine.name, str(tmp_path)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    name = f"step_{WHOLE * NUM_ENVS * STEPS:012d}"
    whole, rest = checkpoints.files_of(tmp_path / "whole" / name), checkpoints.files_of(tmp_path / "rest" / name)
    # Parameters, statistics; moments; carry with its random keys, running returns, the run's key; environment; counts.
    assert sorted(whole) == [
        "carry.safetensors",
        "checkpoint.json",
        "environment.safetensors",
        "optimizer.safetensors",
        "weights.safetensors",
    ]
    for file, content in whole.items():
        assert rest[file] == content, file
    half = checkpoints.files_of(tmp_path / "whole" / f"step_{HALF * NUM_ENVS * STEPS:012d}")
    for file, content in whole.items():
        assert half[file] != content, file


def test_a_host_environment_starts_anew_and_its_carry_with_it(torch_engine: Any, tmp_path: Path):
    from multippo.algorithms import checkpointing

    assert "A host environment, such as\n  gymnasium's, can't be saved" in (checkpointing.__doc__ or "")
    network = CountNet()
    run = training.train(Clock(50, num_envs=2), network, iterations=2)
    np.testing.assert_array_equal(support.to_numpy(run.state.network_state["memory"]), [8, 8])
    mp.save_checkpoint(tmp_path / "half", run.state, network)
    again, env = CountNet(), Spy(Clock(50, num_envs=2))
    rest = training.train(env, again, iterations=3, initial_state=mp.load_checkpoint(tmp_path / "half", again))
    assert (rest.column("iteration"), rest.column("step")) == ([3], [24])
    # Four steps into new episodes, for the environment and for the carry.
    np.testing.assert_array_equal(support.to_numpy(rest.state.network_state["memory"]), [4, 4])
    np.testing.assert_array_equal(env.states[-1].obs.argmax(-1), [4, 4])


if __name__ == "__main__":
    in_a_new_process(sys.argv[1], Path(sys.argv[2]))
