"""Residual: the sum, and that state, snapshots, losses, statistics and noise reach the module inside."""

import numpy as np
from support import gradients, to_numpy

import multippo as mp


def test_it_adds_the_input(torch_engine):
    net = mp.Residual(mp.Dense(2, 2, mp.Rngs(0)))
    mp.load_portable(net, {"layers.0.kernel": np.asarray([[1.0, 2.0], [3.0, 4.0]]), "layers.0.bias": np.ones(2)})
    out = net(net.initialize_state(1), torch_engine.zeros((1, 2)) + 1)
    # 1 + (1 + 3 + 1) and 1 + (2 + 4 + 1)
    assert to_numpy(out.output).tolist() == [[6.0, 8.0]]


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
