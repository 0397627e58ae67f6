"""The reference engine: what it refuses, and what others get from their frameworks; conformance has its numbers."""

import copy

import numpy as np
import pytest

import multippo as mp
from multippo.backends.api import OptimizerConfig
from multippo.backends.numpy.modules import Module, ModuleList
from multippo.testing import Clock, Spy, TableNet


@pytest.fixture(autouse=True)
def engine():
    with mp.use_backend("numpy") as active:
        yield active


def test_double_precision_alone(engine):
    with engine.precision("float64"):
        assert mp.Param(np.ones(2, np.float32))[...].dtype == np.float64
    assert engine.zeros((2, 1)).dtype == engine.float_dtype == np.float64
    with pytest.raises(ValueError, match=r"'float32'.*not possible on the numpy backend.*float64 alone; use jax or to"):
        engine.precision("float32")


def test_what_needs_gradients_is_refused_by_name(engine):
    for name, call in (
        ("value_and_grad", lambda: engine.value_and_grad(lambda params: (params, None))),
        ("optimizer", lambda: engine.optimizer(OptimizerConfig())),
    ):
        with pytest.raises(NotImplementedError, match=f"{name} is not possible.*no gradients. Take jax or torch"):
            call()


def test_training_is_refused_before_the_first_step(engine):
    env = Spy(Clock(3, num_envs=2))
    with pytest.raises(ValueError, match=r"The numpy backend can't train: it has no gradients.*Train on jax or torch"):
        mp.train_ppo(env, TableNet([0.0] * 4))
    assert not env.actions


def test_what_was_read_is_not_changed_by_a_write(engine):
    param = mp.Param([1.0, 2.0])
    before, first = param[...], param[0]
    param[...] = [3.0, 4.0]
    param[1] = 5.0
    assert before.tolist() == [1.0, 2.0] and first == 1.0 and param[...].tolist() == [3.0, 5.0]
    assert isinstance(param, mp.Param) and not isinstance(param, mp.Variable)


def test_a_linear_layer_takes_any_number_type(engine):
    kernel, bias = np.asarray([[1.0, 2.0], [3.0, 4.0]]), np.asarray([10.0, 20.0])
    # [1 1] @ [[1 2] [3 4]] = [4 6]
    for dtype in ("float32", "uint8", "int64"):
        y = engine.linear(kernel, bias)(np.ones((1, 2), dtype))
        assert y.tolist() == [[14.0, 26.0]] and y.dtype == np.float64
    assert engine.linear(kernel, None)(np.ones((3, 1, 2))).tolist() == [[[4.0, 6.0]]] * 3


def test_what_is_no_layer_or_keeps_a_state_is_not_lifted(engine):
    class Counting(Module):
        def __init__(self):
            self.calls = mp.Variable(np.zeros(()))

    with pytest.raises(TypeError, match="Counting with a state of its own, calls, which a call would write"):
        mp.Lift(Counting())


class Held(mp.StatefulModule):
    def __init__(self):
        self.listed = [mp.Dense(2, 2, mp.Rngs(seed)) for seed in range(3)]
        self.shared = self.listed[1]

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
    _, second, last = listed
    assert isinstance(listed, ModuleList) and listed[1:3] == [second, last]
    listed[-1] = fresh
    listed.insert(0, last)
    del listed[1]
    assert list(listed) == [last, second, fresh] and "listed.2.kernel" in mp.to_portable(net)


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
