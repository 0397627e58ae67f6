"""Noise inside the network is the same in replay as it was in the rollout.

Seen in huggingface/trl#4 and #454, joschu/modular_rl#26, CarperAI/trlx#107.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from multippo.conformance.plan import Evidence, make_plan

import multippo as mp
from multippo.testing import Clock, NoisyNet

LENGTH = 3


class Dropout(mp.StatefulModule):
    """Leaves out every other feature by chance; the mask is what replay needs, so it emits it."""

    def __init__(self, rngs: mp.Rngs) -> None:
        self.base_key = mp.Variable(rngs.key())

    def initialize_state(self, batch_size: int) -> Any:
        return self.random.split(self.base_key[...], batch_size)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        keys = self.random.split(state, 2)
        mask = rollout_extras
        if mask is None:
            mask = self.xp.astype(self.random.uniform(keys[:, 0], (x.shape[-1],)) < 0.5, x.dtype)
        return mp.StatefulModuleOutput(keys[:, 1], 2 * mask * x, rollout_extras=mask)


def dropout_net(seed: int = 0) -> Any:
    front = [mp.Dense(LENGTH + 1, 4, mp.Rngs(seed), "tanh"), Dropout(mp.Rngs(seed + 1))]
    network = mp.Sequential([*front, support.actor_critic(4, seed=seed)])
    support.fill_randomly(network)
    return network


def noisy_net(seed: int = 0) -> Any:
    return NoisyNet(LENGTH + 1, 2, mp.Rngs(seed))


NETWORKS = {"noise from keys in the carry": noisy_net, "dropout that emits its mask": dropout_net}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_every_step_is_repeated(engine: Any, make: Any, autoreset: str):
    stored, found = support.rolled_and_replayed(Clock([2, 3], "truncated", 2, autoreset), make(), 6)
    for name in ("loglikelihoods", "value_estimates"):
        got, expected = getattr(found, name), getattr(stored.network_output, name)
        np.testing.assert_allclose(got[stored.valid], expected[stored.valid], atol=1e-6, err_msg=name)
    # There is noise: the same observation is not valued alike twice.
    seen = stored.network_output.value_estimates[stored.obs[..., 0] == 1]
    assert np.ptp(seen) > 0.1


@pytest.mark.parametrize(
    ("engine", "make", "minibatches"),
    [("torch", make, count) for make in NETWORKS.values() for count in (1, 4)]
    + [("jax", noisy_net, 4), ("jax", dropout_net, 1)],
    indirect=["engine"],
)
@pytest.mark.nightly_if("jax")
def test_without_learning_no_ratio_ever_moves(engine: Any, make: Any, minibatches: int, tmp_path: Path):
    options = {"learning_rate": 0.0, "num_epochs": 3, "num_minibatches": minibatches}
    network, again = make(), make(1)
    run = training.train(Clock(LENGTH, "truncated", 4), network, iterations=2, **options)
    mp.save_checkpoint(tmp_path / "saved", run.state, network)
    state = mp.load_checkpoint(tmp_path / "saved", again)
    rest = training.train(Clock(LENGTH, "truncated", 4), again, iterations=3, initial_state=state, **options)
    assert rest.column("iteration") == [3]
    for name in ("ratio/first_max_dev", "ratio/last_max_dev", "kl/approx", "ratio/clip_fraction"):
        assert max(run.column(name) + rest.column(name)) <= (1e-5 if name.endswith("dev") else 1e-7), name


def test_the_first_minibatch_of_a_learning_run_starts_at_ratio_one(torch_engine: Any):
    for make in NETWORKS.values():
        run = training.train(Clock(LENGTH, "truncated", 4), make(), iterations=3, learning_rate=0.05)
        assert max(run.column("ratio/first_max_dev")) <= 1e-6
        assert min(run.column("ratio/last_max_dev")) > 1e-3  # it does learn


@pytest.mark.parametrize("name", ["draws on the host", "draws afresh in replay"])
def test_the_conformance_suite_reports_a_layer_that_draws_afresh(torch_engine: Any, name: str):
    cases = [case for case in make_plan(["torch"], (3,), ("float32",)) if case.specimen.name == name]
    assert cases
    evidence = Evidence()
    for case in cases:
        result = case.run(evidence)
        assert result.passed, result.detail
