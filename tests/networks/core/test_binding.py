"""A neutral class becomes an engine's own when instantiated; Params and Variables: what is read stays as it was."""

import copy
import re

import numpy as np
import pytest
import torch
from flax import nnx
from support import to_numpy

import multippo as mp
from multippo.backends.api import OptimizerConfig
from multippo.backends.attributes import RESERVED as RESERVED_NAMES
from multippo.networks.types import StatefulModule, StatefulModuleOutput

NATIVE = {"jax": nnx.Module, "torch": torch.nn.Module}


class Integrator(StatefulModule):
    """The whole of a user's module: 20 lines, no engine named."""

    def __init__(self, size, rngs, leak=0.9):
        super().__init__()
        self.size = size
        self.leak = mp.Param(np.full(size, leak))
        self.steps = mp.Variable(np.zeros(()))
        self.readout = mp.Dense(size, 1, rngs)

    def __call__(self, state, x, rollout_extras=None):
        total = self.leak[...] * state + x
        out = self.readout((), total)
        return StatefulModuleOutput(total, out.output, metrics={"total": self.xp.sum(total, axis=-1)})

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, self.size))

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state)

    def update_statistics(self, rollout_extras, valid=None):
        self.steps[...] = self.steps[...] + 1


def test_an_instance_is_of_the_neutral_and_of_the_native_class(engine):
    net = mp.Sequential([mp.Dense(2, 3, mp.Rngs(0)), Integrator(3, mp.Rngs(1))])
    assert isinstance(net, mp.Sequential) and isinstance(net, NATIVE[engine.name])
    assert isinstance(net[1], Integrator) and isinstance(net[1], mp.StatefulModule)
    assert not isinstance(net, mp.Parallel)
    assert type(net).__name__ == "Sequential"


def test_a_users_class_computes_what_it_says(engine):
    net = Integrator(2, mp.Rngs(0), leak=0.5)
    state = net.initialize_state(1)
    for _ in range(3):
        out = net(state, engine.asarray(np.asarray([[4.0, 8.0]], np.float32)))
        state = out.next_state
    # 4 -> 0.5 * 4 + 4 = 6 -> 0.5 * 6 + 4 = 7; the second feature is twice that.
    np.testing.assert_allclose(to_numpy(state), [[7.0, 14.0]])
    np.testing.assert_allclose(to_numpy(out.metrics["total"]), [21.0])
    assert out.output.shape == (1, 1)


def test_a_constructor_may_but_need_not_call_its_parents(engine):
    class Bare(StatefulModule):
        def __init__(self):
            self.layer = mp.Dense(1, 1, mp.Rngs(0))

        def __call__(self, state, x, rollout_extras=None):
            return self.layer(state, x)

    class Polite(Bare):
        def __init__(self):
            super().__init__()
            self.second = mp.Dense(1, 1, mp.Rngs(0))

    assert sorted(mp.to_portable(Bare())) == ["layer.bias", "layer.kernel"]
    assert len(mp.to_portable(Polite())) == 4
    assert Polite()((), engine.zeros((2, 1))).output.shape == (2, 1)


def test_a_class_that_does_not_say_how_to_call_it_is_refused(engine):
    class Silent(StatefulModule):
        pass

    with pytest.raises(TypeError, match="Silent is abstract: it must define __call__"):
        Silent()


def test_a_class_that_overrides_call_alone_gets_the_default_unroll():
    class Mine(mp.LSTM):
        def __call__(self, state, x, rollout_extras=None):
            return super().__call__(state, x, rollout_extras)

    class Both(mp.LSTM):
        def __call__(self, state, x, rollout_extras=None):
            return super().__call__(state, x, rollout_extras)

        def unroll(self, state, xs, done, rollout_extras=None):
            return super().unroll(state, xs, done, rollout_extras)

    class Neither(mp.LSTM):
        pass

    assert Mine.unroll is StatefulModule.unroll
    assert Both.unroll is not StatefulModule.unroll
    assert Neither.unroll is mp.LSTM.unroll


@pytest.mark.parametrize("name", ["engine", "xp", "random"])
def test_names_that_binding_sets_are_refused_where_the_class_is_written(name):
    with pytest.raises(TypeError, match=f"Greedy.{name} is not possible: multippo sets that name"):
        type(mp.StatefulModule)("Greedy", (StatefulModule,), {name: 3, "__qualname__": "Greedy"})


def test_every_public_name_of_the_frameworks_modules_is_known():
    import torch
    from flax import nnx

    for native in (torch.nn.Module, nnx.Module):
        public = {name for name in dir(native) if not name.startswith("_")}
        assert public - {"extra_repr"} <= set(RESERVED_NAMES), native


def test_copies_are_independent(engine):
    net = mp.Sequential([Integrator(2, mp.Rngs(0)), mp.Dense(1, 1, mp.Rngs(1))])
    twin = copy.deepcopy(net)
    before = to_numpy(twin[0].leak[...]).copy()
    net[0].leak[...] = net[0].leak[...] + 1
    np.testing.assert_array_equal(to_numpy(twin[0].leak[...]), before)
    assert twin.engine is net.engine and type(twin) is type(net)
    x = engine.asarray(np.ones((3, 2), np.float32))
    assert twin(twin.initialize_state(3), x).output.shape == (3, 1)


@pytest.mark.parametrize("name", ["engine", "parameters", "forward", "half", "sow"])
def test_an_attribute_may_not_hide_what_binding_or_either_framework_needs(torch_engine, name):
    class Hiding(StatefulModule):
        def __init__(self):
            setattr(self, name, 3)

        def __call__(self, state, x, rollout_extras=None): ...

    with pytest.raises(TypeError, match=rf"Hiding.{name} can't be set"):
        Hiding()


RESERVED = [
    *(("torch", name) for name in ("_parameters", "training", "forward", "to", "sow")),
    *(("jax", name) for name in ("_pytree__nodes", "iter_modules", "forward", "train", "_setattr")),
]


@pytest.mark.parametrize(("engine", "name"), RESERVED, indirect=["engine"])
def test_nor_may_a_class_or_its_parent(engine, name):
    meta = type(mp.StatefulModule)
    parent = meta("Parent", (StatefulModule,), {name: 3, "__call__": lambda *a: None, "__qualname__": "Parent"})
    with pytest.raises(TypeError, match=f"Parent.{name} is not possible: every (flax|torch)"):
        meta("Child", (parent,), {})()


KINDS = pytest.mark.parametrize("kind", [mp.Param, mp.Variable])


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


@pytest.mark.parametrize("name", ["torch", "numpy"])  # JAX's own does arithmetic
@KINDS
def test_arithmetic_on_one_says_how_to_read_it(name, kind):
    with mp.use_backend(name) as engine:
        weight, x = kind(np.ones(3)), engine.asarray(np.ones((2, 3)))
        for run in (lambda: x * weight, lambda: 1.0 - weight, lambda: x @ weight, lambda: -weight):
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
    lstm = mp.LSTM(3, 2, rngs)
    for layer in (mp.Dense(3, 2, rngs), lstm, mp.Scale(2.0)):
        with pytest.raises(TypeError, match=r"got a numpy.ndarray; expected .* such as network.engine.asarray\(x\)"):
            layer(layer.initialize_state(2), x)


@KINDS
def test_functions_of_torch_say_how_to_read_it(torch_engine, kind):
    xp, weight = torch_engine.xp, kind(np.ones(3))
    for name, run in (
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
            (mp.Param, [[1.0, 2.0], [3.0]], "a list, not an array of numbers: setting an array"),
            (mp.Param, mp.Variable(np.ones(2)), "a Variable itself; read its value first: Param(other[...])"),
            (mp.Param, [1.0, 2j], "numbers of type complex128; expected real ones"),
        ):
            with pytest.raises(TypeError, match=re.escape(f"{kind.__name__} got {received}")):
                kind(given)
        assert "complex" in str(mp.Variable(np.ones(2, np.complex64))[...].dtype)
