"""A batch of B in the rollout and of T x B in replay give the same likelihoods, on a GPU with reduced products too.

Seen in jax-ml/jax#12008, #14022, typoverflow/flow-rl#12, pytorch/pytorch#67384.
"""

import json
from typing import Any

import numpy as np
import pytest
import support
from gymnasium import spaces

import multippo as mp
from multippo.testing import Clock

FEATURES, NUM_ENVS, STEPS = 64, 16, 12
STD = 0.05
TOLERANCE = {"cpu": 2e-4, "gpu": 2e-3}
"""Of a log-likelihood: an error of a mean counts 1 / STD times."""


class Numbers(Clock):
    """Shows random numbers."""

    def __init__(self) -> None:
        super().__init__(STEPS, num_envs=NUM_ENVS)
        self.observation_space = spaces.Box(-np.inf, np.inf, (FEATURES,), np.float32)
        self.action_space = spaces.Box(-1, 1, (8,), np.float32)

    def _observe(self) -> np.ndarray:
        return self._rng.normal(size=(NUM_ENVS, FEATURES)).astype(np.float32)


def make_network() -> Any:
    rngs = mp.Rngs(0)
    head = mp.Dense(64, 16, rngs)
    # softplus(s) + min_std = 0.05.
    bias = np.concatenate([np.linspace(-0.5, 0.5, 8), np.full(8, np.log(np.expm1(STD - 1e-3)))])
    kernel = np.concatenate([np.random.default_rng(0).normal(size=(64, 8)) / 8, np.zeros((64, 8))], axis=1)
    mp.load_portable(head, {"kernel": kernel, "bias": bias})
    sampler = mp.NormalTanhSampler(rngs)
    action = mp.Sequential([mp.Dense(FEATURES, 64, rngs, "tanh"), mp.Dense(64, 64, rngs, "tanh"), head, sampler])
    return mp.PPOAdapter(action=action, value=mp.Dense(FEATURES, 1, rngs))


def worst_deviation() -> float:
    stored, found = support.rolled_and_replayed(Numbers(), make_network(), STEPS)
    return float(np.abs(found.loglikelihoods - stored.network_output.loglikelihoods).max())


def test_on_the_processor(engine: Any):
    assert worst_deviation() <= TOLERANCE["cpu"]


def has_gpu(name: str) -> bool:
    if name == "torch":
        import torch

        return torch.cuda.is_available()
    import jax

    return jax.default_backend() == "gpu"


@pytest.mark.parametrize("name", support.ENGINES)
def test_on_a_gpu_with_default_settings(name: str):
    if not has_gpu(name):
        pytest.skip(f"{name} sees no GPU here: reduced products exist on GPUs alone")
    with mp.use_backend(name):
        assert worst_deviation() <= TOLERANCE["gpu"]


@pytest.mark.nightly
@pytest.mark.parametrize("name", support.ENGINES)
def test_the_conformance_suite_on_a_gpu_passes_and_restores_the_settings(name: str, capsys: pytest.CaptureFixture[str]):
    if not has_gpu(name):
        pytest.skip(f"{name} sees no GPU here: reduced products exist on GPUs alone")
    from multippo.cli import main

    def precision() -> Any:
        if name == "torch":
            import torch

            return torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
        import jax

        return jax.config.jax_default_matmul_precision

    before = precision()
    assert main(["conformance", "--backend", name, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)
    assert precision() == before
