"""Lists of children, modes and copies, which other engines get from their frameworks."""

from __future__ import annotations

import copy

import numpy as np
import pytest

import multippo as mp
from multippo.backends.numpy.modules import Module, ModuleList


@pytest.fixture(autouse=True)
def engine():
    with mp.use_backend("numpy") as active:
        yield active


class Held(mp.StatefulModule):
    def __init__(self):
        self.listed = [mp.Dense(2, 2, mp.Rngs(seed)) for seed in range(3)]
        self.shared = self.listed[1]
        self.sampler = mp.NormalSampler(mp.Rngs(0), action_shape=2)

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.listed[2]((), x).output)


def test_a_child_held_twice_is_one(engine):
    net = Held()
    assert "listed.1.kernel" in mp.to_portable(net) and "shared.kernel" not in mp.to_portable(net)
    mp.load_portable(net, {name: np.zeros_like(value) for name, value in mp.to_portable(net).items()})
    assert not net.shared((), np.ones((1, 2))).output.any()
    assert len(engine.split(net).params) == len({id(value) for value in engine.split(net).params.values()})


def test_a_list_of_children_is_a_list():
    listed, fresh = (net := Held()).listed, mp.Dense(2, 2, mp.Rngs(9))
    assert isinstance(listed, ModuleList) and len(listed) == 3
    first, second, last = listed
    assert listed[1:3] == [second, last] and listed[-1] is last
    listed[-1] = fresh
    listed.insert(0, last)
    assert list(listed) == [last, first, second, fresh]
    del listed[0]
    listed.append(last)
    assert listed[0] is first and listed.index(last) == 3 and "listed.3.kernel" in mp.to_portable(net)


def test_names_that_are_taken_are_refused():
    with pytest.raises(TypeError, match=r"Held\.xp can't be set"):
        Held().xp = np
    with pytest.raises(TypeError, match=r"Held\.eval can't be set"):
        Held().eval = mp.Dense(1, 1, mp.Rngs(0))

    class Trains(mp.StatefulModule):
        def train(self):
            """Hides what every module has."""

        def __call__(self, state, x, rollout_extras=None):
            return mp.StatefulModuleOutput(state, x)

    with pytest.raises(TypeError, match=r"Trains\.train is not possible: every multippo module has something"):
        Trains()


def test_eval_and_train_reach_every_sampler():
    net = Held()
    assert net.eval() is net and net.sampler.deterministic
    assert not net.train().sampler.deterministic


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
