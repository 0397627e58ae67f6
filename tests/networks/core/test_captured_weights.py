"""Weights that only a function knows are named; functions that capture anything else are left alone."""

import functools
import types
from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.networks.core.captured_weights import captured_weights

SIZE = 4


class Holds(mp.StatefulModule):
    """Applies a function that it is given."""

    def __init__(self, function: Any, **more: Any) -> None:
        self.function = function
        for name, value in more.items():
            setattr(self, name, value)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, self.function(x))


class Calls:
    """An object that is called, as user's activations are; and one of which a method is taken."""

    def __init__(self, layer: Any) -> None:
        self.layer = layer

    def __call__(self, x: Any) -> Any:
        return self.apply(x)

    def apply(self, x: Any) -> Any:
        return self.layer((), x).output


def dense() -> Any:
    return mp.Dense(SIZE, SIZE, mp.Rngs(0))


def run(layer: Any, x: Any) -> Any:
    return layer((), x).output


def of_namespace(layer: Any) -> Any:
    held = types.SimpleNamespace(layer=layer, size=SIZE)
    return lambda x: run(held.layer, x)


HIDING = {
    "lambda": lambda layer: lambda x: run(layer, x),
    "partial": lambda layer: functools.partial(run, layer),
    "method of the layer": lambda layer: layer.initialize_state,
    "object": Calls,
    "attribute of an object": of_namespace,
    "object that is not a module": lambda layer: types.SimpleNamespace(layer=layer),
}


@pytest.mark.parametrize("way", HIDING)
def test_a_layer_is_found_however_it_is_captured(torch_engine: Any, way: str):
    (said,) = captured_weights(mp.Sequential([dense(), Holds(HIDING[way](dense()))]))
    assert said.startswith("Sequential.layers[1].function captures ") and "(Dense), whose weights no" in said
    assert "neither trained nor saved" in said and "Assign it as an attribute, self." in said


def test_a_layer_is_found_on_every_engine(engine: Any):
    layer, weight, constant = dense(), mp.Param(np.ones(SIZE)), mp.Variable(np.ones(SIZE))
    (said,) = captured_weights(Holds(lambda x: run(layer, x)))
    assert said.startswith("Holds.function captures 'layer' (Dense), whose weights no module of this Holds holds")
    (said,) = captured_weights(Holds(lambda x: x * weight[...] + constant[...]))
    assert said.startswith("Holds.function captures 'weight' (Param), whose weights no")
    # JAX trains copies of the modules, and the function goes on with the first ones; torch has no copies.
    held = captured_weights(Holds(lambda x: run(layer, x) * weight[...], layer=layer, weight=weight))
    assert ["goes on with the weights that it knows" in said for said in held] == [True] * 2 * (engine.name == "jax")


@pytest.mark.parametrize(
    "make",
    [
        lambda f: mp.Dense(SIZE, SIZE, mp.Rngs(0), activation=f),
        lambda f: mp.Filter(a=f, b={"c": lambda x: x}),
        lambda f: mp.Parallel({"a": mp.Lift(f), "b": dense()}),
    ],
)
def test_a_function_of_any_module_is_looked_at(torch_engine: Any, make: Any):
    layer = dense()
    (said,) = captured_weights(make(lambda x: run(layer, x)))
    assert "captures 'layer' (Dense), whose weights no module of this" in said
    assert not captured_weights(make(lambda x: x + 1))


def test_what_is_frozen_on_purpose_may_be_captured(torch_engine: Any):
    import torch

    for encoder in (torch.nn.Linear(SIZE, SIZE), dense(), torch.nn.Parameter(torch.ones(SIZE))):
        network = Holds(lambda x, encoder=encoder: encoder)
        assert len(captured_weights(network)) == 1
        encoder.requires_grad_(False)
        assert not captured_weights(network)


def test_a_ring_ends_the_search(torch_engine: Any):
    layer = dense()
    ring: list[Any] = [lambda x: run(layer, x)]
    ring.append(ring)
    (said,) = captured_weights(Holds(lambda x: ring[0](x)))
    assert "captures 'layer' (Dense)" in said
