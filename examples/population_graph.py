"""CartPole without velocities, by a graph of populations with delays.

The environment shows where cart and pole are, not how fast they move. One population sees the positions of this step,
and others are told those of one and two steps ago by delayed connections; a small loop remembers what is longer ago.
``print`` shows which parts replay runs over all steps at once: all but the loop.

    python examples/population_graph.py --total-steps 100000
    MULTIPPO_BACKEND=torch python examples/population_graph.py --plot graph.png
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import multippo as mp

HIDDEN, MEMORY = 64, 16


def make_graph(num_features: int, num_actions: int, rngs: mp.Rngs) -> mp.PopulationGraph:
    """The part of the network that is a graph: from positions to the actions' logits and the value."""
    graph = mp.PopulationGraph(rngs)
    # The observation is one array, so the only input population sees all of it.
    graph.add_input("positions", num_features)
    graph.add_population("hidden", HIDDEN, activation="tanh")
    graph.add_population("memory", MEMORY, activation="tanh")
    for delay in (0, 1, 2):
        graph.connect("positions", "hidden", delay=delay)
    graph.connect("positions", "memory")
    graph.connect("memory", "memory", delay=1)
    graph.connect("memory", "hidden")
    graph.add_output("logits", source="hidden", head=mp.Dense(HIDDEN, num_actions, rngs))
    graph.add_output("value", source="hidden", head=mp.Dense(HIDDEN, 1, rngs))
    graph.finalize()
    return graph


def make_network(num_features: int, num_actions: int, seed: int) -> Any:
    """The graph between a normaliser and what PPO needs."""
    rngs = mp.Rngs(seed)
    ports = mp.PPOAdapter(
        action=mp.Sequential([mp.Filter("logits"), mp.CategoricalSampler(rngs)]),
        value=mp.Filter("value"),
    )
    return mp.Sequential([mp.Normalizer(num_features), make_graph(num_features, num_actions, rngs), ports])


def train(
    total_steps: int, seed: int = 0, num_envs: int = 8, rollout_length: int = 128
) -> tuple[Any, dict[str, float]]:
    """Trains, and returns the network and the last iteration's metrics."""
    env = mp.make_env("multippo/CartPoleNoVel-v0", num_envs=num_envs)
    network = make_network(math.prod(env.observation_space.shape), int(env.action_space.n), seed)
    config = mp.PPOConfig(
        total_steps=total_steps, num_envs=num_envs, rollout_length=rollout_length, learning_rate=1e-3, num_minibatches=4
    )
    logged: list[dict[str, float]] = []

    def log(metrics: dict[str, float]) -> None:
        logged.append(metrics)
        reward = metrics["rollout/episode_reward/mean"]
        if not math.isnan(reward):  # no episode has ended
            print(f"{int(metrics['step']):8d} steps: {reward:6.1f} steps in an episode")

    mp.train_ppo(env, network, mp.TrainConfig(ppo=config, seed=seed), log_fn=log)
    return network, logged[-1]


def main() -> None:
    """Reads the command line, trains, and draws the graph if asked to."""
    parser = argparse.ArgumentParser(description="CartPole without velocities, by a graph of populations")
    parser.add_argument("--total-steps", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot", metavar="FILE", help="where to draw the graph")
    args = parser.parse_args()
    network, _ = train(args.total_steps, args.seed)
    graph = network[1]
    print(graph)
    if args.plot:
        graph.plot().figure.savefig(args.plot)


if __name__ == "__main__":
    main()
