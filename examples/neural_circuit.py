"""A pendulum whose speed is hidden and whose senses are late, by a network of every kind of memory.

What is seen goes through an encoder and a running normaliser and arrives one step late (``Delay``); an LSTM and a
graph with a feedback loop (``PopulationGraph``) make a state of it, and a smooth noisy code
(``AR1VariationalBottleneck``) is all that the policy is told. The critic sees the state itself. Replay repeats each
rollout, noise included: ``ratio/first_max_dev`` stays 0 up to rounding.

    python examples/neural_circuit.py --total-steps 600000
    MULTIPPO_BACKEND=torch python examples/neural_circuit.py --seed 1
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import multippo as mp

ENCODED, HIDDEN, LOOP, CODE = 32, 64, 16, 8


def make_graph(rngs: mp.Rngs) -> mp.PopulationGraph:
    """Two populations that tell each other what they did one step and two steps ago."""
    graph = mp.PopulationGraph(rngs)
    graph.add_input("core", HIDDEN)
    graph.add_population("cortex", HIDDEN, activation="tanh")
    graph.add_population("loop", LOOP, activation="tanh")
    graph.connect("core", "cortex")
    graph.connect("cortex", "loop", delay=1)
    graph.connect("loop", "cortex", delay=2)
    graph.add_output("cortex", source="cortex")
    graph.finalize()
    return graph


def make_network(env: Any, seed: int) -> Any:
    """The whole network, for an environment with arrays of one axis for observation and action."""
    rngs = mp.Rngs(seed)
    seen, moved = math.prod(env.observation_space.shape), math.prod(env.action_space.shape)
    bottleneck = mp.AR1VariationalBottleneck(CODE, rngs, kl_weight=1e-4, ar1_weight=1e-3)
    action = mp.Sequential(
        [
            mp.Dense(HIDDEN, 2 * CODE, rngs),
            bottleneck,
            mp.Dense(CODE, 2 * moved, rngs),
            mp.NormalTanhSampler(rngs, entropy_weight=0.0, min_std=0.1),
        ]
    )
    value = mp.Sequential([mp.Dense(HIDDEN, 64, rngs, activation="tanh"), mp.Dense(64, 1, rngs)])
    return mp.Sequential(
        [
            mp.Dense(seen, ENCODED, rngs, activation="tanh"),
            mp.Normalizer(ENCODED),
            mp.Delay(np.zeros(ENCODED), 1),
            mp.LSTM(ENCODED, HIDDEN, rngs),
            make_graph(rngs),
            mp.Filter("cortex"),
            mp.PPOAdapter(action=action, value=value),
        ]
    )


def train(
    total_steps: int, seed: int = 0, num_envs: int = 16, rollout_length: int = 200
) -> tuple[Any, list[dict[str, float]], Any]:
    """Trains, and returns the network, every iteration's metrics and the last evaluation."""
    env, eval_env = (mp.make_env("multippo/PendulumNoVel-v0", num_envs=count) for count in (num_envs, 20))
    network = make_network(env, seed)
    config = mp.TrainConfig(
        ppo=mp.PPOConfig(
            total_steps=total_steps,
            num_envs=num_envs,
            rollout_length=rollout_length,
            num_minibatches=min(8, num_envs),
            num_epochs=6,
            sequence_length=min(50, rollout_length),
            learning_rate=1e-3,
            discounting_factor=0.95,
            target_kl=0.03,
        ),
        eval=mp.EvalConfig(enabled=True, num_episodes=20),
        seed=seed,
    )
    logged: list[dict[str, float]] = []

    def log(metrics: dict[str, float]) -> None:
        if "ratio/first_max_dev" not in metrics:  # an evaluation, or the time of compilation
            return
        logged.append(metrics)
        reward, apart = metrics["rollout/episode_reward/mean"], metrics["ratio/first_max_dev"]
        if not math.isnan(reward):  # no episode has ended
            print(f"{int(metrics['step']):8d} steps: return {reward:8.1f}, first ratio {apart:.1e} from 1")

    result = mp.train_ppo(env, network, config, log_fn=log, eval_env=eval_env)
    return network, logged, result


def main() -> None:
    """Reads the command line and trains."""
    parser = argparse.ArgumentParser(description="Pendulum without velocities, by every kind of memory")
    parser.add_argument("--total-steps", type=int, default=600_000)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    network, logged, result = train(args.total_steps, args.seed)
    print(mp.summary(network))
    print(f"return of 20 episodes: {result.eval_history[-1]['eval/episode_reward/mean']:.1f}")
    print(f"worst first ratio - 1: {max(metrics['ratio/first_max_dev'] for metrics in logged):.1e}")


if __name__ == "__main__":
    main()
