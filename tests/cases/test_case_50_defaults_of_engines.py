"""One configuration is one computation: no default of a framework decides anything.

Seen in araffin/sbx#55, DLR-RM/stable-baselines3#1028.
"""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Goal


def make_network() -> Any:
    front = [mp.Normalizer(1), mp.Dense(1, 6, mp.Rngs(3), "tanh"), mp.LayerNorm(6)]
    network = mp.Sequential([*front, support.actor_critic(6, "NormalTanhSampler", parameters=2)])
    values = support.fill_randomly(network, scale=0.4)
    assert all(np.abs(value).min() > 0 for name, value in values.items() if "bias" in name)
    return network


def one_iteration(name: str) -> tuple[dict[str, np.ndarray], training.Run, Any]:
    with mp.use_backend(name):
        network = make_network()
        run = training.train(
            Goal(4),
            network,
            iterations=1,
            rollout_length=8,
            num_epochs=4,
            num_minibatches=4,
            learning_rate=0.01,
            gradient_clipping=0.1,
            clip_range=0.02,
            value_clip_range=0.05,
            weight_decay=0.01,
        )
        return mp.to_portable(network), run, training.portable_moments(network, run.state)


@pytest.mark.nightly
def test_one_iteration_is_the_same():
    (weights, run, moments), (others, other_run, other_moments) = (one_iteration(name) for name in support.ENGINES)
    support.assert_trees_close(weights, others, 1e-5)
    support.assert_trees_close(moments[:2], other_moments[:2], 1e-5)
    assert moments[2] == other_moments[2] == 16
    line, other = run.logs[0], other_run.logs[0]
    names = [name for name in line if not name.startswith(("time/", "throughput/"))]
    assert {"losses/actor", "kl/approx", "gradient/norm", "learning_rate", "ratio/last_max_dev"} <= {*names}
    for name in names:
        np.testing.assert_allclose(line[name], other[name], rtol=1e-4, atol=1e-5, err_msg=name)
    # The clips were at work.
    assert line["gradient/norm"] > 0.1
    assert 0 < line["ratio/clip_fraction"] < 1


def test_initial_weights_have_the_same_statistics(engine: Any):
    network = mp.make_mlp_actor_critic(12, 3, (64, 64), (64, 64), mp.Rngs(0), normalize_obs=False)
    values = mp.to_portable(network)
    kernels = {name: value for name, value in values.items() if name.endswith("kernel")}
    assert len(kernels) == 6
    for name, kernel in kernels.items():
        last = min(kernel.shape) <= 6 and kernel.shape[1] != 64
        gain = (0.01 if name.startswith("action") else 1.0) if last else np.sqrt(2)
        # Orthogonal along the shorter side: kernel times its transpose is gain**2 times the identity.
        short = kernel if kernel.shape[0] <= kernel.shape[1] else kernel.T
        np.testing.assert_allclose(short @ short.T, gain**2 * np.eye(len(short)), atol=1e-4, err_msg=name)
        assert abs(kernel.mean()) < 4 * gain / np.sqrt(kernel.size), name
    for name, value in values.items():
        if name.endswith("bias"):
            assert not value.any(), name
    with mp.use_backend("numpy"):
        others = mp.to_portable(mp.make_mlp_actor_critic(12, 3, (64, 64), (64, 64), mp.Rngs(0), normalize_obs=False))
    support.assert_trees_close(values, others, 1e-6)
