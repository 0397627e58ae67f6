"""Noise inside the network is the same in replay as it was in the rollout.

Seen in huggingface/trl#4 and #454, joschu/modular_rl#26, CarperAI/trlx#107.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import training
from multippo.conformance.plan import Evidence, make_plan
from multippo.conformance.specimens.mutants import MUTANTS

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
    rngs = mp.Rngs(seed)
    heads = mp.PPOAdapter(
        action=mp.Sequential([mp.Dense(4, 2, rngs), mp.CategoricalSampler(rngs)]), value=mp.Dense(4, 1, rngs)
    )
    network = mp.Sequential([mp.Dense(LENGTH + 1, 4, rngs, "tanh"), Dropout(rngs), heads])
    values = support.fill_randomly(network)
    assert np.abs(values["layers.0.bias"]).min() > 0
    return network


def noisy_net(seed: int = 0) -> Any:
    return NoisyNet(LENGTH + 1, 2, mp.Rngs(seed))


NETWORKS = {"noise from keys in the carry": noisy_net, "dropout that emits its mask": dropout_net}


@pytest.mark.parametrize("make", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
def test_every_step_is_repeated(engine: Any, make: Any, autoreset: str):
    env, network = Clock([2, 3], "truncated", 2, autoreset), make()
    state = network.initialize_state(2)
    _, _, transition = mp.unroll_env(env, env.reset(0), network, state, 6, mp.random.key(0))
    found = support.to_numpy(mp.replay(network, state, transition))
    stored = support.to_numpy(transition)
    for name in ("loglikelihoods", "value_estimates"):
        got, expected = getattr(found, name), getattr(stored.network_output, name)
        np.testing.assert_allclose(got[stored.valid], expected[stored.valid], atol=1e-6, err_msg=name)
    # There is noise: the same observation is not valued alike twice.
    seen = stored.network_output.value_estimates[stored.obs[..., 0] == 1]
    assert np.ptp(seen) > 0.1


@pytest.mark.parametrize(
    ("name", "make", "minibatches"),
    [("torch", make, count) for make in NETWORKS.values() for count in (1, 4)]
    # Each of these compiles for seconds.
    + [("jax", noisy_net, 4), ("jax", dropout_net, 1)],
)
@pytest.mark.nightly_if("jax")
def test_without_learning_no_ratio_ever_moves(name: str, make: Any, minibatches: int, tmp_path: Path):
    with mp.use_backend(name):
        check_ratios(make, minibatches, tmp_path)


def check_ratios(make: Any, minibatches: int, tmp_path: Path) -> None:
    options = {"learning_rate": 0.0, "num_epochs": 3, "num_minibatches": minibatches}

    def check(run: training.Run) -> None:
        for name in ("ratio/first_max_dev", "ratio/last_max_dev"):
            assert max(run.column(name)) <= 1e-6, name
        assert max(run.column("kl/approx")) <= 1e-9
        assert not any(run.column("ratio/clip_fraction"))

    network = make()
    run = training.train(Clock(LENGTH, "truncated", 4), network, iterations=2, **options)
    check(run)
    mp.save_checkpoint(tmp_path / "saved", run.state, network)
    again = make(1)
    state = mp.load_checkpoint(tmp_path / "saved", again)
    rest = training.train(Clock(LENGTH, "truncated", 4), again, iterations=3, initial_state=state, **options)
    assert rest.column("iteration") == [3]
    check(rest)


def test_the_first_minibatch_of_a_learning_run_starts_at_ratio_one(torch_engine: Any):
    for make in NETWORKS.values():
        run = training.train(Clock(LENGTH, "truncated", 4), make(), iterations=3, learning_rate=0.05)
        assert max(run.column("ratio/first_max_dev")) <= 1e-6
        assert min(run.column("ratio/last_max_dev")) > 1e-3  # it does learn


@pytest.mark.parametrize("name", ["draws on the host", "draws afresh in replay"])
def test_the_conformance_suite_reports_a_layer_that_draws_afresh(engine: Any, name: str):
    assert name in {mutant.specimen.name for mutant in MUTANTS}
    cases = [case for case in make_plan([engine.name], (3,), ("float32",)) if case.specimen.name == name]
    assert cases
    evidence = Evidence()
    for case in cases:
        result = case.run(evidence)
        assert result.passed, result.detail
