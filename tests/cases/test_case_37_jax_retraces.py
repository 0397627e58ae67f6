"""JAX traces in the first iteration alone, and no buffer is given away that somebody still holds.

Seen in energnn/energnn#75, google/flax#4336 and #4045, talmolab/track-mjx#192, liesel-devs/liesel#272.
"""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, FunctionalClock, TableNet

TRACES: list[int] = []


class Traced(TableNet):
    """Counts its traces in Python; two parameters start as one array, and the same module stands at two places."""

    def __init__(self) -> None:
        super().__init__([0.0] * 4)
        shared = self.engine.zeros((4,)) + 0.5
        self.values, self.more = mp.Param(shared), mp.Param(shared)
        self.one = self.other = mp.Dense(4, 1, mp.Rngs(0))

    def heads(self, memory: Any, x: Any) -> tuple[Any, Any, Any]:
        TRACES.append(1)
        memory, logits, value = super().heads(memory, x)
        twice = self.one((), x).output[..., 0] + self.other((), x).output[..., 0]
        return memory, logits, value + x @ self.more[...] + twice


def make_env(kind: str) -> Any:
    return Clock(3, "truncated", 2) if kind == "host" else mp.make_env(FunctionalClock(3, "truncated"), num_envs=2)


@pytest.mark.parametrize("kind", [pytest.param("functional", marks=pytest.mark.nightly), "host"])
def test_traces_and_buffers(jax_engine: Any, kind: str, tmp_path: Path):
    network, env = Traced(), make_env(kind)
    counts: list[int] = []
    config = {"checkpoint_every_steps": 8, "eval": mp.EvalConfig(enabled=True, every_steps=8, num_episodes=2)}
    kept: list[tuple[Any, dict[str, np.ndarray]]] = []

    def on_log(metrics: dict[str, float]) -> None:
        if "iteration" not in metrics:  # after an evaluation, the last thing of an iteration
            counts.append(len(TRACES))

    def train(**options: Any) -> training.Run:
        counts.clear()
        run = training.train(env, network, iterations=4, on_log=on_log, config=config, **options)
        assert counts
        assert len(set(counts)) == 1, "traced again after the first iteration"
        return run

    run = train()
    # A state kept from iteration k is read after k + 2: nobody has deleted it, and no later iteration wrote into it.
    steps = [int(state.optimizer_state[2]) for state, _ in run.checkpoints]
    assert steps == [4, 8, 12, 16]
    for state, step in run.checkpoints:
        mp.save_checkpoint(tmp_path / str(step), state, network)
        kept.append((state, mp.load_checkpoint(tmp_path / str(step)).weights()))
    for (_, before), (_, after) in itertools.pairwise(kept):
        assert np.abs(after["values"] - before["values"]).max() > 1e-4
    weights = mp.to_portable(network)
    np.testing.assert_array_equal(weights["values"], weights["more"])  # two parameters that moved alike
    assert sum(name.endswith("kernel") for name in weights) == 1  # one layer, trained once
    # The same call again in this process, and a resumed one.
    train()
    assert train(initial_state=run.checkpoints[1][0]).column("iteration") == [3, 4]
    support.assert_trees_close(mp.load_checkpoint(tmp_path / "16").weights(), kept[1][1], 0.0)
