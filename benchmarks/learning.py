"""Runs the learning benchmark through the command line and prints a table for RESULTS.md.

    python benchmarks/learning.py                       everything (several hours on two cores)
    python benchmarks/learning.py cartpole pendulum     some tasks
    python benchmarks/learning.py --backend jax --seeds 0

Every run is ``multippo train`` in a process of its own; the numbers come from the run's ``metrics.jsonl``.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile
import time


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
    """One row of the benchmark."""

    arguments: tuple[str, ...]
    goal: float
    at_least: bool = True
    seeds: tuple[int, ...] = (0, 1)


PENDULUM = (
    "Pendulum-v1",
    "--gae-lambda=0.95",
    "--total-steps=100000",
    "--num-envs=4",
    "--rollout-length=256",
    "--num-minibatches=16",
    "--learning-rate=1e-3",
    "--discounting-factor=0.95",
)
PENDULUM_NOVEL_LSTM = (
    "multippo/PendulumNoVel-v0",
    "--gae-lambda=0.95",
    "--network=lstm",
    "--total-steps=600000",
    "--num-envs=16",
    "--rollout-length=200",
    "--num-minibatches=8",
    "--num-epochs=6",
    "--learning-rate=1e-3",
    "--discounting-factor=0.95",
    "--target-kl=0.03",
)
INVERTED_PENDULUM = (
    "brax/inverted_pendulum",
    "--gae-lambda=0.95",
    "--total-steps=300000",
    "--num-envs=64",
    "--rollout-length=32",
    "--num-epochs=4",
    "--num-minibatches=8",
    "--learning-rate=1e-3",
)
BRAX = ("--total-steps=1000000", *(flag for flag in INVERTED_PENDULUM[1:] if not flag.startswith("--total-steps")))
REACHER = (
    "brax/reacher",
    "--gae-lambda=0.95",
    "--total-steps=1000000",
    "--num-envs=64",
    # All episodes are as long as one another and begin at once: a short rollout would see one part of them only.
    "--rollout-length=125",
    "--num-epochs=8",
    "--num-minibatches=32",
    "--learning-rate=1e-3",
    "--discounting-factor=0.95",
)
INVERTED_DOUBLE_PENDULUM = ("brax/inverted_double_pendulum", *BRAX)
ACROBOT = (
    "Acrobot-v1",
    "--gae-lambda=0.95",
    "--total-steps=300000",
    "--num-envs=16",
    "--rollout-length=128",
    "--num-epochs=4",
    "--num-minibatches=8",
)
LUNAR_LANDER = (
    "LunarLander-v3",
    "--total-steps=1000000",
    "--num-envs=16",
    "--rollout-length=256",
    "--num-epochs=4",
    "--num-minibatches=32",
    "--discounting-factor=0.999",
    "--gae-lambda=0.98",
    "--entropy-weight=0.01",
)
# As much data and as many gradient steps in an iteration as PPO usually takes on MuJoCo's tasks.
MUJOCO = (
    "--total-steps=1000000",
    "--num-envs=8",
    "--rollout-length=256",
    "--num-minibatches=32",
    "--num-epochs=10",
    "--learning-rate=3e-4",
)
HALF_CHEETAH = ("HalfCheetah-v5", *MUJOCO, "--discounting-factor=0.98", "--gae-lambda=0.92")
HOPPER = ("Hopper-v5", *MUJOCO, "--gae-lambda=0.95")

TASKS = {
    "cartpole": Task(arguments=("CartPole-v1",), goal=475, seeds=(0, 1, 2)),
    "cartpole-novel-lstm": Task(
        arguments=("multippo/CartPoleNoVel-v0", "--network=lstm", "--total-steps=200000", "--gae-lambda=0.95"), goal=475
    ),
    "cartpole-novel-mlp": Task(
        arguments=("multippo/CartPoleNoVel-v0", "--network=mlp", "--total-steps=200000", "--gae-lambda=0.95"),
        goal=300,
        at_least=False,
    ),
    "pendulum": Task(arguments=PENDULUM, goal=-170, seeds=(0, 1, 2)),
    "pendulum-novel-lstm": Task(arguments=PENDULUM_NOVEL_LSTM, goal=-220, seeds=(0, 1, 2)),
    "inverted-pendulum": Task(arguments=INVERTED_PENDULUM, goal=950),
    "acrobot": Task(arguments=ACROBOT, goal=-90, seeds=(0, 1, 2)),
    "lunar-lander": Task(arguments=LUNAR_LANDER, goal=240, seeds=(0, 1, 2)),
    "half-cheetah": Task(arguments=HALF_CHEETAH, goal=3000, seeds=(0, 1, 2)),
    "hopper": Task(arguments=HOPPER, goal=2300, seeds=(0, 1, 2)),
    # What Brax's own PPO reaches with these sizes and steps, by brax_ppo.py.
    "reacher": Task(arguments=REACHER, goal=-27.0, seeds=(0, 1, 2)),
    "inverted-double-pendulum": Task(arguments=INVERTED_DOUBLE_PENDULUM, goal=9356.3, seeds=(0, 1, 2)),
}


def run(task: Task, backend: str, seed: int, folder: pathlib.Path) -> dict[str, object]:
    """Trains once and reads the run's own record."""
    directory = folder / f"{backend}-{seed}"
    command = ["multippo", "train", *task.arguments, f"--seed={seed}", f"--backend={backend}", f"--run-dir={directory}"]
    program = str(pathlib.Path(sys.executable).with_name("multippo"))
    start = time.perf_counter()
    finished = subprocess.run([program, *command[1:]], capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - start
    if finished.returncode:
        raise RuntimeError(f"{' '.join(command)} exited with {finished.returncode}:\n{finished.stderr}")
    lines = [json.loads(line) for line in (directory / "metrics.jsonl").read_text().splitlines()]
    evaluated = [line for line in lines if line.get("eval/episode_reward/mean") is not None][-1]
    trained = [line for line in lines if "ratio/first_max_dev" in line]
    reward = evaluated["eval/episode_reward/mean"]
    return {
        "command": " ".join(command[:-1]),
        "return": reward,
        "reached": reward >= task.goal if task.at_least else reward < task.goal,
        "steps": trained[-1]["step"],
        "seconds": seconds,
        "compile": trained[-1]["time/compile_s"],
        "deviation": max(line["ratio/first_max_dev"] for line in trained),
    }


def main() -> None:
    """Runs the chosen tasks one after another and prints a Markdown table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", help=f"any of {', '.join(TASKS)}")
    parser.add_argument("--backend", action="append", help="jax or torch; both by default")
    parser.add_argument("--seeds", type=int, nargs="*", help="instead of each task's own")
    options = parser.parse_args()
    unknown = [name for name in options.tasks if name not in TASKS]
    if unknown:
        parser.error(f"unknown tasks {unknown}; expected any of {', '.join(TASKS)}")
    print("| task | command | return, 100 episodes | goal | steps | seconds (compiling) | worst first ratio - 1 |")
    print("|---|---|---|---|---|---|---|", flush=True)
    failed = 0
    for name in options.tasks or list(TASKS):
        task = TASKS[name]
        with tempfile.TemporaryDirectory() as folder:
            for backend in options.backend or ["jax", "torch"]:
                for seed in options.seeds or task.seeds:
                    row = run(task, backend, seed, pathlib.Path(folder))
                    sign = ">=" if task.at_least else "<"
                    failed += not row["reached"]
                    print(
                        f"| {name} | `{row['command']}` | {row['return']:.1f}{'' if row['reached'] else ' (missed)'} | "
                        f"{sign} {task.goal:g} | {row['steps']:,.0f} | {row['seconds']:.0f} ({row['compile']:.0f}) | "
                        f"{row['deviation']:.1e} |",
                        flush=True,
                    )
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
