"""Params and Variables: what is read stays as it was read."""

import re

import numpy as np
import pytest
from support import to_numpy

import multippo as mp
from multippo.backends.api import OptimizerConfig

KINDS = pytest.mark.parametrize("kind", [mp.Param, mp.Variable])


@KINDS
def test_an_instance_is_of_its_kind_alone(engine, kind):
    variable = kind(np.ones(2))
    assert isinstance(variable, kind)
    assert not isinstance(variable, ({mp.Param, mp.Variable} - {kind}).pop())


@KINDS
def test_a_value_read_is_not_changed_by_a_later_write(engine, kind):
    variable = kind(np.asarray([1.0, 2.0]))
    whole, part = variable[...], variable[0]
    variable[...] = engine.asarray(np.asarray([5.0, 6.0], np.float32))
    assert to_numpy(whole).tolist() == [1.0, 2.0] and to_numpy(part) == 1.0
    assert to_numpy(variable[...]).tolist() == [5.0, 6.0]


@KINDS
def test_the_value_given_is_copied(engine, kind):
    given = np.zeros(2, np.float32)
    variable = kind(given)
    native = kind(variable[...])
    given[:] = 7.0
    variable[...] = variable[...] + 1
    assert to_numpy(variable[...]).tolist() == [1.0, 1.0]
    assert to_numpy(native[...]).tolist() == [0.0, 0.0]


@KINDS
def test_floating_point_values_take_the_engines_type_and_integers_keep_theirs(engine, precision, kind):
    assert precision in str(kind(np.float64(0.5))[...].dtype)
    assert precision in str(kind([1.0, 2.0])[...].dtype)
    if kind is mp.Variable:
        assert "int32" in str(kind(np.zeros(2, np.int32))[...].dtype)
        assert "bool" in str(kind(np.zeros(2, bool))[...].dtype)


class Scaled(mp.StatefulModule):
    def __init__(self):
        self.scale = mp.Param(np.asarray([2.0, 3.0]))
        self.offset = mp.Variable(np.asarray([1.0, 1.0]))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.scale[...] * x + self.offset[...])


def test_an_optimiser_step_does_not_change_what_was_read(engine):
    net = Scaled()
    read = net.scale[...]
    parts, optimizer = engine.split(net), engine.optimizer(OptimizerConfig())

    def loss(params, variables):
        out = engine.merge(parts.definition, params, variables)((), engine.zeros((1, 2)) + 1).output
        return engine.xp.sum(out), None

    _, grads = engine.value_and_grad(loss)(parts.params, parts.variables)
    state = optimizer.init(parts.params)
    no = engine.asarray(np.asarray(False))
    rate = engine.asarray(np.asarray(0.1, np.float32))
    params, _, _ = optimizer.step(parts.params, grads, state, rate, no)
    engine.update_module(net, params, parts.variables)
    assert to_numpy(read).tolist() == [2.0, 3.0]
    # Adam's first step is the learning rate times the sign of the gradient (both 1), up to epsilon.
    np.testing.assert_allclose(to_numpy(net.scale[...]), [1.9, 2.9], atol=1e-4)
    assert to_numpy(net.offset[...]).tolist() == [1.0, 1.0]


@KINDS
def test_arrays_of_numpy_can_be_written(engine, kind):
    variable = kind(np.zeros((2, 2)))
    variable[...] = np.asarray([[1.0, 2.0], [3.0, 4.0]])
    variable[1] = np.asarray([5, 6])
    assert to_numpy(variable[...]).tolist() == [[1.0, 2.0], [5.0, 6.0]]


@pytest.mark.parametrize("name", ["torch", "numpy"])  # JAX's own does arithmetic
@KINDS
def test_arithmetic_on_one_says_how_to_read_it(name, kind):
    with mp.use_backend(name) as engine:
        weight, x = kind(np.ones(3)), engine.asarray(np.ones((2, 3)))
        for run in (
            lambda: x * weight,
            lambda: weight * x,
            lambda: x + weight,
            lambda: 1.0 - weight,
            lambda: x @ weight,
            lambda: x / weight,
            lambda: -weight,
            lambda: weight > 0,
        ):
            with pytest.raises(TypeError, match=rf"got a {kind.__name__} itself; read its value first: self.weight\["):
                run()


@pytest.mark.parametrize("name", ["jax", "torch", "numpy"])
def test_a_param_of_integers_is_one_of_numbers_that_can_be_trained(name):
    with mp.use_backend(name) as engine:
        for given in ([1, 2], np.asarray([1, 2], np.uint8), np.asarray([True, False])):
            held = mp.Param(given)[...]
            assert held.dtype == engine.float_dtype
            assert to_numpy(held).tolist() == [float(given[0]), float(given[1])]
        assert "int" in str(mp.Variable([1, 2])[...].dtype)


def test_layers_given_arrays_of_numpy(torch_engine):
    x, rngs = np.ones((2, 3), np.float64), mp.Rngs(0)
    lstm, gru = mp.LSTM(3, 2, rngs), mp.GRU(3, 2, rngs)
    for run in (
        lambda: mp.Dense(3, 2, rngs)((), x),
        lambda: lstm(lstm.initialize_state(2), x),
        lambda: gru(gru.initialize_state(2), x),
        lambda: mp.LayerNorm(3)((), x),
        lambda: mp.Scale(2.0)((), x),
    ):
        with pytest.raises(TypeError, match=r"got a numpy.ndarray; expected .* such as network.engine.asarray\(x\)"):
            run()


@KINDS
def test_functions_of_torch_say_how_to_read_it(torch_engine, kind):
    xp, weight = torch_engine.xp, kind(np.ones(3))
    for name, run in (
        ("exp", lambda: xp.exp(weight)),
        ("sum", lambda: xp.sum(weight)),
        ("matmul", lambda: xp.matmul(torch_engine.zeros((2, 3)), weight)),
        ("stack", lambda: xp.stack([weight[...], weight])),
    ):
        with pytest.raises(
            TypeError, match=rf"^{name} got a {kind.__name__} itself; read its value first: self.weight\["
        ):
            run()


@pytest.mark.parametrize("name", ["jax", "torch", "numpy"])
def test_what_is_no_array_of_numbers(name):
    with mp.use_backend(name):
        for kind, given, received in (
            (mp.Param, "abc", "a str of <U3;"),
            (mp.Variable, None, "a NoneType of object;"),
            (mp.Param, [1, "a"], "a list of <U21;"),
            (mp.Variable, np.asarray(["a"]), "a ndarray of <U1;"),
            (mp.Param, [[1.0, 2.0], [3.0]], "a list, not an array of numbers: setting an array"),
            (mp.Param, mp.Variable(np.ones(2)), "a Variable itself; read its value first: Param(other[...])"),
            (mp.Variable, mp.Param(np.ones(2)), "a Param itself; read its value first: Variable(other[...])"),
            (mp.Param, [1.0, 2j], "numbers of type complex128; expected real ones"),
        ):
            with pytest.raises(TypeError, match=re.escape(f"{kind.__name__} got {received}")):
                kind(given)
        assert "complex" in str(mp.Variable(np.ones(2, np.complex64))[...].dtype)
