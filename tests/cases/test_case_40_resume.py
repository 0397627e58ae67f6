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
from multippo.testing import Clock, CountNet, FunctionalGoal, NoisyNet, Spy

ROOT = Path(__file__).resolve().parents[2]
HALF, WHOLE, NUM_ENVS, STEPS = 2, 4, 4, 8


class NoisyEncoder(mp.StatefulModule):
    """Adds noise from keys in the carry to its input."""

    def __init__(self, rngs: mp.Rngs) -> None:
        self.base_key = mp.Variable(rngs.key())

    def initialize_state(self, batch_size: int) -> Any:
        return self.random.split(self.base_key[...], batch_size)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        keys = self.random.split(state, 2)
        return mp.StatefulModuleOutput(keys[:, 1], x + 0.1 * self.random.normal(keys[:, 0], (x.shape[-1],)))


def make_network(seed: int) -> Any:
    """Statistics, noise, memory, a sampler whose entropy draws."""
    rngs = mp.Rngs(seed)
    heads = support.actor_critic(3, "NormalTanhSampler", seed=seed)
    network = mp.Sequential([mp.Normalizer(1), NoisyEncoder(rngs), mp.LSTM(1, 3, rngs), heads])
    support.fill_randomly(network, seed)
    mp.load_portable(network[0], mp.to_portable(mp.Normalizer(1)))
    return network


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
        network = make_network(1)  # other weights, which loading replaces
        state = mp.load_checkpoint(folder / "whole" / f"step_{HALF * NUM_ENVS * STEPS:012d}", network)
        save(folder / "rest", network, go(network, initial_state=state))


@pytest.mark.nightly
def test_in_a_new_process(engine: Any, tmp_path: Path):
    network = make_network(0)
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


@pytest.mark.parametrize(("schedule", "scale_rewards"), [("constant", False), ("cosine", True), ("adaptive_kl", True)])
def test_schedules_and_reward_scaling(torch_engine: Any, schedule: str, scale_rewards: bool, tmp_path: Path):
    class Discrete(FunctionalGoal):
        action_space = Clock(1).action_space

    def train(network: Any, **options: Any) -> training.Run:
        return training.train(
            mp.make_env(Discrete(3), num_envs=NUM_ENVS),
            network,
            iterations=WHOLE,
            lr_schedule=schedule,
            learning_rate=1e-3,
            scale_rewards=scale_rewards,
            config={"checkpoint_every_steps": HALF * 4 * NUM_ENVS},
            **options,
        )

    networks = [NoisyNet(1, 2, mp.Rngs(seed)) for seed in (0, 1)]
    run = train(networks[0])
    mp.save_checkpoint(tmp_path / "half", run.checkpoints[0][0], networks[0])
    rest = train(networks[1], initial_state=mp.load_checkpoint(tmp_path / "half", networks[1]))
    for name in ("learning_rate", "step", "losses/actor", "losses/critic", "gradient/norm", "ratio/first_max_dev"):
        assert rest.column(name) == run.column(name)[HALF:], name
    # The adaptive rate moves after every iteration here, in which the policy hardly does.
    assert len(set(run.column("learning_rate"))) == (1 if schedule == "constant" else WHOLE)
    training.assert_same_end(rest, run, (networks[1], networks[0]))


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
