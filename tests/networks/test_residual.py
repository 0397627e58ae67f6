"""Residual: the sum, and that state, snapshots, losses, statistics and noise reach the module inside."""

from __future__ import annotations

import numpy as np
import pytest
from support import assert_trees_close, fill_randomly, gradients, to_numpy

import multippo as mp
from multippo.networks.core.unrolling import step_unroll

DONE = np.asarray([[1, 0], [1, 1], [0, 0], [0, 1]], bool)


def inputs(engine, features=3):
    return engine.asarray(np.random.default_rng(0).normal(size=(4, 2, features)).astype(np.float32))


def test_it_adds_the_input(engine):
    net = mp.Residual(mp.Dense(2, 2, mp.Rngs(0)))
    mp.load_portable(net, {"layers.0.kernel": np.asarray([[1.0, 2.0], [3.0, 4.0]]), "layers.0.bias": np.ones(2)})
    out = net(net.initialize_state(1), engine.zeros((1, 2)) + 1)
    # 1 + (1 + 3 + 1) and 1 + (2 + 4 + 1)
    assert to_numpy(out.output).tolist() == [[6.0, 8.0]]


def test_the_carry_is_the_modules(engine):
    inner = mp.GRU(3, 3, mp.Rngs(0), trainable_initial_state=True)
    net = mp.Residual(inner)
    fill_randomly(net)
    xs, done, state = inputs(engine), engine.asarray(DONE), net.initialize_state(2)
    own = inner.unroll(inner.initialize_state(2), xs, done)
    for out in (net.unroll(state, xs, done), step_unroll(net, state, xs, done, None)):
        np.testing.assert_allclose(to_numpy(out.output), to_numpy(xs + own.output), rtol=1e-5, atol=1e-6)
        assert_trees_close(out.next_state, [own.next_state], 1e-5)
    assert_trees_close(net.reset_state(out.next_state), [inner.initialize_state(2)], 1e-6)


@pytest.mark.nightly_if("jax")
def test_statistics_noise_and_losses_are_the_modules(engine):
    inner = mp.Sequential([mp.Normalizer(3), mp.Dropout(0.5, mp.Rngs(0))])
    net = mp.Residual(inner)
    xs, done, state = inputs(engine), engine.asarray(DONE), net.initialize_state(2)
    out = net.unroll(state, xs, done)
    assert_trees_close(net.unroll(state, xs, done, out.rollout_extras).output, out.output, 0.0)
    emitted = net(state, xs[0]).rollout_extras
    assert net.draw_ahead(state, emitted, 4)[0][1].tape.shape == (2, 4, 3)
    net.update_statistics(out.rollout_extras)
    np.testing.assert_allclose(mp.to_portable(net)["layers.0.layers.0.mean"], to_numpy(xs).mean((0, 1)), atol=1e-6)
    net.eval()
    plain = inner.unroll(state[0], xs, done)
    assert_trees_close(net.unroll(state, xs, done).output, xs + plain.output, 1e-6)


def test_the_gradient_goes_both_ways(engine):
    # y = x + w2 (x w1 + b): the first layer is seen through both branches.
    net = mp.Sequential([mp.Dense(1, 1, mp.Rngs(0)), mp.Residual(mp.Dense(1, 1, mp.Rngs(1)))])
    names = ("layers.0.kernel", "layers.0.bias", "layers.1.layers.0.kernel", "layers.1.layers.0.bias")
    shapes = ((1, 1), (1,), (1, 1), (1,))
    values = {name: np.full(shape, 3.0) for name, shape in zip(names, shapes, strict=True)}
    mp.load_portable(net, values)
    found = gradients(net, lambda net: net.xp.sum(net(net.initialize_state(1), engine.zeros((1, 1)) + 2).output))
    # h = 2 * 3 + 3 = 9; dy/dh = 1 + 3 = 4; dh/dkernel = 2.
    assert [found[name].item() for name in names] == [8.0, 4.0, 9.0, 1.0]


def test_what_is_wrong_is_refused(engine):
    with pytest.raises(TypeError, match=r"Residual.layers\[0\] is a function; expected a StatefulModule.*Lift"):
        mp.Residual(lambda x: x)
    net = mp.Residual(mp.Dense(2, 3, mp.Rngs(0)))
    with pytest.raises(ValueError, match=r"input of shape \(4, 2\), .* module made an array of shape \(4, 3\)"):
        net(net.initialize_state(4), engine.zeros((4, 2)))
    wide = mp.Residual(mp.Dense(2, 1, mp.Rngs(0)))  # [4, 1] would broadcast
    with pytest.raises(ValueError, match=r"made an array of shape \(4, 1\); expected the same shape"):
        wide(wide.initialize_state(4), engine.zeros((4, 2)))
    with pytest.raises(ValueError, match="its module made a dict"):
        mp.Residual(mp.Splitter(a=1))([()], engine.zeros((4, 2)))
    with pytest.raises(TypeError, match=r"Residual got a dict with the entries .*; expected an array"):
        mp.Residual(mp.Filter("x"))([()], {"x": engine.zeros((4, 2))})
