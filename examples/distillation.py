"""CartPole without velocities, taught by a network that sees them.

A teacher is trained where positions and velocities are to be seen. Then a recurrent student, which is shown the same
observations and uses the positions alone, learns to do what the teacher does: first the task, then to do with less.
Teacher and student may be made on different engines.

    python examples/distillation.py --total-steps 60000
    python examples/distillation.py --teacher-backend jax --student-backend torch
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import multippo as mp

NUM_POSITIONS, HIDDEN = 2, 32


def positions(obs: Any) -> Any:
    """Of the cart and of the pole; each is followed by its velocity."""
    return obs[..., ::2]


def make_student(num_actions: int, seed: int) -> Any:
    """A recurrent network that sees cart and pole, not how fast they move."""
    rngs = mp.Rngs(seed)
    layers = [
        mp.Filter(positions),
        mp.Normalizer(NUM_POSITIONS),
        mp.GRU(NUM_POSITIONS, HIDDEN, rngs),
    ]
    heads = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(HIDDEN, num_actions, rngs), mp.CategoricalSampler(rngs)]),
        value=mp.Dense(HIDDEN, 1, rngs),
    )
    return mp.Sequential([*layers, heads])


def report(metrics: dict[str, float]) -> None:
    reward = metrics["rollout/episode_reward/mean"]
    if not math.isnan(reward):  # no episode has ended
        divergence = f", KL from the teacher {metrics['kl/teacher']:.3f}" if "kl/teacher" in metrics else ""
        print(f"{int(metrics['step']):8d} steps: {reward:6.1f} steps in an episode{divergence}")


def train(
    total_steps: int, teacher_backend: str, student_backend: str, seed: int = 0, rollout_length: int = 128
) -> tuple[Any, Any, Any]:
    """Trains both; teacher, student, and the result of the distillation."""
    env = mp.make_env("CartPole-v1", num_envs=8)
    with mp.use_backend(teacher_backend):
        teacher = mp.make_mlp_actor_critic(env.observation_space, env.action_space, rngs=mp.Rngs(seed))
    ppo = mp.PPOConfig(total_steps=total_steps, rollout_length=rollout_length)
    mp.train_ppo(env, teacher, mp.TrainConfig(ppo=ppo, seed=seed), log_fn=report)
    with mp.use_backend(student_backend):
        student = make_student(int(env.action_space.n), seed + 1)
    distillation = mp.DistillationConfig(
        loss="kl", total_steps=total_steps, rollout_length=rollout_length, learning_rate=3e-3
    )
    config = mp.DistillationTrainConfig(distillation=distillation, seed=seed)
    result = mp.train_distillation(env, teacher, student, config, log_fn=report)
    env.close()
    return teacher, student, result


def main() -> None:
    """Reads the command line, trains both, and plays."""
    parser = argparse.ArgumentParser(description="A student that sees less learns from its teacher")
    parser.add_argument("--total-steps", type=int, default=60_000)
    parser.add_argument("--teacher-backend", default=mp.get_backend())
    parser.add_argument("--student-backend", default=mp.get_backend())
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    teacher, student, _ = train(args.total_steps, args.teacher_backend, args.student_backend, args.seed)
    for name, network in (("teacher", teacher), ("student", student)):
        found = mp.eval_rollout("CartPole-v1", network, num_episodes=8)
        print(f"{name}: {found['eval/episode_reward/mean']:.1f} steps in an episode")


if __name__ == "__main__":
    main()
