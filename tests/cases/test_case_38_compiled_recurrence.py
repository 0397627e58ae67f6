"""Compiling a network with a recurrent layer changes no number, leaves no step eager, and shares no output buffer.

Seen in pytorch/pytorch#141184, #158007, #170604, #138949, pytorch/tensordict#1441.
"""

import functools
from typing import Any

import numpy as np
import probing
import pytest
import support
import training

import multippo as mp
from multippo.programmes import clear_programmes
from multippo.testing import Spy

CELLS = ("LSTM", "GRU")


def run(cell: str, mode: str, **options: Any) -> tuple[Any, training.Run, Spy]:
    network = mp.make_recurrent_actor_critic(
        4, 2, 5, mp.Rngs(0), cell=cell.lower(), encoder_sizes=(4,), shared=True, entropy_weight=0.01
    )
    support.fill_randomly(network)
    env = Spy(probing.Continuous())
    done = training.train(
        env, network, rollout_length=6, learning_rate=1e-3, config={"compile": mode}, **{"iterations": 3, **options}
    )
    return network, done, env


@functools.cache
def eager(cell: str) -> tuple[dict[str, np.ndarray], training.Run, Spy]:
    network, done, env = run(cell, "off")
    return mp.to_portable(network), done, env


def check(cell: str, mode: str = "on") -> None:
    import torch

    clear_programmes()  # else an equal network's are taken
    counters = torch._dynamo.utils.counters
    before, breaks = counters["stats"]["unique_graphs"], sum(counters["graph_break"].values())
    network, done, env = run(cell, mode)
    graphs = counters["stats"]["unique_graphs"] - before
    assert graphs == 1  # the loss, while the learning rate falls; in host environments acting is straight code
    assert sum(counters["graph_break"].values()) == breaks
    expected, reference, reference_env = eager(cell)
    # The same rollout, in the third iteration too: whoever acts has the new weights.
    np.testing.assert_allclose(np.stack(env.actions), np.stack(reference_env.actions), atol=1e-5)
    assert_distinct(np.stack(env.actions))  # what one step has put out is not overwritten by the next
    for name in ("losses/actor", "losses/critic", "losses/total", "kl/approx"):
        np.testing.assert_allclose(done.column(name), reference.column(name), rtol=0, atol=1e-5, err_msg=name)
    assert max(done.column("ratio/first_max_dev")) <= 1e-5
    support.assert_trees_close(mp.to_portable(network), expected, 1e-5)


@pytest.mark.usefixtures("torch_engine", "without_code_generation")
@pytest.mark.parametrize("cell", ["LSTM", pytest.param("GRU", marks=pytest.mark.nightly)])
def test_traced_but_not_generated(cell: str):
    check(cell)


@pytest.mark.nightly
@pytest.mark.parametrize("cell", CELLS)
def test_compiled(torch_engine: Any, cell: str):
    check(cell)


def assert_distinct(stored: Any) -> None:
    values = support.to_numpy(stored).reshape(len(stored), -1)
    for earlier in range(len(values)):
        for later in range(earlier):
            assert not np.array_equal(values[earlier], values[later]), (earlier, later)


def has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


@pytest.mark.skipif(not has_gpu(), reason="needs a GPU: only there are graphs of launches replayed into one buffer")
@pytest.mark.parametrize("cell", CELLS)
def test_with_cuda_graphs(torch_engine: Any, cell: str):
    check(cell, "reduce-overhead")
