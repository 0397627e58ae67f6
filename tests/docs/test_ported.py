"""Programs of nnx-ppo's tutorials, written for this library, do on both engines what the tutorials say they do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import ROOT, blocks, program

import multippo as mp
from multippo.testing import check_module

FOLDER = Path(__file__).parent / "ported"


def ported(name: str) -> Any:
    return program(f"tests/docs/ported/{name}.py")


def ones(engine, shape):
    return engine.asarray(np.ones(shape, np.float32))


def step(network, x):
    return network(network.initialize_state(5), x).output


@pytest.mark.nightly_if("jax")
def test_quickstart(engine, capsys):
    nets, result, history = ported("quickstart").run()
    # 256 steps in iterations of 4 x 20 are four, 320 steps; some in which an environment only reset itself.
    assert result.total_iterations == 4 and 256 < result.total_steps <= 320
    assert len(history) == len(result.eval_history) == len(capsys.readouterr().out.splitlines()) > 1
    assert all(1 <= reward <= 50 for _, reward in history)
    nets.eval()
    x = ones(engine, (3, 4))
    first, second = (nets(nets.initialize_state(3), x).output for _ in range(2))
    assert first.actions.tolist() == second.actions.tolist()


@pytest.mark.nightly_if("jax")
def test_composition(engine):
    programs = ported("composition")
    out = step(programs.by_hand(), ones(engine, (5, 8)))
    assert tuple(out.actions.shape) == (5, 2) and tuple(out.value_estimates.shape) == (5,)
    out = step(programs.shared_trunk(), {"proprio": ones(engine, (5, 12)), "goal": ones(engine, (5, 4))})
    assert tuple(out.actions.shape) == (5, 3) and tuple(out.value_estimates.shape) == (5,)
    out = step(programs.several_heads(), ones(engine, (5, 8)))
    assert {k: tuple(v.shape) for k, v in out.actions.items()} == {"arm": (5, 2), "leg": (5, 3)}
    assert {k: tuple(v.shape) for k, v in out.value_estimates.items()} == {"arm": (5,), "leg": (5,)}

    network = programs.privileged_critic()
    obs = {"proprio": ones(engine, (5, 6)), "goal": {"direction": ones(engine, (5, 3)), "dist": ones(engine, (5, 1))}}
    near = {**obs, "goal": {**obs["goal"], "dist": 0.0 * obs["goal"]["dist"]}}
    one, two = step(network, obs), step(network, near)
    np.testing.assert_array_equal(engine.to_numpy(one.actions), engine.to_numpy(two.actions))
    assert (engine.to_numpy(one.value_estimates) != engine.to_numpy(two.value_estimates)).all()


def test_graph(engine):
    network = ported("graph").network()
    out = step(network, {"x": ones(engine, (5, 8))})
    assert tuple(out.actions["action_params"].shape) == (5, 2) and tuple(out.value_estimates["value"].shape) == (5,)
    out = step(ported("graph").body(), {part: ones(engine, (5, 4)) for part in ("hand", "arm", "root")})
    assert tuple(out["torque"].shape) == (5, 2)


@pytest.mark.nightly_if("jax")
def test_custom_module(engine):
    programs = ported("custom_module")
    for cls in (programs.MovingAverage, programs.MovingAverageWithStats):
        assert check_module(cls(3, 2), np.zeros(3))
    module = programs.MovingAverageWithStats(1, 2)
    xs = engine.asarray(np.asarray([2.0, 4.0, 9.0], np.float32)[:, None, None])
    out = module.unroll(module.initialize_state(1), xs, engine.asarray(np.zeros((3, 1), bool)))
    # The buffer starts with zeros: 2/2, (2+4)/2, (4+9)/2.
    assert engine.to_numpy(out.output)[:, 0, 0].tolist() == [1.0, 3.0, 6.5]
    module.update_statistics(out.rollout_extras)
    assert float(module.mean[...][0]) == 5.0 and int(module.count[...]) == 3

    network = programs.network(4, 3, [8, 2], mp.Rngs(0))
    assert len([name for name in mp.to_portable(network) if name.endswith("kernel")]) == 2
    ports = mp.PPOAdapter(
        action=mp.Sequential([network, mp.CategoricalSampler(mp.Rngs(1))]), value=mp.Dense(4, 1, mp.Rngs(2))
    )
    config = mp.PPOConfig(num_envs=2, rollout_length=16, total_steps=32, num_epochs=1, num_minibatches=2)
    result = mp.train_ppo("CartPole-v1", ports, mp.TrainConfig(ppo=config))
    assert result.final_metrics["ratio/first_max_dev"] < 1e-5
    assert int(network[0].count[...]) == result.total_steps


DIFFS = [block for block in blocks(ROOT / "docs" / "coming_from" / "nnx_ppo.md") if block.language == "diff"]


@pytest.mark.parametrize("block", DIFFS, ids=[block.options for block in DIFFS])
def test_what_a_diff_adds_is_in_the_program(block):
    path = block.options.removeprefix('title="').removesuffix('"')
    program = {line.strip() for line in (ROOT / path).read_text("utf-8").splitlines()}
    shown = [line for line in block.code.splitlines() if not line.startswith("-")]
    assert len([line for line in shown if line.startswith("+")]) > 0
    missing = [line for line in shown if line[1:].strip() and line[1:].strip() not in program]
    assert missing == []


def test_every_program_has_a_diff():
    assert {Path(block.options.split('"')[1]).name for block in DIFFS} == {path.name for path in FOLDER.glob("*.py")}
