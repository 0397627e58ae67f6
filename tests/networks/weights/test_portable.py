"""Weights move between engines under names and in layouts that both share."""

import warnings
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
import torch
from flax import nnx
from gymnasium import spaces
from support import ENGINES, each_engine, fill_randomly
from zoo import NETWORKS

import multippo as mp
from multippo.networks.weights.portable import fitted, numbers


@pytest.mark.parametrize("name", NETWORKS)
def test_initial_weights_are_bit_equal(name):
    nets = each_engine(lambda: mp.to_portable(NETWORKS[name]()))
    assert list(nets["jax"]) == list(nets["torch"])
    for path, value in nets["jax"].items():
        assert value.dtype == nets["torch"][path].dtype, path
        np.testing.assert_array_equal(value, nets["torch"][path], err_msg=path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("layers.1.bias"), r"missing \['layers.1.bias'\], left over none"),
        (lambda w: w.update(extra=np.zeros(1)), r"missing none, left over \['extra'\]"),
        (
            lambda w: w.update({"layers.1.kernel": np.zeros((3, 2))}),
            r"layers.1.kernel has shape \(3, 2\) in the weights; the network expects \(2, 3\)",
        ),
        (lambda w: w.update({"layers.1.kernel": np.full((2, 3), "x")}), "layers.1.kernel holds <U1; expected"),
        (lambda w: w.update({"layers.2.counter": np.ones(2)}), "layers.2.counter holds float64"),
    ],
    ids=["missing", "extra", "shape", "words", "counter"],
)
def test_weights_that_do_not_fit_are_refused_and_nothing_is_written(engine, change, message):
    net = mp.Sequential([mp.Dense(2, 2, mp.Rngs(0)), mp.Dense(2, 3, mp.Rngs(1)), mp.Normalizer(3)])
    before = mp.to_portable(net)
    weights = {name: value + 1 for name, value in before.items()}
    change(weights)
    with pytest.raises((ValueError, TypeError), match=message):
        mp.load_portable(net, weights)
    for name, value in mp.to_portable(net).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)


@pytest.mark.parametrize("name", [*ENGINES, "numpy"])
def test_names_that_two_arrays_would_have(name):
    with mp.use_backend(name):
        rngs = mp.Rngs(0)
        inner = mp.Parallel({"b": mp.Dense(4, 3, rngs)})
        network = mp.Parallel({"a": inner, "a.components.b": mp.Dense(4, 3, rngs)})
        told = (
            r"portable name 'components.a.components.b.bias': the ones at components / a / components / b / bias and "
            r"components / a.components.b / bias. Rename a key that holds a dot"
        )
        if name == "torch":  # which has them in the order of torch, weight first
            told = told.replace("bias", "kernel")
        with pytest.raises(ValueError, match=told):
            mp.to_portable(network)
        # A dot alone is no harm.
        assert "components.a.c.kernel" in mp.to_portable(mp.Parallel({"a": inner, "a.c": mp.Dense(4, 3, rngs)}))


def test_what_is_no_module(engine):
    with pytest.raises(TypeError, match="to_portable got a int; expected a StatefulModule"):
        mp.to_portable(3)
    layer = mp.Dense(1, 1, mp.Rngs(0))
    with pytest.raises(TypeError, match="load_portable got a Linear; expected the arrays by name that to_portable"):
        mp.load_portable(layer, torch.nn.Linear(1, 1))  # pyright: ignore[reportArgumentType]


def test_weights_of_bfloat16_go_from_jax_to_torch():
    with mp.use_backend("jax"):
        source = mp.Dense(3, 2, mp.Rngs(0))
        nnx.update(source, jax.tree.map(lambda leaf: leaf.astype(jnp.bfloat16), nnx.state(source)))
        weights = mp.to_portable(source)
        rounded = {name: np.asarray(value) for name, value in weights.items()}
        # Into one of bfloat16 on JAX again, without loss.
        mp.load_portable(source, weights)
        assert jax.tree.leaves(nnx.state(source))[0].dtype == jnp.bfloat16
    with mp.use_backend("torch"):
        target = mp.Dense(3, 2, mp.Rngs(1))
        mp.load_portable(target, weights)
        for name, value in mp.to_portable(target).items():
            assert weights[name].dtype == value.dtype == np.float32
            np.testing.assert_array_equal(value, rounded[name])
            assert not (value.view(np.uint32) & 0xFFFF).any()  # the low half of a float32 that was a bfloat16


VALUES = [0.5, -3.0]  # which every kind of four bits and more of fraction holds


@pytest.mark.parametrize(
    "value",
    [
        VALUES,
        np.array(VALUES, ">f8"),
        np.array(VALUES, ml_dtypes.bfloat16),
        torch.tensor(VALUES, requires_grad=True),
        torch.tensor(VALUES).bfloat16(),
        torch.tensor(VALUES).to(torch.float8_e4m3fn),
    ],
    ids=lambda value: f"{type(value).__module__}-{getattr(value, 'dtype', 'list')}",
)
@pytest.mark.parametrize("name", ["torch", "numpy"])
def test_every_kind_of_float_is_written(name: str, value: Any):
    with mp.use_backend(name):
        layer = mp.Dense(1, 2, mp.Rngs(0))
        mp.load_portable(layer, {"bias": value, "kernel": np.zeros((1, 2))})
        bias = mp.to_portable(layer)["bias"]
    assert bias.dtype == (np.float64 if name == "numpy" else np.float32)
    np.testing.assert_array_equal(bias, VALUES)


def quantised() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch is about to drop them
        return torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "bias holds NoneType; expected an array of numbers"),
        (np.array([None, 1]), "bias holds object; expected"),
        ([1, [2]], r"bias is a list that can't be read as an array of numbers \(setting an array element"),
        (torch.zeros(2).to_sparse(), r"bias is a Tensor that can't be read .*to_dense\(\)"),
        (quantised(), r"bias is a Tensor that can't be read"),
    ],
)
def test_what_is_no_array_of_numbers(value: Any, message: str):
    with pytest.raises(TypeError, match=message):
        numbers("bias", value)


@pytest.mark.parametrize(
    ("value", "own", "error", "message"),
    [
        (
            np.array([-1, 0]),
            np.zeros(2, np.uint32),
            ValueError,
            "n holds integers from -1 to 0 .* from 0 to 4294967295",
        ),
        (np.array([0, 2**31]), np.zeros(2, np.int32), ValueError, "from 0 to 2147483648 .* -2147483648 to 2147483647"),
    ],
)
def test_what_does_not_fit(value: np.ndarray, own: np.ndarray, error: type[Exception], message: str):
    with pytest.raises(error, match=message):
        fitted("n", value, own)


def test_layers_that_are_alike_are_loaded(torch_engine):
    def network(observation, actions, seed):
        net = mp.make_mlp_actor_critic(observation, actions, (8, 8), (8,), mp.Rngs(seed))
        fill_randomly(net, seed)
        return net

    source, net = network(3, spaces.Discrete(2), 1), network(5, spaces.Discrete(2), 2)
    before, theirs = mp.to_portable(net), mp.to_portable(source)
    report = mp.load_matching(net, source)
    after, (first, second) = mp.to_portable(net), ("layers.1.action.layers.0", "layers.1.action.layers.1")
    # A normaliser's count is of the same shape, but goes with its mean.
    assert report.left["layers.0.mean"] == ((5,), (3,)) and report.left["layers.0.counter"] == ((2,), (2,))
    assert report.left[f"{first}.kernel"] == ((5, 8), (3, 8)) and report.left[f"{first}.bias"] == ((8,), (8,))
    assert report.loaded[f"{second}.kernel"] == (8, 8) and report.unused == {}
    assert {*report.loaded, *report.left} == {*after}
    for name, array in after.items():
        np.testing.assert_array_equal(array, theirs[name] if name in report.loaded else before[name])


def test_a_report_of_what_was_left(torch_engine):
    net = mp.make_mlp([2, 3], mp.Rngs(0))
    report = mp.load_matching(net, {"layers.0.kernel": np.ones((2, 3)), "other": np.ones(4)})
    assert str(report).splitlines() == [
        "left   layers.0.bias (3,), not in the source",
        "left   layers.0.kernel (2, 3), in the source (2, 3)",
        "unused other (4,)",
    ]
