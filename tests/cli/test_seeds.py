"""Several seeds of one run: trained, resumed, evaluated and drawn together."""

import json
from pathlib import Path
from typing import Any

import pytest
import support
from short_runs import iterations, numbers, train

from multippo.backends.jax.engine import JaxEngine


def test_several_seeds_are_ordinary_runs_under_one_directory(command: Any):
    seeds = ("--seeds", 2, "--seed", 3, "--run-dir", "all", "--final-eval-episodes", 0)
    assert train(command, *seeds).code == 0
    assert [json.loads(Path(f"all/seed{seed}/config.json").read_text())["train"]["seed"] for seed in (3, 4)] == [3, 4]
    train(command, *seeds).assert_refused("holds a run already")
    again = command("train", "--resume", "--run-dir", "all", "--total-steps", 96, "--final-eval-episodes", 0)
    assert again.code == 0, again.err
    assert [iterations(Path(f"all/seed{seed}"))[-1] for seed in (3, 4)] == [3, 3]
    found = command("eval", "all", "--episodes", 1, "--json")
    assert [json.loads(line)["env"] for line in found.out.splitlines()] == ["CartPole-v1"] * 2
    assert command("plot", "all", "all/seed3", "--metric", "losses/total", "--output", "a.png").code == 0
    assert Path("a.png").read_bytes().startswith(b"\x89PNG")
    command("plot", "all", "--metric", "losses/totl").assert_refused("Did you mean 'losses/total'?")


def test_seeds_in_traced_environments_share_one_programme(command: Any, monkeypatch: pytest.MonkeyPatch):
    sizes: list[int] = []
    jit_together = JaxEngine.jit_together

    def counted(engine: JaxEngine, function: Any) -> Any:
        together = jit_together(engine, function)
        return lambda firsts, rests: (sizes.append(len(firsts)), together(firsts, rests))[1]

    monkeypatch.setattr(JaxEngine, "jit_together", counted)
    quick = ("--episode-length", 20, "--final-eval-episodes", 1)
    found = train(command, "--seeds", 2, "--run-dir", "all", *quick, env="brax/fast", backend="jax")
    assert found.code == 0, found.err
    assert sizes == [2, 2]  # in each of two iterations
    assert train(command, "--seed", 1, "--run-dir", "one", *quick, env="brax/fast", backend="jax").code == 0
    together, alone = numbers(Path("all/seed1")), numbers(Path("one"))
    support.assert_trees_close(together, alone, 1e-5)
    assert together != numbers(Path("all/seed0"))
    # One that has less to do is replaced by a copy of the other, so that nothing is compiled for one alone.
    assert command("train", "--resume", "--run-dir", "all/seed0", "--total-steps", 96).code == 0
    found = train(
        command,
        "--seeds",
        2,
        "--run-dir",
        "all",
        "--resume",
        "--total-steps",
        128,
        *quick,
        env="brax/fast",
        backend="jax",
    )
    assert found.code == 0, found.err
    assert sizes == [2] * 4
    assert [iterations(Path(f"all/seed{seed}"))[-1] for seed in (0, 1)] == [4, 4]
