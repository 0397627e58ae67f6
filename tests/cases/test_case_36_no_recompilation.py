"""A learning rate that changes every iteration compiles nothing again.

Seen in pytorch/pytorch#107076, #130467, #163093, tenstorrent/tt-blacksmith#733.
"""

from pathlib import Path
from typing import Any

import probing
import pytest
import support
import training

import multippo as mp

ITERATIONS = 20


def graphs() -> int:
    import torch

    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def make_network(seed: int) -> Any:
    network = mp.make_mlp_actor_critic(4, 2, (5,), (5,), mp.Rngs(seed), entropy_weight=0.01)
    support.fill_randomly(network, seed)
    return network


@pytest.mark.usefixtures("torch_engine", "without_code_generation")
@pytest.mark.parametrize("schedule", [pytest.param("linear", marks=pytest.mark.nightly), "adaptive_kl"])
@pytest.mark.nightly_if("adaptive_kl")
def test_frames_compiled_stay_the_same_after_the_second_iteration(schedule: str, tmp_path: Path):
    import torch

    breaks = len(torch._dynamo.utils.counters["graph_break"])
    counts: list[int] = []
    config = {"compile": "on", "eval": mp.EvalConfig(enabled=True, every_steps=5 * 8, num_episodes=2, num_envs=2)}
    options: dict[str, Any] = {"iterations": ITERATIONS, "lr_schedule": schedule, "learning_rate": 1e-3}
    options |= {"on_log": lambda _: counts.append(graphs())}
    start, network = graphs(), make_network(0)
    run = training.train(probing.Continuous(), network, config={**config, "checkpoint_every_steps": 10 * 8}, **options)
    lines = [index for index, line in enumerate(run.logs) if "losses/total" in line]
    first_eval = next(index for index, line in enumerate(run.logs) if "eval/episodes" in line)
    assert len(lines) == ITERATIONS
    assert start < counts[0]  # something was compiled
    # Only the first evaluation adds frames, those of its own actor.
    assert len({counts[index] for index in lines[1:] if index < first_eval}) == 1
    assert len(set(counts[first_eval:])) == 1
    rates = run.column("learning_rate")
    assert len(set(rates)) == (ITERATIONS if schedule == "linear" else len(set(rates))) > 1

    mp.save_checkpoint(tmp_path / "half", run.checkpoints[0][0], network)
    counts.clear()
    again = make_network(1)
    state = mp.load_checkpoint(tmp_path / "half", again)
    rest = training.train(probing.Continuous(), again, config={"compile": "on"}, initial_state=state, **options)
    # The adaptive rate goes on from where it was; then it follows the new episodes.
    assert rest.column("learning_rate")[:1] == rates[10:11]
    assert len(counts) == 10
    assert len(set(counts[1:])) == 1
    assert len(torch._dynamo.utils.counters["graph_break"]) == breaks
