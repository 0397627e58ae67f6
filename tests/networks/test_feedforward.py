"""Dense: the arithmetic, the initial weights."""

import numpy as np
from support import each_engine, to_numpy

import multippo as mp


def test_it_is_the_product_plus_the_bias_under_the_activation(engine):
    layer = mp.Dense(2, 2, mp.Rngs(0), "relu")
    mp.load_portable(layer, {"kernel": np.asarray([[1.0, 2.0], [3.0, -4.0]]), "bias": np.asarray([0.5, 0.0])})
    out = layer((), engine.asarray(np.asarray([[1.0, 1.0], [0.0, 2.0]], np.float32)))
    # [1 1]: 1+3+.5 = 4.5, 2-4 = -2 -> 0; [0 2]: 6+.5 = 6.5, -8 -> 0.
    assert to_numpy(out.output).tolist() == [[4.5, 0.0], [6.5, 0.0]]
    assert out.next_state == () and out.rollout_extras is None and out.regularization_loss == 0.0


def test_the_activation_may_be_a_callable(engine):
    layer = mp.Dense(1, 1, mp.Rngs(0), lambda x: x * 0 + 7.0)
    assert to_numpy(layer((), engine.zeros((1, 1))).output).tolist() == [[7.0]]


def test_the_bias_can_be_left_out():
    layers = each_engine(lambda: mp.Dense(2, 3, mp.Rngs(0), use_bias=False))
    assert [list(mp.to_portable(layer)) for layer in layers.values()] == [["kernel"], ["kernel"]]


def test_the_default_kernel_has_variance_one_over_in(torch_engine):
    kernel = mp.to_portable(mp.Dense(100, 400, mp.Rngs(0)))["kernel"]
    # 40,000 draws: the variance 1/100 is met within 4 sqrt(2 / 40000) = 3 %.
    assert abs(kernel.var() * 100 - 1) < 0.03


def test_whole_numbers_are_taken_too(engine):
    layer = mp.Dense(2, 1, mp.Rngs(0))
    mp.load_portable(layer, {"kernel": np.asarray([[1.0], [0.5]]), "bias": np.zeros(1)})
    assert to_numpy(layer((), engine.asarray(np.asarray([[3, 4]], np.int32))).output).tolist() == [[5.0]]
