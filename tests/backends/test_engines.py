"""What the contract of ``backends/api.py`` says of arrays and transformations, on each engine."""

import jax.numpy as jnp
import numpy as np
import pytest
from support import to_numpy

import multippo as mp
from multippo.backends.api import OptimizerConfig


def array(engine, *values):
    return engine.asarray(np.asarray(values, str(engine.float_dtype).rpartition(".")[2].strip("'>")))


def test_a_write_of_torchs_does_not_reach_jaxs_array(torch_engine):
    observed = jnp.zeros(3000)  # small arrays are copied by themselves
    torch_engine.from_jax({"obs": observed})["obs"].add_(1)
    assert not observed.any()


@pytest.mark.parametrize("dtype", ["float32", "int32", "uint8", "bool"])
def test_types_are_kept(engine, dtype):
    assert str(engine.to_numpy(engine.asarray(np.ones(2, dtype))).dtype) == dtype


def test_python_numbers_take_the_engines_type(engine, precision):
    assert precision in str(engine.asarray([0.5, 1.5]).dtype)


@pytest.mark.parametrize("engine", ["jax", "torch", "numpy"], indirect=True)
def test_scan_by_hand(engine):
    def body(carry, x):
        return carry + x["a"], {"doubled": 2 * x["a"], "before": carry}

    carry, ys = engine.scan(body, array(engine, 0.0), {"a": array(engine, 1.0, 2.0, 3.0)[:, None]}, 3)
    assert to_numpy(carry).tolist() == [6.0]
    assert to_numpy(ys["doubled"])[:, 0].tolist() == [2.0, 4.0, 6.0]
    assert to_numpy(ys["before"])[:, 0].tolist() == [0.0, 1.0, 3.0]


def test_scan_without_inputs(engine):
    carry, ys = engine.scan(lambda carry, _: (carry * 2, carry), array(engine, 1.0), None, 4)
    assert to_numpy(carry).tolist() == [16.0] and to_numpy(ys)[:, 0].tolist() == [1.0, 2.0, 4.0, 8.0]


@pytest.mark.parametrize("engine", ["jax", "torch", "numpy"], indirect=True)
@pytest.mark.parametrize("holds", [True, False])
def test_cond_takes_one_branch(engine, holds):
    one, two = array(engine, 1.0), array(engine, 2.0)
    found = engine.cond(engine.asarray(np.asarray(holds)), lambda: {"x": one}, lambda: {"x": two})
    assert to_numpy(found["x"]).tolist() == [1.0 if holds else 2.0]


@pytest.mark.parametrize("engine", ["jax", "torch", "numpy"], indirect=True)
@pytest.mark.nightly_if("jax")
def test_a_snapshot_is_not_written_to(engine):
    net = mp.Normalizer(1)
    before = engine.snapshot(engine.split(net).variables)
    net.update_statistics(array(engine, 1.0, 3.0)[:, None, None])
    assert not any(to_numpy(leaf).any() for leaf in _leaves(engine, before))
    assert net.count == 2


def test_unused_parameters_have_a_gradient_of_zero_and_the_rest_is_passed_through(engine):
    net = mp.Parallel(used=mp.Dense(1, 1, mp.Rngs(0)), unused=mp.Dense(1, 1, mp.Rngs(0)))
    parts = engine.split(net)

    def loss(params, variables, x):
        out = engine.merge(parts.definition, params, variables).components["used"]((), x)
        return engine.xp.sum(out.output), {"x": x, "constant": 0.0}

    (value, aux), grads = engine.value_and_grad(loss)(parts.params, parts.variables, array(engine, 3.0)[:, None])
    found = {name: float(to_numpy(grad).ravel()[0]) for name, grad in engine.named_params(grads)}
    assert sorted(found.values()) == [0.0, 0.0, 1.0, 3.0]
    assert [found[name] for name in found if "unused" in name] == [0.0, 0.0]
    assert to_numpy(value).shape == () and aux["constant"] == 0.0


@pytest.mark.parametrize("engine", ["jax", "torch", "numpy"], indirect=True)
@pytest.mark.parametrize("skip", [True, False])
def test_statistics_are_left_alone_where_skip_holds(engine, skip):
    net = mp.Normalizer(1)
    parts = engine.split(net)
    x, skip_array = array(engine, 5.0)[None, None], engine.asarray(np.asarray(skip))
    after = engine.update_statistics(parts.definition, parts.params, parts.variables, x, None, skip_array)
    engine.update_module(net, parts.params, after)
    assert net.count == (0 if skip else 1)


def test_a_draft_computes_what_the_function_does(engine):
    x = array(engine, 1.0, 2.0)
    drafted = engine.draft(lambda x: {"y": x * x + 1})
    np.testing.assert_array_equal(engine.to_numpy(drafted(x)["y"]), [2.0, 5.0])


CONFIG = OptimizerConfig(adam_epsilon=1e-5, weight_decay=0.1, gradient_clipping=1.0)


class Slope(mp.StatefulModule):
    """A parameter whose gradient is what the input says."""

    def __init__(self):
        self.w = mp.Param(np.asarray([1.0, -2.0]))
        self.b = mp.Param(np.asarray([0.5]))

    def __call__(self, state, x, rollout_extras=None):
        return mp.StatefulModuleOutput(state, self.xp.sum(self.w[...] * x[:2]) + self.xp.sum(self.b[...] * x[2:]))


def steps(engine, inputs, skips=None, config=CONFIG):
    """Parameters after one optimiser step per input, and the norms."""
    net, optimizer = Slope(), engine.optimizer(config)
    parts = engine.split(net)
    params, state, norms = parts.params, optimizer.init(parts.params), []
    loss = lambda p, v, x: (engine.merge(parts.definition, p, v)((), x).output, None)  # noqa: E731
    for x, skip in zip(inputs, skips or [False] * len(inputs), strict=True):
        _, grads = engine.value_and_grad(loss)(params, parts.variables, array(engine, *x))
        rate, skip = array(engine, 0.1)[0], engine.asarray(np.asarray(skip))
        params, state, norm = optimizer.step(params, grads, state, rate, skip)
        norms.append(float(to_numpy(norm)))
    engine.update_module(net, params, parts.variables)
    return np.concatenate([to_numpy(net.w[...]), to_numpy(net.b[...])]), norms, (optimizer, state)


INPUTS = [[3.0, 4.0, 0.0], [0.1, -0.2, 0.05], [-2.0, 0.0, 9.0]]


@pytest.mark.usefixtures("float64")
def test_norms_are_those_before_clipping_and_without_a_gradient_the_decay_alone_moves(engine):
    # sqrt(9 + 16), and just what the clip allows; Adam's 0 / sqrt(0) is none, and the decay is 0.1 * 0.1 of each.
    assert steps(engine, [INPUTS[0], [0.6, 0.8, 0.0]])[1] == pytest.approx([5.0, 1.0])
    np.testing.assert_allclose(steps(engine, [[0.0] * 3])[0], [0.99, -1.98, 0.495], rtol=1e-12)


def test_a_step_is_skipped_where_asked_or_where_the_gradient_is_not_finite(engine):
    bad = [[np.nan, 0.0, 0.0], [0.0, np.inf, 0.0], [7.0, 7.0, 7.0]]
    inputs = [INPUTS[0], *bad, INPUTS[1]]
    params, _, _ = steps(engine, inputs, [False, False, False, True, False])
    expected, _, _ = steps(engine, [INPUTS[0], INPUTS[1]])
    np.testing.assert_allclose(params, expected, rtol=1e-6)


def _leaves(engine, tree):
    return [leaf for _, leaf in engine.named_params(tree)] if engine.name == "jax" else list(tree.values())
