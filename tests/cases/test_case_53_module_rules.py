"""Layers in lists, in dicts and at two places are all trained, on flax as on torch.

Seen in p-doom/jasmine#228, jax-ml/bonsai#47, google/flax#3997, #5050.
"""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock

SIZE = 4


class Mixed(mp.StatefulModule):
    """A network as users write it: plain lists and dicts, nested, one layer under two names, bare parameters."""

    def __init__(self, rngs: mp.Rngs) -> None:
        self.stack = [mp.Dense(SIZE, SIZE, rngs, "tanh") for _ in range(2)]
        self.branches = {"left": mp.Dense(SIZE, SIZE, rngs), "a.b": mp.Dense(SIZE, SIZE, rngs)}
        self.rows = {"inner": [mp.Dense(SIZE, SIZE, rngs)]}
        self.shared = mp.Dense(SIZE, SIZE, rngs, "tanh")
        self.again = self.shared
        self.scale = mp.Param(np.full(SIZE, 0.7))
        self.offsets = [mp.Param(np.full(SIZE, 0.1)), mp.Param(np.full(SIZE, 0.2))]

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        for layer in [*self.stack, self.shared, *self.rows["inner"], self.again]:
            x = layer((), x).output
        x = sum(layer((), x).output for layer in self.branches.values())
        return mp.StatefulModuleOutput(state, x * self.scale[...] + self.offsets[0][...] + self.offsets[1][...])


EXPECTED = {
    *(f"stack.{i}.{leaf}" for i in range(2) for leaf in ("kernel", "bias")),
    *(f"branches.{key}.{leaf}" for key in ("left", "a.b") for leaf in ("kernel", "bias")),
    *(f"rows.inner.0.{leaf}" for leaf in ("kernel", "bias")),
    *(f"shared.{leaf}" for leaf in ("kernel", "bias")),
    "scale",
    "offsets.0",
    "offsets.1",
}


def with_heads(body: Any) -> Any:
    network = mp.Sequential([body, support.actor_critic(SIZE)])
    support.fill_randomly(network)
    return network


def make_network() -> Any:
    return with_heads(Mixed(mp.Rngs(0)))


def parts(values: dict[str, Any]) -> set[str]:
    """Names within ``Mixed``; a layer at two places has one of its two names."""
    names = {name.removeprefix("layers.0.") for name in values if name.startswith("layers.0.")}
    return {name.replace("again.", "shared.") for name in names}


@pytest.mark.nightly_if("jax")
def test_every_parameter_is_found_has_a_gradient_and_changes(engine: Any):
    network = make_network()
    before = mp.to_portable(network)
    assert parts(before) == EXPECTED
    rng = np.random.default_rng(0)
    xs, done = engine.asarray(rng.normal(size=(5, 3, SIZE)).astype(np.float32)), engine.asarray(np.zeros((5, 3), bool))

    def loss(net: Any) -> Any:
        return support.total(net.xp, net.layers[0].unroll((), xs, done).output)

    grads = support.gradients(network, loss)
    for name in before:
        if name.startswith("layers.0."):
            assert np.abs(grads[name]).max() > 1e-4, name
    training.train(Clock(SIZE - 1, "truncated", 4), network, iterations=1, learning_rate=1e-2)
    after = mp.to_portable(network)
    for name, value in before.items():
        if value.dtype.kind == "f":
            assert np.abs(after[name] - value).max() > 1e-5, name


class Captures(mp.StatefulModule):
    """Uses its layer by a function."""

    def __init__(self) -> None:
        self.layer = mp.Dense(SIZE, SIZE, mp.Rngs(0))
        self.hidden = lambda x: self.layer((), x).output

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, self.hidden(x))


@pytest.mark.nightly_if("jax")
def test_a_function_of_weights_that_are_held_trains_them_or_is_named(engine: Any, caplog: pytest.LogCaptureFixture):
    """JAX trains copies of modules, whose function would go on with the weights of the first one."""
    network = with_heads(Captures())
    before = mp.to_portable(network)
    training.train(Clock(SIZE - 1, "truncated", 4), network, iterations=1)
    moved = np.abs(mp.to_portable(network)["layers.0.layer.kernel"] - before["layers.0.layer.kernel"]).max() > 1e-5
    named = "layers[0].hidden captures 'self' (Captures) and may compute with its weights" in caplog.text
    assert (moved, named) == ((False, True) if engine.name == "jax" else (True, False))


class Holds(mp.StatefulModule):
    """Holds its layers in a tuple, or in a list that grows after the assignment."""

    def __init__(self, kind: type) -> None:
        layers = [mp.Dense(SIZE, SIZE, mp.Rngs(0)) for _ in range(2)]
        self.layers: Any = kind() if kind is list else tuple(layers)
        if kind is list:
            self.layers.extend(layers)

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
        return mp.StatefulModuleOutput(state, x)


@pytest.mark.parametrize("kind", [tuple, list])
def test_layers_are_tracked_or_refused_with_the_remedy(engine: Any, kind: type):
    try:
        module = Holds(kind)
    except (TypeError, ValueError) as error:
        assert kind is tuple and "list" in str(error)
    else:
        assert len(mp.to_portable(module)) == 4
