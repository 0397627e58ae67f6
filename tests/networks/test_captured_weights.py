"""Weights that only a function knows are named; functions that capture anything else are left alone."""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.networks.captured_weights import captured_weights, refuse_captured

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


def run_all(x: Any, *, layers: Any) -> Any:
    for layer in layers:
        x = run(layer, x)
    return x


def nested(layer: Any) -> Any:
    def inner(x: Any) -> Any:
        return next(run(layer, part) for part in (x,))

    return lambda x: inner(x)


def wrapped(layer: Any) -> Any:
    @functools.wraps(run)
    def outer(x: Any) -> Any:
        return run(layer, x)

    return outer


def with_default(layer: Any) -> Any:
    return lambda x, layer=layer: run(layer, x)


def of_namespace(layer: Any) -> Any:
    import types

    held = types.SimpleNamespace(layer=layer, size=SIZE)
    return lambda x: run(held.layer, x)


HIDING = {
    "lambda": lambda layer: lambda x: run(layer, x),
    "nested": nested,
    "wrapped": wrapped,
    "partial": lambda layer: functools.partial(run, layer),
    "keyword": lambda layer: functools.partial(run_all, layers=[layer]),
    "default": with_default,
    "method of the layer": lambda layer: layer.initialize_state,
    "object": Calls,
    "method of an object": lambda layer: Calls(layer).apply,
    "attribute of an object": of_namespace,
    "in a dict": lambda layer: {"a": [math.sqrt, lambda x: run(layer, x)]},
}


@pytest.mark.parametrize("engine_name", ["torch", "numpy"])
@pytest.mark.parametrize("way", HIDING)
def test_a_layer_is_found_however_it_is_captured(engine_name: str, way: str):
    with mp.use_backend(engine_name):
        layer = dense()
        network = mp.Sequential([dense(), Holds(HIDING[way](layer))])
        with pytest.raises(TypeError, match=r"Sequential\.layers\[1\]\.function captures .* \(Dense\), .*self\.layer"):
            mp.to_portable(network)
        # What it is when the network holds it, it may be in functions too.
        assert set(mp.to_portable(mp.Sequential([layer, network]))) > {"layers.0.kernel"}


@pytest.mark.parametrize(
    "make",
    [
        lambda f: mp.Lift(f),
        lambda f: mp.Dense(SIZE, SIZE, mp.Rngs(0), activation=f),
        lambda f: mp.Filter(f),
        lambda f: mp.Filter(a=f, b={"c": lambda x: x}),
        lambda f: mp.Parallel({"a": mp.Lift(f), "b": dense()}),
        lambda f: mp.PPOAdapter(action=mp.Lift(f), value=dense()),
    ],
)
def test_a_function_of_any_module_is_looked_at(torch_engine: Any, make: Any):
    layer = dense()
    with pytest.raises(TypeError, match=r"captures 'layer' \(Dense\), whose weights no module of this"):
        refuse_captured(make(lambda x: run(layer, x)))
    refuse_captured(make(lambda x: x + 1))


def test_what_is_frozen_on_purpose_may_be_captured(torch_engine: Any):
    import torch

    for encoder in (torch.nn.Linear(SIZE, SIZE), dense()):
        call = encoder if isinstance(encoder, torch.nn.Linear) else functools.partial(run, encoder)
        network = Holds(lambda x, call=call: call(x))
        with pytest.raises(
            TypeError, match=r"stay as they are, .* on torch it is enough to call requires_grad_\(False\)"
        ):
            refuse_captured(network)
        encoder.requires_grad_(False)
        refuse_captured(network, in_training=True)
        assert mp.to_portable(network) == {}


def test_a_transform_of_a_graph_is_looked_at(torch_engine: Any):
    layer, graph = dense(), mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", SIZE)
    graph.add_population("b", SIZE, activation=lambda x: run(layer, x))
    graph.connect("a", "b", transform=mp.Lift(lambda x: run(layer, x)))
    graph.add_output("y", source="b")
    graph.finalize()
    found = captured_weights(graph, in_training=False)
    assert len(found) == 2
    assert all("'layer' (Dense)" in said for said in found)


def test_a_class_that_captures_a_layer_is_found(torch_engine: Any):
    layer = dense()

    class Net(mp.StatefulModule):
        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            return mp.StatefulModuleOutput(state, self._through(x))

        def _through(self, x: Any) -> Any:
            return run(layer, x)

    with pytest.raises(TypeError, match=r"Net\._through captures 'layer' \(Dense\)"):
        refuse_captured(Net())


GLOBAL: Any = None


def test_a_layer_of_the_file_is_found(torch_engine: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "GLOBAL", dense())
    with pytest.raises(TypeError, match=r"Holds\.function captures 'GLOBAL' \(Dense\)"):
        refuse_captured(Holds(lambda x: run(GLOBAL, x)))


@pytest.mark.parametrize("engine_name", ["jax", "torch", "numpy"])
@pytest.mark.parametrize("kind", ["Param", "Variable"])
def test_a_variable_is_found(engine_name: str, kind: str):
    with mp.use_backend(engine_name):
        weight = getattr(mp, kind)(np.ones(SIZE))
        with pytest.raises(TypeError, match=r"Holds\.function captures 'weight'.*neither trained nor saved"):
            refuse_captured(Holds(lambda x: x * weight[...]))
        refuse_captured(Holds(lambda x: x * weight[...], weight=weight))


def test_what_belongs_to_a_framework_is_found_where_it_has_weights():
    import flax.nnx
    import torch

    with mp.use_backend("torch"):
        linear, parameter, relu = torch.nn.Linear(SIZE, SIZE), torch.nn.Parameter(torch.ones(SIZE)), torch.nn.ReLU()
        for function in (lambda x: linear(x), lambda x: x * parameter, torch.compile(lambda x: linear(x))):
            assert len(captured_weights(Holds(function), in_training=True)) == 1
        assert not captured_weights(Holds(lambda x: relu(x)), in_training=True)
        assert not captured_weights(Holds(lambda x: x * parameter, parameter=parameter), in_training=True)
        assert not captured_weights(Holds(lambda x: linear(x), lifted=mp.Lift(linear)), in_training=True)
    with mp.use_backend("jax"):
        embedding = flax.nnx.Linear(SIZE, SIZE, rngs=flax.nnx.Rngs(0))
        assert len(captured_weights(Holds(lambda x: embedding(x)), in_training=False)) == 1
        assert not captured_weights(Holds(lambda x: embedding(x), lifted=mp.Lift(embedding)), in_training=False)


def test_a_compiled_function_is_looked_through(jax_engine: Any):
    import jax

    layer = dense()
    for compiled in (jax.jit(lambda x: run(layer, x)), jax.checkpoint(jax.vmap(lambda x: run(layer, x)))):
        assert len(captured_weights(Holds(compiled), in_training=False)) == 1
    assert not captured_weights(Holds(jax.jit(lambda x: x + 1)), in_training=True)


class Own(mp.StatefulModule):
    """Holds functions of itself."""

    def __init__(self, way: str, layer: Any) -> None:
        self.layer, self.factor = layer, 2.0
        self.table = {"twice": self._twice, "thrice": lambda x: self.xp.tanh(x) * 3 * self.factor}
        array = self.zeros((SIZE,))
        self.constants = lambda x: np.asarray(x) + math.pi + len(mp.__all__) + Calls.__name__.count("a") + array
        if way == "method":
            self.through = self._through
        elif way == "lambda":
            self.through = lambda x: next(self.layer((), part).output for part in [x])
        elif way == "method in a lambda":
            self.through = lambda x: self._through(x)
        elif way == "layer":
            self.through = lambda x: layer((), x).output

    def _twice(self, x: Any) -> Any:
        return self.xp.tanh(x) * 2

    def _through(self, x: Any) -> Any:
        return self.layer((), x).output

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, self._through(self.table["twice"](x)))


def test_functions_of_what_is_no_weight_are_left_alone(engine: Any):
    network = mp.Sequential([dense(), Own("none", dense())])
    assert not captured_weights(network, in_training=True)
    assert not captured_weights(mp.with_recording(network), in_training=True)


@pytest.mark.parametrize("way", ["method", "lambda", "method in a lambda", "layer"])
def test_weights_that_are_held_too_are_refused_where_training_copies_modules(way: str):
    """A function that captured them would go on with the old ones there; elsewhere they are the trained ones."""
    for name in ("torch", "numpy", "jax"):
        with mp.use_backend(name):
            network = mp.Sequential([dense(), Own(way, dense())])
        assert set(mp.to_portable(network)) > {"layers.1.layer.kernel"}
        found = captured_weights(network, in_training=True)
        if name == "jax":
            (said,) = found
            assert "Sequential.layers[1].through captures" in said
            assert "not be trained" in said
            assert "in a method of the module" in said
        else:
            assert not found


def test_a_module_that_holds_itself_or_what_it_is_in_ends_the_search(torch_engine: Any):
    network = Own("method", dense())
    network.again = lambda: network.again
    assert not captured_weights(mp.Sequential([network, network]), in_training=True)
