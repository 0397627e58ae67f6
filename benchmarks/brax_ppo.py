"""What Brax's own PPO reaches on a brax environment in a given number of steps, for RESULTS.md.

    python benchmarks/brax_ppo.py reacher --steps 1000000 --seeds 0 1 2

Two settings, both on the environment as multippo trains on it (1,000 steps an episode, no action repeat but Brax's own
for the task, observations normalised, deterministic evaluation of 128 episodes):

* ``same``: the sizes, rates and discount of multippo's row in ``learning.py``; the reward scale is the one published.
* ``published``: the settings of Brax's training notebook for the task, made for 20 to 50 million steps.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import time
from typing import Any

SAME: dict[str, dict[str, Any]] = {
    "reacher": {
        "num_envs": 64,
        "unroll_length": 125,
        "batch_size": 2,
        "num_minibatches": 32,
        "num_updates_per_batch": 8,
        "learning_rate": 1e-3,
        "discounting": 0.95,
        "gae_lambda": 0.95,
        "entropy_cost": 1e-4,
        "clipping_epsilon": 0.2,
    },
    "inverted_double_pendulum": {
        "num_envs": 64,
        "unroll_length": 32,
        "batch_size": 8,
        "num_minibatches": 8,
        "num_updates_per_batch": 4,
        "learning_rate": 1e-3,
        "discounting": 0.99,
        "gae_lambda": 0.95,
        "entropy_cost": 1e-4,
        "clipping_epsilon": 0.2,
    },
}
REWARD_SCALING = {"reacher": 5, "inverted_double_pendulum": 10}
PUBLISHED: dict[str, dict[str, Any]] = {
    "reacher": {
        "num_envs": 2048,
        "unroll_length": 50,
        "batch_size": 256,
        "num_minibatches": 32,
        "num_updates_per_batch": 8,
        "learning_rate": 3e-4,
        "discounting": 0.95,
        "entropy_cost": 1e-3,
        "action_repeat": 4,
    },
    "inverted_double_pendulum": {
        "num_envs": 2048,
        "unroll_length": 5,
        "batch_size": 1024,
        "num_minibatches": 32,
        "num_updates_per_batch": 4,
        "learning_rate": 3e-4,
        "discounting": 0.97,
        "entropy_cost": 1e-2,
    },
}


def run(task: str, settings: dict[str, Any], steps: int, seed: int) -> tuple[float, int, float]:
    """Trains once: the last evaluation's return, the steps taken, the seconds."""
    with contextlib.redirect_stdout(io.StringIO()):
        import jax
        from brax import envs
        from brax.training.agents.ppo import train
    # Brax 0.14 calls a function that JAX has removed since.
    jax.device_put_replicated = lambda tree, devices: jax.tree.map(
        lambda leaf: jax.numpy.stack([leaf] * len(devices)), tree
    )

    last: dict[str, Any] = {}

    def progress(num_steps: int, metrics: Any) -> None:
        last.update(steps=num_steps, reward=float(metrics["eval/episode_reward"]))

    start = time.perf_counter()
    train.train(
        environment=envs.get_environment(task),
        num_timesteps=steps,
        num_evals=2,
        num_eval_envs=128,
        deterministic_eval=True,
        episode_length=1000,
        normalize_observations=True,
        reward_scaling=REWARD_SCALING[task],
        seed=seed,
        progress_fn=progress,
        **settings,
    )
    return last["reward"], last["steps"], time.perf_counter() - start


def main() -> None:
    """Prints a row for each run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=sorted(PUBLISHED))
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--settings", choices=("same", "published"), nargs="*", default=["same", "published"])
    options = parser.parse_args()
    for name in options.settings:
        settings = (SAME if name == "same" else PUBLISHED)[options.task]
        for seed in options.seeds:
            reward, steps, seconds = run(options.task, settings, options.steps, seed)
            print(
                f"| {options.task} | Brax PPO, {name} | {seed} | {reward:.1f} | {steps:,} | {seconds:.0f} |", flush=True
            )


if __name__ == "__main__":
    main()
