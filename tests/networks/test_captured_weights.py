"""Weights that only a function knows are named; functions that capture anything else are left alone."""

from __future__ import annotations

import copy
import functools
import math
import types
from typing import Any

import numpy as np
import pytest

import multippo as mp
from multippo.networks.captured_weights import captured_weights

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


def found_in(network: Any, x: Any = None) -> list[str]:
    x = np.linspace(-1, 1, 2 * SIZE).reshape(2, SIZE) if x is None else x
    given = network.engine.tree_map(lambda leaf: network.engine.asarray(leaf.astype(np.float32)), x)
    before = mp.to_portable(network)
    found = captured_weights(network, network.initialize_state(2), given)
    for name, value in mp.to_portable(network).items():
        np.testing.assert_array_equal(value, before[name], err_msg=name)  # as they were
    return found


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


@pytest.mark.parametrize("engine_name", ["torch", "numpy", "jax"])
@pytest.mark.parametrize("way", [way for way in HIDING if way != "method of the layer"])  # which uses no weights
def test_a_layer_is_found_however_it_is_captured(engine_name: str, way: str):
    with mp.use_backend(engine_name):
        layer = dense()
        function = HIDING[way](layer)
        holds = Holds(lambda x: function["a"][1](x)) if isinstance(function, dict) else Holds(function)
        before = layer.engine.leaves(layer)["kernel"].read()
        (said, *more) = found_in(mp.Sequential([dense(), holds]))
        assert said.startswith("Sequential.layers[1].function captures ") and "(Dense), whose weights no" in said
        assert "neither trained nor saved" in said and "Assign it as an attribute: self.layer = " in said
        assert not more
        np.testing.assert_array_equal(layer.engine.leaves(layer)["kernel"].read(), before)


@pytest.mark.parametrize("engine_name", ["torch", "numpy", "jax"])
@pytest.mark.parametrize("way", HIDING)
def test_a_layer_that_is_not_used_does_no_harm(engine_name: str, way: str):
    with mp.use_backend(engine_name):
        hidden = HIDING[way](dense())
        assert not found_in(Holds(lambda x: x + (hidden is None)))


@pytest.mark.parametrize(
    "make",
    [
        lambda f: mp.Lift(f),
        lambda f: mp.Dense(SIZE, SIZE, mp.Rngs(0), activation=f),
        lambda f: mp.Filter(f),
        lambda f: mp.Filter(a=f, b={"c": lambda x: x}),
        lambda f: mp.Parallel({"a": mp.Lift(f), "b": dense()}),
    ],
)
def test_a_function_of_any_module_is_looked_at(torch_engine: Any, make: Any):
    layer = dense()
    (said,) = found_in(make(lambda x: run(layer, x)))
    assert "captures 'layer' (Dense), whose weights no module of this" in said
    assert not found_in(make(lambda x: x + 1))


def test_what_is_frozen_on_purpose_may_be_captured(torch_engine: Any):
    import torch

    for encoder in (torch.nn.Linear(SIZE, SIZE), dense(), torch.nn.BatchNorm1d(SIZE, affine=False)):
        call = functools.partial(run, encoder) if isinstance(encoder, mp.Dense) else encoder
        network = Holds(lambda x, call=call: call(x))
        if isinstance(encoder, torch.nn.BatchNorm1d):
            encoder.eval()
        else:
            (said,) = found_in(network)
            assert "to stay as they are" in said and "requires_grad_(False)" in said
        encoder.requires_grad_(False)
        assert not found_in(network)


def test_a_transform_of_a_graph_is_looked_at(torch_engine: Any):
    layer, graph = dense(), mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", SIZE)
    graph.add_population("b", SIZE, activation=lambda x: run(layer, x))
    graph.connect("a", "b", transform=mp.Lift(lambda x: run(layer, x)))
    graph.add_output("y", source="b")
    graph.finalize()
    found = found_in(graph, {"a": np.linspace(-1, 1, 2 * SIZE).reshape(2, SIZE)})
    assert len(found) == 2
    assert all("'layer' (Dense)" in said for said in found)


def test_a_class_that_captures_a_layer_is_found(torch_engine: Any):
    layer = dense()

    class Net(mp.StatefulModule):
        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            return mp.StatefulModuleOutput(state, self._through(x))

        def _through(self, x: Any) -> Any:
            return run(layer, x)

    (said,) = found_in(Net())
    assert said.startswith("Net._through captures 'layer' (Dense)")


@pytest.mark.parametrize("engine_name", ["torch", "numpy", "jax"])
def test_a_layer_of_an_object_that_is_no_module_is_found(engine_name: str):
    class Helps(mp.StatefulModule):
        def __init__(self, layer: Any) -> None:
            self.helper = types.SimpleNamespace(layer=layer, size=SIZE) if engine_name == "numpy" else Calls(layer)
            self.other = types.SimpleNamespace(size=SIZE)

        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            return mp.StatefulModuleOutput(state, self.helper.layer((), x).output)

    with mp.use_backend(engine_name):
        (said,) = found_in(mp.Sequential([dense(), Helps(dense())]))
    assert said.startswith("Sequential.layers[1].helper captures 'layer' (Dense), whose weights no module")


class OfAClass(mp.StatefulModule):
    layer: Any = None

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, type(self).layer((), x).output)


@pytest.mark.parametrize("engine_name", ["torch", "numpy", "jax"])
def test_a_layer_of_a_class_of_a_global_dict_and_behind_zeros(engine_name: str, monkeypatch: pytest.MonkeyPatch):
    with mp.use_backend(engine_name):
        monkeypatch.setattr(OfAClass, "layer", dense())
        (said,) = found_in(OfAClass())
        assert said.startswith("OfAClass.layer captures 'layer' (Dense)")
        monkeypatch.setitem(globals(), "GLOBAL", {"a": dense()})
        (said,) = found_in(Holds(lambda x: run(GLOBAL["a"], x)))
        assert "captures 'GLOBAL' (Dense)" in said
        hidden, zeros = dense(), mp.Dense(SIZE, 2, mp.Rngs(0), kernel_init=lambda key, shape: np.zeros(shape))
        (said,) = found_in(mp.Sequential([Holds(lambda x: run(hidden, x)), zeros]))
        assert "captures 'hidden' (Dense)" in said


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
def test_a_traced_encoder_that_is_frozen_may_be_captured(torch_engine: Any):
    import torch

    traced: Any = torch.jit.trace(torch.nn.Linear(SIZE, SIZE), torch.zeros(2, SIZE)).requires_grad_(False)
    assert not found_in(Holds(lambda x: traced(x)))


GLOBAL: Any = None


def test_a_layer_of_the_file_is_found(torch_engine: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(globals(), "GLOBAL", dense())
    (said,) = found_in(Holds(lambda x: run(GLOBAL, x)))
    assert said.startswith("Holds.function captures 'GLOBAL' (Dense)")


@pytest.mark.parametrize("engine_name", ["jax", "torch", "numpy"])
def test_a_param_is_found(engine_name: str):
    with mp.use_backend(engine_name):
        weight, constant = mp.Param(np.ones(SIZE)), mp.Variable(np.ones(SIZE))
        (said,) = found_in(Holds(lambda x: x * weight[...] + constant[...]))
        assert said.startswith("Holds.function captures 'weight' (Param), whose weights no")
        held = found_in(Holds(lambda x: x * weight[...], weight=weight))
        assert ["would not be" in said for said in held] == ([True] if engine_name == "jax" else [])


def test_what_belongs_to_a_framework_is_found_where_it_has_weights():
    import flax.nnx
    import torch

    with mp.use_backend("torch"):
        linear, parameter, relu = torch.nn.Linear(SIZE, SIZE), torch.nn.Parameter(torch.ones(SIZE)), torch.nn.ReLU()
        before = [tensor.detach().clone() for tensor in (linear.weight, parameter)]
        for function in (lambda x: linear(x), lambda x: x * parameter):
            assert len(found_in(Holds(function))) == 1
        assert not found_in(Holds(lambda x: relu(x)))
        assert not found_in(Holds(lambda x: x * parameter, parameter=parameter))
        assert not found_in(Holds(lambda x: linear(x), lifted=mp.Lift(linear)))
        assert all(map(torch.equal, before, (linear.weight, parameter)))
    with mp.use_backend("jax"):
        embedding = flax.nnx.Linear(SIZE, SIZE, rngs=flax.nnx.Rngs(0))
        (said,) = found_in(Holds(lambda x: embedding(x)))
        assert "no module of this Holds holds" in said
        (said,) = found_in(Holds(lambda x: embedding(x), lifted=mp.Lift(embedding)))
        assert "training runs on copies" in said


class Own(mp.StatefulModule):
    """Holds functions of itself."""

    def __init__(self, way: str, layer: Any) -> None:
        self.layer, self.factor, self.items = layer, 2.0, (1, 2)
        array = self.zeros((SIZE,))
        self.constants = lambda x: x * 0 + math.pi + len(mp.__all__) + Calls.__name__.count("a") + array
        ways = {
            # What is read of itself are no weights.
            "none": lambda x: self.xp.tanh(x) * self.factor,
            "handed on": lambda x: scaled(self, x) * len(self.items) * isinstance(self, Own),
            "sizes": lambda x: x * self.layer.engine.leaves(self.layer)["kernel"].read().shape[0],
            "config": self._twice,
            # Weights are.
            "method": self._through,
            "lambda": lambda x: next(self.layer((), part).output for part in [x]),
            "comprehension": lambda x: [self.layer((), part).output for part in [x]][0],  # noqa: RUF015
            "method in a lambda": lambda x: self._through(x),
            "layer": lambda x: layer((), x).output,
            "partial": functools.partial(run, layer),
        }
        self.through = ways[way]

    def _twice(self, x: Any) -> Any:
        return self.xp.tanh(x) * 2

    def _through(self, x: Any) -> Any:
        return self.layer((), x).output

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, self.through(self.layer((), self.constants(x)).output))


def scaled(module: Any, x: Any) -> Any:
    return module.xp.tanh(x) * module.factor


@pytest.mark.parametrize("way", ["none", "handed on", "sizes", "config"])
def test_functions_of_what_is_no_weight_are_left_alone(engine: Any, way: str):
    network = mp.Sequential([dense(), Own(way, dense())])
    assert not found_in(network)
    assert not found_in(mp.with_recording(network))
    if engine.name == "torch":  # flax's graph of a bound method can't be copied
        assert not found_in(copy.deepcopy(network))  # whose functions know the first one


@pytest.mark.parametrize("way", ["method", "lambda", "comprehension", "method in a lambda", "layer", "partial"])
def test_weights_that_are_held_too_are_refused_where_training_copies_modules(way: str):
    """A function that captured them would go on with the old ones there; elsewhere they are the trained ones."""
    for name in ("torch", "numpy", "jax"):
        with mp.use_backend(name):
            network = mp.Sequential([dense(), Own(way, dense())])
        assert set(mp.to_portable(network)) > {"layers.1.layer.kernel"}
        found = found_in(network)
        if name == "jax":
            assert found and all("Sequential.layers[1].through captures" in said for said in found)
            assert all("not be trained" in said and "in a method of the module" in said for said in found)
        else:
            assert not found


def test_a_module_that_holds_itself_or_what_it_is_in_ends_the_search(torch_engine: Any):
    layer = dense()
    ring: list[Any] = [lambda x: run(layer, x)]
    ring.append(ring)
    (said,) = found_in(Holds(lambda x: ring[0](x)))
    assert "captures 'layer' (Dense)" in said


def test_what_draws_in_ways_of_its_own_is_left_alone(torch_engine: Any):
    layer, draw = dense(), np.random.default_rng(0)
    assert not found_in(Holds(lambda x: x * draw.normal() + 0 * layer.engine.leaves(layer)["kernel"].read().sum()))


def test_a_function_that_fails_with_other_weights_depends_on_them(torch_engine: Any):
    layer = dense()
    first = layer.engine.leaves(layer)["kernel"].read()

    def strict(x: Any) -> Any:
        if not np.array_equal(layer.engine.leaves(layer)["kernel"].read(), first):
            raise ArithmeticError("other weights")
        return x

    (said,) = found_in(Holds(strict))
    assert "captures 'layer' (Dense)" in said


def test_large_containers_and_objects_cost_nothing(torch_engine: Any):
    class Counted(list):
        def __iter__(self) -> Any:
            raise AssertionError("gone through")

    many = Counted(range(1000))
    assert not found_in(Holds(lambda x: x * len(many)))
