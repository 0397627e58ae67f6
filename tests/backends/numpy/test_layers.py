"""The reference's layers: activations, types, copies, and layers of a user's own; conformance has their numbers."""

import numpy as np
import pytest

import multippo as mp
from multippo.backends.numpy.modules import Module


@pytest.fixture(autouse=True)
def engine():
    with mp.use_backend("numpy") as active:
        yield active


def test_a_linear_layer_takes_any_number_type(engine):
    kernel, bias = np.asarray([[1.0, 2.0], [3.0, 4.0]]), np.asarray([10.0, 20.0])
    # [1 1] @ [[1 2] [3 4]] = [4 6]
    for dtype in ("float32", "uint8", "int64"):
        y = engine.linear(kernel, bias)(np.ones((1, 2), dtype))
        assert y.tolist() == [[14.0, 26.0]] and y.dtype == np.float64
    assert engine.linear(kernel, None)(np.ones((3, 1, 2))).tolist() == [[[4.0, 6.0]]] * 3


def test_a_layer_of_the_users_own_is_lifted(engine):
    class Gain(Module):
        def __init__(self):
            self.gain = mp.Param(np.asarray([2.0]))

        def __call__(self, x):
            return x * self.gain[...]

    net = mp.Sequential([mp.Lift(Gain())])
    assert net([()], np.ones((1, 1))).output.tolist() == [[2.0]]
    assert list(mp.to_portable(net)) == ["layers.0.gain"]


def test_what_is_no_layer_or_keeps_a_state_is_not_lifted(engine):
    class Counting(Module):
        def __init__(self):
            self.calls = mp.Variable(np.zeros(()))

    with pytest.raises(TypeError, match="Counting with a state of its own, calls, which a call would write"):
        mp.Lift(Counting())
    with mp.use_backend("torch"):
        foreign = mp.Dense(1, 1, mp.Rngs(0)).core
    with pytest.raises(TypeError, match=r"on the engine numpy it takes a multippo.backends.numpy.modules.Module"):
        mp.Lift(foreign)
