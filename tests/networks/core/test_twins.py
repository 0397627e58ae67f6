"""The same network on another engine."""

from typing import Any

import numpy as np
import pytest
from multippo.conformance.specimens.module_specimens import MODULES
from multippo.conformance.specimens.network_specimens import NETWORKS
from multippo.conformance.specimens.specimen import ModuleSpecimen, NetworkSpecimen, randomise

import multippo as mp
from multippo.backends.registry import load_engine
from multippo.networks.core.twins import twin
from multippo.random import host
from multippo.trees import tree_leaves, tree_map

B = 3
SPECIMENS = [one for one in (*MODULES, *NETWORKS) if not one.only_on]


def sample(specimen: ModuleSpecimen | NetworkSpecimen) -> Any:
    """An input of three environments, in NumPy."""
    if isinstance(specimen, NetworkSpecimen):
        obs = specimen.env().reset(host.key(0)).obs
        return tree_map(lambda x: np.asarray(x)[:B], obs)
    return tree_map(lambda x: x[0, :B], specimen.sample(host.key(1)))


def outputs(module: Any, x: Any) -> list[np.ndarray]:
    """Everything that two steps return, floats in double precision."""
    engine = module.engine
    x = tree_map(lambda leaf: engine.asarray(leaf.astype(np.float64) if leaf.dtype.kind == "f" else leaf), x)
    with engine.no_grad():
        first = module(module.initialize_state(B), x)
        second = module(first.next_state, x)
    return [np.asarray(engine.to_numpy(leaf)) for leaf in tree_leaves((first, second)) if hasattr(leaf, "shape")]


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray], rtol: float) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one.astype(np.float64), other.astype(np.float64), rtol=rtol, atol=rtol)


@pytest.mark.parametrize("specimen", SPECIMENS, ids=lambda one: one.name)
def test_the_twin_on_numpy_and_the_twin_of_a_twin_compute_the_same(specimen: Any, torch_engine: Any):
    with torch_engine.precision("float64"):
        module = specimen.build()
        randomise(module)
        x = sample(specimen)
        expected = outputs(module, x)
        on_numpy = twin(module, load_engine("numpy"))
        assert_equal(outputs(on_numpy, x), expected, 1e-10)
        jax = load_engine("jax")
        with jax.precision("float64"):
            on_jax = twin(module, jax)
            back = twin(on_jax, torch_engine)
        assert_equal(outputs(back, x), expected, 0.0)
    own = mp.to_portable(module)
    for other in (on_numpy, on_jax, back):
        arrays = mp.to_portable(other)
        assert list(arrays) == list(own)
        for name, value in own.items():
            np.testing.assert_array_equal(arrays[name], value)
            assert arrays[name].dtype.kind == value.dtype.kind


def test_the_twin_on_jax_computes_the_same(torch_engine: Any):
    jax, specimen = load_engine("jax"), next(one for one in SPECIMENS if one.name == "PPOAdapter")
    module = specimen.build()
    randomise(module)
    made, x = twin(module, jax), sample(specimen).astype(np.float32)
    found = jax.draft(lambda x: made(made.initialize_state(B), x).output)(jax.asarray(x))
    expected = module(module.initialize_state(B), torch_engine.asarray(x)).output
    for one, other in zip(tree_leaves(found), tree_leaves(expected), strict=True):
        np.testing.assert_allclose(jax.to_numpy(one), torch_engine.to_numpy(other), rtol=1e-5, atol=1e-5)


def test_a_twin_has_arrays_of_its_own(engine: Any):
    module = mp.Dense(2, 2, mp.Rngs(0))
    made = twin(module, engine)
    before = mp.to_portable(made)["kernel"]
    mp.load_portable(module, {name: value + 1 for name, value in mp.to_portable(module).items()})
    np.testing.assert_array_equal(mp.to_portable(made)["kernel"], before)


def test_a_layer_in_two_places_stays_one(engine: Any):
    layer = mp.Dense(2, 2, mp.Rngs(0))
    made = twin(mp.Sequential([layer, layer]), load_engine("numpy"))
    assert made[0] is made[1]
    assert list(mp.to_portable(made)) == ["layers.0.bias", "layers.0.kernel"]


def test_frozen_layers_and_modes_stay(engine: Any):
    actor = mp.Sequential([mp.Dense(2, 4, mp.Rngs(0)), mp.NormalTanhSampler(mp.Rngs(1))])
    net = mp.PPOAdapter(action=actor, value=mp.Dense(2, 1, mp.Rngs(2)))
    mp.freeze(actor)
    net.eval()
    other = load_engine("torch" if engine.name == "jax" else "jax")
    made = twin(net, other)
    trained = [name for name, _ in other.named_params(other.split(made).params)]
    assert len(trained) == 2
    assert all(name.startswith("value.") for name in trained)
    assert made.action[1].deterministic


def test_keys_become_words_of_the_engine_and_counters_do_not(torch_engine: Any):
    class Counted(mp.StatefulModule):
        def __init__(self) -> None:
            self.key = mp.Variable(mp.Rngs(0).key())
            self.count = mp.Variable(np.zeros(2, np.int32))

        def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> mp.StatefulModuleOutput:
            return mp.StatefulModuleOutput(state, x)

    made = twin(Counted(), load_engine("jax"))
    assert str(made.key[...].dtype) == "uint32"
    assert str(made.count[...].dtype) == "int32"


def test_a_layer_of_the_framework_is_refused(torch_engine: Any):
    import torch

    for layer in (torch.nn.Bilinear(2, 2, 2), torch.nn.Linear(2, 2)):
        with pytest.raises(TypeError, match=r"Lift has no twin: it holds a (Bilinear|Linear)"):
            twin(mp.Lift(layer), load_engine("jax"))


def test_an_array_shared_by_two_layers_is_refused(torch_engine: Any):
    net = mp.Sequential([mp.Dense(2, 2, mp.Rngs(0)), mp.Dense(2, 2, mp.Rngs(1))])
    net[1].core.weight = net[0].core.weight
    with pytest.raises(ValueError, match=r"share an array.*layers\.1\.kernel"):
        twin(net, load_engine("jax"))
