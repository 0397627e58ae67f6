"""Names, layouts and lists of children, which other engines get from their frameworks."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from support import each_engine

import multippo as mp
from multippo.backends.numpy.modules import Module, ModuleList


@pytest.fixture(autouse=True)
def engine():
    with mp.use_backend("numpy") as active:
        yield active


class Many(mp.StatefulModule):
    def __init__(self):
        rngs = mp.Rngs(0)
        self.listed = [mp.Dense(2, 2, rngs) for _ in range(12)]
        self.keyed = {key: mp.Dense(2, 2, rngs) for key in ("keys", "a.b", "0", "train", "items", "z", "a")}
        self.nested = [{"x": [mp.LSTM(2, 3, rngs)]}, {"y": mp.Param(np.ones(2))}, {"z": mp.GRU(2, 3, rngs)}]
        self.image = mp.Conv(1, 2, 3, rngs)
        self.norms = (mp.LayerNorm(2), mp.Normalizer({"b": (2,), "a": (3,)}))
        self.shared = self.listed[3]
        self.late = []
        self.late.append(mp.NormalSampler(rngs, action_shape=2))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.listed[11]((), x).output)


def test_names_shapes_and_values_are_those_of_the_other_engines():
    weights = mp.to_portable(Many())
    for other, net in each_engine(Many).items():
        expected = mp.to_portable(net)
        assert list(weights) == list(expected), other
        for name, value in expected.items():
            np.testing.assert_allclose(weights[name], value, rtol=1e-6, err_msg=f"{other} {name}")


def test_a_child_held_twice_is_one(engine):
    net = Many()
    assert "listed.3.kernel" in mp.to_portable(net) and "shared.kernel" not in mp.to_portable(net)
    mp.load_portable(net, {name: np.zeros_like(value) for name, value in mp.to_portable(net).items()})
    assert not net.shared((), np.ones((1, 2))).output.any()
    assert len(engine.split(net).params) == len({id(value) for value in engine.split(net).params.values()})


def test_a_list_of_children_is_a_list():
    net = Many()
    assert isinstance(net.listed, ModuleList) and len(net.listed) == 12
    first, last, fresh = net.listed[0], net.listed[-1], mp.Dense(2, 2, mp.Rngs(9))
    assert net.listed[1:3] == [net.listed[1], net.listed[2]] and last is net.listed[11]
    net.listed[-1] = fresh
    net.listed.insert(0, last)
    assert [net.listed[0], net.listed[1], net.listed[12]] == [last, first, fresh]
    del net.listed[0]
    net.listed.append(last)
    assert net.listed[0] is first and net.listed.index(last) == 12 and "listed.12.kernel" in mp.to_portable(net)


def test_names_that_are_taken_are_refused():
    with pytest.raises(TypeError, match=r"Many\.xp can't be set"):
        Many().xp = np
    with pytest.raises(TypeError, match=r"Many\.eval can't be set"):
        Many().eval = mp.Dense(1, 1, mp.Rngs(0))

    class Trains(mp.StatefulModule):
        def train(self):
            """Hides what every module has."""

        def __call__(self, state, x, rollout_extras=None):
            return mp.StatefulModuleOutput(state, x)

    with pytest.raises(TypeError, match=r"Trains\.train is not possible: every multippo module has something"):
        Trains()


def test_eval_and_train_reach_every_sampler():
    net = Many()
    assert net.eval() is net and net.late[0].deterministic
    assert not net.train().late[0].deterministic


def test_a_copy_has_arrays_of_its_own(engine):
    net = mp.Sequential([mp.Dense(1, 1, mp.Rngs(0))])
    twin = copy.deepcopy(net)
    mp.load_portable(twin, {name: value + 1 for name, value in mp.to_portable(net).items()})
    assert mp.to_portable(twin)["layers.0.bias"].tolist() == [1.0]
    assert mp.to_portable(net)["layers.0.bias"].tolist() == [0.0]


def test_a_copied_module_shares_its_arrays(engine):
    net = mp.Dense(1, 1, mp.Rngs(0))
    shared = engine.copy_module(net, lambda child: child)
    shared.core.bias[...] = 3.0
    assert mp.to_portable(net)["bias"].tolist() == [3.0]
    assert isinstance(net.core, Module) and type(shared) is type(net)
