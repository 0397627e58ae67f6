"""Where an engine's arrays lie: names of devices, what is refused, and that nothing strays to another device."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import support
import torch
import zoo

import multippo as mp
from multippo.algorithms.losses import ppo_loss
from multippo.algorithms.types import Sequences
from multippo.backends import load_engine, registry
from multippo.backends.registry import choose_device
from multippo.backends.torch import segments
from multippo.backends.torch.engine import TorchEngine
from multippo.trees import tree_leaves

THERE = ("cuda:0", "cuda:1", "cpu:0")


@pytest.fixture
def fresh_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """No engine made yet."""
    monkeypatch.setattr(registry, "_engines", {})
    monkeypatch.setattr(registry, "_default", None)


@pytest.mark.parametrize(
    ("wanted", "expected"), [("auto", "cuda:0"), ("cuda", "cuda:0"), ("gpu:1", "cuda:1"), ("cpu", "cpu:0")]
)
def test_what_a_name_means(wanted: str, expected: str):
    assert choose_device("torch", wanted, THERE) == expected
    # GPUs of another maker are not CUDA's.
    assert choose_device("jax", "gpu", ("rocm:0", "cpu:0")) == "rocm:0"


@pytest.mark.parametrize("wanted", ["cuda:2", "tpu", "rocm", "", "CUDA", "cuda:x", 0, None])
def test_what_is_not_there_is_refused_with_what_is(wanted: Any):
    with pytest.raises(ValueError, match=r"the torch engine sees cuda:0, cuda:1, cpu:0; expected one of") as caught:
        choose_device("torch", wanted, THERE)
    message = str(caught.value)
    assert message.startswith(f"device={wanted!r} is not there")
    assert "\n" not in message


@pytest.mark.parametrize("name", ["jax", "torch", "numpy"])
def test_every_engine_has_the_processor_and_refuses_what_it_has_not(name: str):
    engine = load_engine(name)
    assert "cpu:0" in engine.devices()
    assert engine.device_name() in engine.devices()
    with pytest.raises(ValueError, match=f"device='tpu:7' is not there: the {name} engine sees .*cpu:0"):
        load_engine(name, "tpu:7")
    # One engine for one device: modules of both are of one class.
    assert load_engine(name, engine.device_name()) is engine
    assert load_engine(name, "cpu") is load_engine(name, "cpu:0")
    with mp.use_backend(name, device="cpu") as active:
        assert active.device_name() == "cpu:0"
        assert mp.get_backend() == name
        assert active.numerics()["device"] == "cpu:0"


def test_the_variable_decides_for_engines_that_have_a_choice(fresh_engines: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv(registry.DEVICE_VARIABLE, "tpu:7")
    for name in ("jax", "torch"):
        with pytest.raises(ValueError, match=r"^MULTIPPO_DEVICE='tpu:7' is not there"):
            load_engine(name)
        assert load_engine(name, "cpu").device_name() == "cpu:0"  # who names one is not asked for the variable's
        with mp.use_backend(name, "cpu"):
            key = mp.random.fold_in(mp.random.key(0), 3)
        assert mp.random.split(key, 2).shape == (2, 2)
    assert load_engine("numpy").device_name() == "cpu:0"
    monkeypatch.setenv(registry.DEVICE_VARIABLE, "cpu")
    assert load_engine("torch").device_name() == load_engine("jax").device_name() == "cpu:0"


def test_a_torch_engine_prefers_cuda(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    engine = TorchEngine()
    assert engine.devices() == THERE
    assert engine.device_name() == "cuda:0"
    assert engine.on_device("cpu:0").device == torch.device("cpu")
    assert engine.on_device("cuda:1").device == torch.device("cuda", 1)


class Elsewhere(TorchEngine):
    """On a device without memory: torch refuses to compute with tensors of it and of the processor."""

    def __init__(self) -> None:
        super().__init__(torch.device("meta"))


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Any:
    engine = Elsewhere()
    monkeypatch.setitem(registry._engines, "elsewhere", engine)
    # The pieces of episodes depend on data, which is not there; the operator that hides them knows their shapes.
    for cell in segments.segmented:
        monkeypatch.setitem(segments.segmented, cell, getattr(torch.ops.multippo, f"segmented_{cell}"))
    with mp.use_backend("elsewhere") as active:
        yield active


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["leaves", "nested", "shared_trunk", "separate_trunks"])
def test_nothing_a_network_computes_is_on_another_device(elsewhere: Any, name: str, precision: str):
    with elsewhere.precision(precision):
        network = getattr(zoo, name)()
    assert {tensor.device.type for tensor in (*network.parameters(), *network.buffers())} == {"meta"}
    x, xs = (elsewhere.asarray(np.ones((*lead, 2, 4), np.float32)) for lead in ((), (3,)))
    done = elsewhere.asarray(np.ones((3, 2), bool))
    state = network.initialize_state(2)
    assert {leaf.device.type for leaf in tree_leaves(state)} == {"meta"}
    step = network(state, x)
    drawn = network.draw_ahead(state, step.rollout_extras, 3)
    everything = [step, network(drawn, x), network.unroll(state, xs, done), network.reset_state(step.next_state)]
    found = {leaf.device.type for leaf in tree_leaves(everything) if isinstance(leaf, torch.Tensor)}
    assert found == {"meta"}


def test_nothing_in_a_loss_is_on_another_device(elsewhere: Any):
    network = zoo.shared_trunk()
    time_batch = elsewhere.zeros((3, 2))
    obs, done = elsewhere.zeros((3, 2, 4)), time_batch > 0
    state = network.initialize_state(2)
    out = network.unroll(state, obs, done)
    sequences = Sequences(
        obs=obs,
        done=done,
        valid=~done,
        network_state=state,
        rollout_extras=out.rollout_extras,
        loglikelihoods=out.output.loglikelihoods,
        value_estimates=out.output.value_estimates,
        advantages=time_batch,
        returns=time_batch,
    )

    def of(params: Any) -> Any:
        return ppo_loss(network, sequences, mp.PPOConfig(value_clip_range=0.2, entropy_weight=0.01))

    (loss, aux), grads = elsewhere.value_and_grad(of)(elsewhere.split(network).params)
    assert loss.is_meta
    assert all(leaf.is_meta for leaf in (*tree_leaves(aux.metrics), *grads.values()))


def test_random_numbers_lie_where_their_key_lies(elsewhere: Any):
    random = elsewhere.random
    key = random.key(0)
    drawn = [random.normal(key, (2,)), random.gumbel(key), random.uniform(key, (2,), -1.0, 1.0), random.split(key, 3)]
    drawn += [random.randint(key, (2,), -1, 3), random.permutation(key, 4), random.fold_in(key, 7)]
    assert all(leaf.is_meta for leaf in drawn)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["host", "functional"])
def test_a_run_on_the_second_device_is_there_and_the_same_bit_for_bit(kind: str):
    program = Path(__file__).with_name("two_devices.py")
    two = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, str(program), kind]
    done = subprocess.run(command, env=os.environ | two, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU with CUDA: here there is nothing to copy to")
@pytest.mark.parametrize("size", [3, 2**15])
def test_copies_to_a_gpu_are_whole_and_alias_nothing(size: int):
    with mp.use_backend("torch", device="cuda") as engine:
        source = np.arange(size, dtype=np.float32)
        found = engine.asarray(source)
        source[:] = -1.0
        np.testing.assert_array_equal(support.to_numpy(found.cpu()), np.arange(size))
