"""A run owns its modes: whatever the process has switched, the run is the one without, on both engines.

Seen in huggingface/transformers#13257, Kostis-S-Z/exploring_meta#16, google/brax#501.
"""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import training

import multippo as mp
from multippo.testing import Clock

SIZES: dict[str, Any] = {"iterations": 2, "num_minibatches": 1, "num_epochs": 1, "target_kl": 1.0}


class Switching(Clock):
    """Turns torch's gradients off when it is reset, as a constructor or an imported package might."""

    def reset(self, key: Any) -> Any:
        import torch

        torch.set_grad_enabled(False)
        return super().reset(key)


def make(env: Any) -> Any:
    if mp.get_backend() == "jax":  # where a recurrent one compiles for longer
        return mp.make_mlp_actor_critic(env.observation_space, env.action_space, [4], [4], rngs=mp.Rngs(0))
    return mp.make_recurrent_actor_critic(env.observation_space, env.action_space, 4, rngs=mp.Rngs(0))


def trained(env: Any, **config: Any) -> tuple[dict[str, np.ndarray], Any]:
    network = make(env)
    before = mp.to_portable(network)
    run = training.train(env, network, **SIZES, **config)
    assert run.column("gradient/norm")[0] > 0
    after = mp.to_portable(network)
    assert any((after[name] != before[name]).any() for name in after if name.endswith("kernel"))
    return after, run


def assert_equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> None:
    for name in a:
        np.testing.assert_array_equal(a[name], b[name], err_msg=name)


@contextlib.contextmanager
def switched(switch: Callable[[Any], Any], value: Any, back: Any) -> Iterator[None]:
    switch(value)
    try:
        yield
    finally:
        switch(back)


def modes() -> dict[str, Callable[[], Any]]:
    import torch

    return {
        "no_grad": torch.no_grad,
        "inference_mode": torch.inference_mode,
        "set_grad_enabled": lambda: switched(torch.set_grad_enabled, False, True),
        "autocast": lambda: torch.autocast("cpu", dtype=torch.bfloat16),
        "default_dtype": lambda: switched(torch.set_default_dtype, torch.float64, torch.float32),
        "default_device": lambda: switched(torch.set_default_device, "meta", None),
    }


@pytest.fixture(scope="module")
def on_torch() -> dict[str, np.ndarray]:
    with mp.use_backend("torch"):
        return trained(Clock(2, num_envs=2))[0]


@pytest.mark.parametrize("mode", modes())
def test_torch_in_every_mode(mode: str, on_torch: Any):
    import torch

    def now() -> Any:
        kinds = torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.is_autocast_enabled("cpu")
        return *kinds, torch.get_default_dtype(), torch.get_default_device()

    env = Clock(2, num_envs=2)
    with mp.use_backend("torch"):
        network = make(env)
        with modes()[mode]():
            before = now()
            training.train(env, network, **SIZES)
            assert now() == before
        assert_equal(mp.to_portable(network), on_torch)


def test_a_network_made_in_inference_mode_trains(on_torch: Any):
    import torch

    env = Clock(2, num_envs=2)
    with mp.use_backend("torch"):
        with torch.inference_mode():
            network = make(env)
        training.train(env, network, **SIZES)
        assert_equal(mp.to_portable(network), on_torch)


def test_torch_with_gradients_turned_off_by_an_environment_or_a_callback(on_torch: Any):
    import torch

    with mp.use_backend("torch"):
        after, _ = trained(Switching(2, num_envs=2), on_log=lambda metrics: torch.set_grad_enabled(False))
        assert torch.is_grad_enabled()
    assert_equal(after, on_torch)


@pytest.mark.nightly
def test_jax_with_every_flag_that_looks_for_faults():
    import jax

    with mp.use_backend("jax"):
        without, run = trained(Clock(2, num_envs=2))
        assert np.isnan(run.column("kl/stop")).all()
        with (
            jax.debug_nans(True),
            jax.debug_infs(True),
            jax.enable_checks(True),
            jax.checking_leaks(),
            jax.numpy_rank_promotion("raise"),
            jax.numpy_dtype_promotion("strict"),
        ):
            within, _ = trained(Clock(2, num_envs=2))
    assert_equal(within, without)


class Cut(mp.StatefulModule):
    """A network of which no parameter is in the loss."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> Any:
        out = self.inner(state, x, rollout_extras)
        return out.replace(output=self.engine.stop_gradient(out.output), regularization_loss=0.0)

    def initialize_state(self, batch_size: int) -> Any:
        return self.inner.initialize_state(batch_size)


@pytest.mark.parametrize("cut", [False, True])
def test_a_first_update_without_any_gradient_is_said_once(cut: bool, caplog: Any):
    env = Clock(2, num_envs=2)
    with mp.use_backend("torch"):
        network = mp.make_mlp_actor_critic(env.observation_space, env.action_space, rngs=mp.Rngs(0))
        with caplog.at_level(logging.WARNING, "multippo"):
            training.train(env, Cut(network) if cut else network, iterations=2)
    said = [record.getMessage() for record in caplog.records]
    assert ["exactly zero" in text and "detach" in text for text in said] == [True] * cut
