"""Environment steps a second of training: networks, precisions, and ways to compile, on one engine and device.

Run as ``python benchmarks/throughput.py --backend torch --seconds 150``; ``gpu_check.sh`` does. Each case is trained
for a few iterations. The time of compiling is not in the rate. A row is printed as soon as it is measured, as Markdown,
so that what is cut off loses no more than one case. ``--tiny`` shows that it runs, and measures nothing worth knowing.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import sys
import time
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

import multippo as mp
from multippo.testing import HostEnv

HEADER = (
    "| engine | device | environment | network | precision | products | compile | steps/s | first ratio | compiling |",
    "|---|---|---|---|---|---|---|---|---|---|",
)


class Case(NamedTuple):
    """What is measured."""

    network: str
    precision: str
    matmul: str
    compile: str


class Table(HostEnv):
    """Shows rows of a table of random numbers, as fast as NumPy can copy them; episodes are cut after 100 steps."""

    def __init__(self, num_envs: int, features: int = 64, actions: int = 8) -> None:
        super().__init__(num_envs, "same_step")
        self.observation_space = spaces.Box(-np.inf, np.inf, (features,), np.float32)
        self.action_space = spaces.Box(-1, 1, (actions,), np.float32)
        self._rows = np.random.default_rng(0).normal(size=(64, num_envs, features)).astype(np.float32)
        self._time = np.zeros(num_envs, np.int64)
        self._next = 0

    def _begin(self, which: np.ndarray) -> None:
        self._time[which] = 0

    def _advance(self, action: Any, which: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        self._time += which
        self._next = (self._next + 1) % len(self._rows)
        return np.asarray(action)[:, 0], np.zeros(self.num_envs, bool), self._time >= 100

    def _observe(self) -> np.ndarray:
        return self._rows[self._next].copy()


class Enough(Exception):  # noqa: N818 - nothing went wrong
    """Ends a training run that has been measured."""


def cases(backend: str, on_gpu: bool) -> list[Case]:
    """The most telling first: time may run out."""
    ways = ["on", "reduce-overhead", "off"] if backend == "torch" else ["auto"]
    if backend == "torch" and not on_gpu:
        ways = ["off"]
    found = [Case(network, "float32", "highest", way) for way in ways for network in ("mlp", "lstm")]
    for precision, matmul in (("bfloat16", "highest"), ("float32", "high")):
        found += [Case(network, precision, matmul, ways[0]) for network in ("mlp", "lstm")]
    if backend == "torch" and on_gpu:
        found += [Case(network, "bfloat16", "highest", "reduce-overhead") for network in ("mlp", "lstm")]
    return found


def make_network(kind: str, env: Any, tiny: bool) -> Any:
    width = 8 if tiny else 256
    if kind == "mlp":
        return mp.make_mlp_actor_critic(
            env.observation_space, env.action_space, (width, width), (width, width), mp.Rngs(0)
        )
    return mp.make_recurrent_actor_critic(
        env.observation_space, env.action_space, width, mp.Rngs(0), cell=kind, encoder_sizes=(width,), shared=True
    )


def make_env(name: str, num_envs: int) -> Any:
    return Table(num_envs) if name == "table" else mp.make_env(name, num_envs=num_envs)


def measure(case: Case, env: Any, engine: Any, tiny: bool, seconds: float) -> tuple[float, float, float]:
    """Steps a second, the worst first ratio's distance from 1, and seconds of compiling."""
    rates: list[float] = []
    ratios: list[float] = []
    before, start = engine.compile_seconds(), time.perf_counter()

    def log(metrics: dict[str, float]) -> None:
        rates.append(metrics["throughput/train_sps"])
        ratios.append(metrics["ratio/first_max_dev"])
        # The first compile; CUDA graphs are recorded in the second and third.
        if len(rates) >= (2 if tiny else 12) or (len(rates) >= 5 and time.perf_counter() - start > seconds):
            raise Enough

    ppo = mp.PPOConfig(
        rollout_length=4 if tiny else 32,
        total_steps=10**9,
        num_epochs=1 if tiny else 4,
        num_minibatches=2 if tiny else 4,
        lr_schedule="constant",
    )
    with engine.precision(case.precision), engine.matmul_precision(case.matmul):
        network = make_network(case.network, env, tiny)
        with contextlib.suppress(Enough):
            mp.train_ppo(env, network, mp.TrainConfig(ppo=ppo, compile=case.compile), log_fn=log)
    settled = rates[len(rates) // 2 :]
    return statistics.median(settled), max(ratios), engine.compile_seconds() - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--backend", choices=["jax", "torch"], required=True)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--env", default="", help="an environment's id, or table; default: one that suits the engine")
    parser.add_argument("--num-envs", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=120.0, help="begin no further case after these")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--cases", type=int, default=0, help="the first so many alone")
    given = parser.parse_args()
    end = time.perf_counter() + given.seconds
    name = given.env or ("brax/inverted_pendulum" if given.backend == "jax" else "table")
    with mp.use_backend(given.backend, device=given.device) as engine:
        on_gpu = not engine.device_name().startswith("cpu")
        env = make_env(name, given.num_envs or (4 if given.tiny else 4096))
        print("\n".join(HEADER), flush=True)
        for case in cases(given.backend, on_gpu)[: given.cases or None]:
            if time.perf_counter() > end:
                print("time is up: further cases are left out", file=sys.stderr)
                break
            begin = [given.backend, engine.device_name(), f"{name} × {env.num_envs}", *case]
            try:
                rate, ratio, compiling = measure(case, env, engine, given.tiny, given.seconds / 12)
                result = [f"{rate:,.0f}", f"{ratio:.1e}", f"{compiling:.0f} s"]
            except Exception as error:  # the next case may do better
                result = [f"failed: {type(error).__name__}: {str(error).splitlines()[0][:100]}", "", ""]
            print("| " + " | ".join([*begin, *result]) + " |", flush=True)
        env.close()


if __name__ == "__main__":
    main()
