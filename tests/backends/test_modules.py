"""Lists and dicts of modules and Params are tracked on both engines, in the order and under the keys given."""

import numpy as np
import pytest
import torch
from flax import nnx
from support import each_engine, gradients, to_numpy, total

import multippo as mp
from multippo.networks.types import StatefulModule, StatefulModuleOutput

every_engine = pytest.mark.parametrize("engine", ["jax", "torch", "numpy"], indirect=True)
KEYS = ("keys", "a.b", "0", "forward", "items", "values", "z", "a", "update", "state_dict", "order", "__len__", "")


class Many(StatefulModule):
    """Adds up what everything it holds makes of the input."""

    def __init__(self):
        rngs = mp.Rngs(0)
        self.listed = [mp.Dense(2, 2, rngs) for _ in range(12)]
        self.keyed = {key: mp.Dense(2, 2, rngs) for key in KEYS}
        self.params = (mp.Param(np.ones(2)), mp.Param(2 * np.ones(2)))
        self.late = {}
        self.late["one"] = mp.Param(np.ones(2))

    def __call__(self, state, x, rollout_extras=None):
        out = x
        for layer in (*self.listed, *(self.keyed[key] for key in KEYS)):
            out = 0.5 * out + layer((), out).output
        return StatefulModuleOutput(state, out * (self.params[0][...] + self.params[1][...] * self.late["one"][...]))


def test_engines_agree_on_every_name_and_on_the_output():
    nets = each_engine(Many)
    with mp.use_backend("numpy"):
        nets["numpy"] = Many()
    names = {name: list(mp.to_portable(net)) for name, net in nets.items()}
    assert names["jax"] == names["torch"] == names["numpy"]
    assert {"listed.11.kernel", "keyed.keys.kernel", "keyed.a.b.bias", "params.1", "late.one"} <= set(names["jax"])
    outs = {name: to_numpy(net((), net.zeros((3, 2)) + 1).output) for name, net in nets.items()}
    for name in ("torch", "numpy"):
        np.testing.assert_allclose(outs[name], outs["jax"], rtol=1e-5)


@every_engine
def test_a_dict_of_children_is_a_mapping_in_the_order_given(engine):
    keyed = Many().keyed
    assert tuple(keyed) == tuple(keyed.keys()) == KEYS
    assert [key for key, _ in keyed.items()] == list(KEYS)
    assert all(one is other for one, other in zip(keyed.values(), (keyed[key] for key in KEYS), strict=True))
    assert len(keyed) == len(KEYS) and "a.b" in keyed and "b" not in keyed
    assert keyed.get("b") is None
    with pytest.raises(KeyError):
        keyed["b"]


@every_engine
def test_keys_need_not_be_strings_but_must_differ_as_such(engine):
    net = Many()
    net.numbered = {1: mp.Dense(2, 2, mp.Rngs(0)), 0: mp.Dense(2, 2, mp.Rngs(1))}
    assert tuple(net.numbered) == (1, 0)
    assert "numbered.1.kernel" in mp.to_portable(net)
    with pytest.raises(ValueError, match="The key '1' would be the same as another one"):
        net.both = {1: mp.Dense(2, 2, mp.Rngs(0)), "1": mp.Dense(2, 2, mp.Rngs(0))}


@every_engine
@pytest.mark.parametrize("other", [None, np.ones(2)])
def test_modules_mixed_with_other_things_are_refused(engine, other):
    net = Many()
    with pytest.raises(TypeError, match=f"holds a {type(other).__name__}.*expected modules, Params and Variables only"):
        net.mixed = [mp.Dense(2, 2, mp.Rngs(0)), other]
    with pytest.raises(TypeError, match=f"holds a {type(other).__name__}"):
        net.mixed = {"a": {"b": mp.Dense(2, 2, mp.Rngs(0)), "c": other}}


class Late(StatefulModule):
    """Given its layers after it was made."""

    def __init__(self):
        self.layers = []
        self.keyed = {}
        self.seen = []

    def __call__(self, state, x, rollout_extras=None):
        for layer in (*self.layers, *self.keyed.values()):
            x = layer((), x).output
        return StatefulModuleOutput(state, x)


@pytest.mark.parametrize("backend", ["jax", "torch", "numpy"])
def test_what_an_empty_list_gets_later_is_tracked_at_the_first_use(backend):
    with mp.use_backend(backend) as engine:
        late, rngs = Late(), mp.Rngs(0)
        net = mp.Sequential([late])
        late.layers.append(mp.Dense(2, 2, rngs))
        late.keyed["one"] = mp.Dense(2, 2, rngs)
        late.seen.append(3)  # a list of other things stays one
        names = [f"layers.0.{held}.{part}" for held in ("keyed.one", "layers.0") for part in ("bias", "kernel")]
        assert list(mp.to_portable(net)) == names and late.seen == [3]
        assert [name for name, _ in engine.children(late)] == ["keyed.one", "layers.0"]
        late.layers.append(mp.Dense(2, 2, rngs))
        assert len(mp.to_portable(net)) == 6


@pytest.mark.parametrize("first", [None, ()])
def test_an_attribute_may_become_a_module_a_param_or_an_array(engine, first):
    class Filled(StatefulModule):
        def __init__(self):
            self.head, self.scale, self.table = first, first, first
            self.head, self.scale = mp.Dense(2, 2, mp.Rngs(0)), mp.Param(np.ones(2))
            self.table = self.zeros((2,))
            self.gone = mp.Dense(2, 2, mp.Rngs(0))
            self.gone = first

        def __call__(self, state, x, rollout_extras=None):
            return StatefulModuleOutput(state, self.scale[...] * self.head((), x).output + self.table)

    net = Filled()
    assert list(mp.to_portable(net)) == ["head.bias", "head.kernel", "scale"] and net.gone == first
    found = gradients(net, lambda net: total(net.xp, net((), net.zeros((3, 2)) + 1).output))
    assert len(found) == 3 and all(gradient.all() for gradient in found.values())


def foreign(backend):
    """A layer of multippo's, a Param, and a layer of the framework's own."""
    with mp.use_backend(backend):
        native = torch.nn.Linear(2, 2) if backend == "torch" else nnx.Linear(2, 2, rngs=nnx.Rngs(0))
        return {"Dense": mp.Dense(2, 2, mp.Rngs(0)), "Param": mp.Param(np.ones(2)), "Linear": native}


@pytest.mark.parametrize("kind", ["Dense", "Param", "Linear"])
@pytest.mark.parametrize(("backend", "other"), [("jax", "torch"), ("torch", "jax"), ("numpy", "torch")])
def test_what_is_of_another_engine_is_refused_by_name(backend, other, kind):
    held = foreign(other)[kind]
    told = f"is a .*{kind} of .*; expected one of engine {backend}"
    with mp.use_backend(backend):
        late = Late()
        with pytest.raises(TypeError, match=rf"^Late\.part {told}"):
            late.part = held
        with pytest.raises(TypeError, match=rf"^Late\.part\[0\]\['a'\] {told}"):
            late.part = [{"a": held}]
        late.layers.append(held)
        with pytest.raises(TypeError, match=rf"^Late\.layers\[0\] {told}"):
            mp.to_portable(late)
