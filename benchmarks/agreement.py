"""Draws one seed's run on both engines: what it learns, and how far the parameters are apart after each iteration.

    python benchmarks/agreement.py docs/images/agreement.png

Every run is done twice, in single and in double precision, with the command line's default network. Takes some minutes.
"""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np

import multippo as mp
from multippo.networks.weights.portable import portable_split

matplotlib.use("Agg")
import matplotlib.pyplot as plt

ENGINES = ("jax", "torch")
PRECISIONS = ("float32", "float64")


@dataclasses.dataclass(frozen=True)
class Task:
    """What is trained."""

    env_id: str
    num_envs: int
    ppo: dict[str, Any]


TASKS = (
    Task("CartPole-v1", 8, {"total_steps": 50_000}),
    Task(
        "Pendulum-v1",
        4,
        {
            "total_steps": 100_000,
            "rollout_length": 256,
            "num_minibatches": 16,
            "learning_rate": 1e-3,
            "discounting_factor": 0.95,
        },
    ),
)


@dataclasses.dataclass
class Curve:
    """One run, by iteration.

    Attributes:
        steps: Environment steps so far.
        returns: Mean return of the episodes that ended in the iteration; NaN if none did.
        weights: All parameters and statistics after it, in one vector.
    """

    steps: list[int] = dataclasses.field(default_factory=list)
    returns: list[float] = dataclasses.field(default_factory=list)
    weights: list[np.ndarray] = dataclasses.field(default_factory=list)


def train(task: Task, backend: str, precision: str) -> Curve:
    """The run of seed 0."""
    curve = Curve()
    with mp.use_backend(backend), mp.precision(precision):
        env = mp.make_env(task.env_id, num_envs=task.num_envs)
        network = mp.make_mlp_actor_critic(env.observation_space, env.action_space, rngs=mp.Rngs(0))

        def log(metrics: dict[str, float]) -> None:
            if "rollout/episode_reward/mean" in metrics:
                curve.steps.append(int(metrics["step"]))
                curve.returns.append(metrics["rollout/episode_reward/mean"])

        def keep(state: mp.TrainingState, step: int) -> None:
            del step
            arrays = portable_split(network, state.params, state.variables)
            numbers = [value.ravel() for value in arrays.values() if value.dtype.kind == "f"]
            curve.weights.append(np.concatenate(numbers).astype(np.float64))

        ppo = mp.PPOConfig(num_envs=task.num_envs, **task.ppo)
        config = mp.TrainConfig(ppo=ppo, checkpoint_every_steps=1)  # after every iteration
        mp.train_ppo(env, network, config, log_fn=log, checkpoint_fn=keep)
        env.close()
    return curve


def distances(one: Curve, other: Curve) -> np.ndarray:
    """Largest distance of a number after each iteration, in proportion to the number or to 1 if that is more."""
    pairs = zip(one.weights, other.weights, strict=True)
    return np.asarray([np.max(np.abs(a - b) / np.maximum(1.0, np.maximum(np.abs(a), np.abs(b)))) for a, b in pairs])


def main() -> None:
    """Trains, prints the numbers and draws."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("picture", type=Path)
    picture = parser.parse_args().picture
    figure, axes = plt.subplots(2, len(TASKS), figsize=(10, 6), sharex="col", layout="constrained")
    for column, task in enumerate(TASKS):
        runs = {(name, kind): train(task, name, kind) for kind in PRECISIONS for name in ENGINES}
        above, below = axes[0][column], axes[1][column]
        for name, style in zip(ENGINES, ("-", "--"), strict=True):
            curve = runs[name, "float32"]
            above.plot(curve.steps, curve.returns, style, label=f"{name}, float32")
        above.set_title(f"{task.env_id}, seed 0")
        above.set_ylabel("return of an episode")
        for kind in PRECISIONS:
            apart = distances(runs["jax", kind], runs["torch", kind])
            below.semilogy(runs["jax", kind].steps, np.maximum(apart, 1e-17), label=kind)
            print(
                f"{task.env_id} {kind}: first iteration {apart[0]:.1e}, 20th {apart[19]:.1e}, last {apart[-1]:.1e}; "
                f"last returns {[round(runs[name, kind].returns[-1], 1) for name in ENGINES]}"
            )
        below.set_xlabel("environment steps")
        below.set_ylabel("largest distance of a parameter")
        for axis in (above, below):
            axis.legend()
            axis.grid(alpha=0.3)
    picture.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
