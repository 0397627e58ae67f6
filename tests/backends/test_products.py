"""Matrix products of bfloat16 operands: what is rounded, what is not, and that a rollout is repeated.

A bfloat16 number has eight significant bits. Rounding to the nearest is off by at most half a unit of the last, 2**-9
of the number. Products of two are exact in float32, which has 24 bits.
"""

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import support

import multippo as mp
from multippo.networks.core.unrolling import scan_unroll
from multippo.trees import tree_leaves, tree_map

UNIT = 2.0**-9
"""Relative error of an operand."""
FLOAT32 = 1e-6
"""What sums of a few numbers of size 1 may differ by, in another order."""

LAYERS = {
    "dense": lambda rngs: mp.Dense(5, 3, rngs),
    "lstm": lambda rngs: mp.LSTM(5, 3, rngs, trainable_initial_state=True),
    "gru": lambda rngs: mp.GRU(5, 3, rngs, trainable_initial_state=True),
    "rnn": lambda rngs: mp.RNN(5, 3, rngs, time_constant=2.0, trainable_initial_state=True),
}
STEPS, BATCH = 4, 2
# The first step, a step after it, both, and the last; one episode that ends at once after another.
DONE = np.array([[1, 0], [1, 0], [0, 1], [0, 1]], bool)


@pytest.fixture
def bfloat16(engine: Any) -> Any:
    with mp.precision("bfloat16"):
        yield engine


def rounded(x: Any) -> np.ndarray:
    return np.asarray(x).astype(ml_dtypes.bfloat16).astype(np.float64)


def made(make: Any) -> tuple[Any, dict[str, np.ndarray]]:
    layer = make(mp.Rngs(0))
    values = support.fill_randomly(layer)
    assert all(np.abs(value).min() > 0 for value in values.values() if value.dtype.kind == "f")
    return layer, values


def inputs(seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(STEPS, BATCH, 5)).astype(np.float32)


def test_a_product_by_hand(bfloat16: Any):
    layer = mp.Dense(2, 1, mp.Rngs(0))
    # Beside 1 the unit of bfloat16 is 2**-7: 1 + 2**-8 lies between two numbers, and goes to the even one, 1, and
    # 1 + 3 * 2**-8 to 1 + 2**-6. The kernel's 3 + 2**-20 is nearest to 3, and 2 is 2. The bias is added as it is.
    x = bfloat16.asarray(np.array([[1 + 2**-8, 1 + 3 * 2**-8]], np.float32))
    mp.load_portable(layer, {"kernel": np.array([[3 + 2**-20], [2.0]]), "bias": np.array([2**-12 + 1.0])})
    found = support.to_numpy(layer((), x).output)
    np.testing.assert_array_equal(found, [[1 * 3 + (1 + 2**-6) * 2 + 1 + 2**-12]])
    assert found.dtype == np.float32

    def loss(net: Any) -> Any:
        return net.xp.sum(net((), x).output * (1 + 2**-8))

    grads = support.gradients(layer, loss)
    # The output's gradient, 1 + 2**-8, is an operand of the kernel's, which is rounded to 1; the bias's is none.
    np.testing.assert_array_equal(grads["kernel"], [[1.0], [1 + 2**-6]])
    np.testing.assert_array_equal(grads["bias"], [1 + 2**-8])


def test_the_inputs_gradient_by_hand(bfloat16: Any):
    layer = mp.Sequential([mp.Dense(1, 1, mp.Rngs(0)), mp.Dense(1, 1, mp.Rngs(0))])
    values = {
        "layers.0.kernel": [[1.0]],
        "layers.0.bias": [0.5],
        "layers.1.kernel": [[3 + 2**-6]],
        "layers.1.bias": [1],
    }
    mp.load_portable(layer, {name: np.array(value, np.float32) for name, value in values.items()})
    x = bfloat16.asarray(np.array([[1.0]], np.float32))
    grads = support.gradients(layer, lambda net: net.xp.sum(net(net.initialize_state(1), x).output) * (1 + 2**-8))
    # Beside 3 the unit is 2**-6. Backwards: 1 + 2**-8 is rounded to 1, times the second kernel; times x = 1.
    np.testing.assert_array_equal(grads["layers.0.bias"], [3 + 2**-6])
    np.testing.assert_array_equal(grads["layers.0.kernel"], [[3 + 2**-6]])


def lstm(values: Any, x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = rounded(x) @ rounded(values["input_kernel"]) + rounded(h) @ rounded(values["recurrent_kernel"])
    i, f, g, o = np.split(z + values["bias"], 4, axis=-1)
    c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
    return np.tanh(c) / (1 + np.exp(-o)), c


def gru(values: Any, x: np.ndarray, h: np.ndarray) -> np.ndarray:
    a_r, a_z, a_n = np.split(rounded(x) @ rounded(values["input_kernel"]) + values["bias"], 3, axis=-1)
    b_r, b_z, b_n = np.split(rounded(h) @ rounded(values["recurrent_kernel"]), 3, axis=-1)
    z = 1 / (1 + np.exp(-a_z - b_z))
    n = np.tanh(a_n + (b_n + values["recurrent_bias"]) / (1 + np.exp(-a_r - b_r)))
    return (1 - z) * n + z * h


@pytest.mark.parametrize("cell", ["lstm", "gru"])
def test_a_step_of_a_recurrent_layer(bfloat16: Any, cell: str):
    layer, values = made(LAYERS[cell])
    rng = np.random.default_rng(2)
    carry = {name: rng.normal(size=(BATCH, 3)).astype(np.float32) for name in ("h", "c")[: 2 if cell == "lstm" else 1]}
    out = layer(tree_map(bfloat16.asarray, carry), bfloat16.asarray(inputs()[0]))
    arguments = (values, inputs()[0], *carry.values())
    expected = {"lstm": lstm, "gru": gru}[cell](*arguments)
    h, *c = expected if cell == "lstm" else (expected,)
    np.testing.assert_allclose(support.to_numpy(out.output), h, atol=FLOAT32)
    np.testing.assert_allclose(support.to_numpy(out.next_state["h"]), h, atol=FLOAT32)
    if c:
        np.testing.assert_allclose(support.to_numpy(out.next_state["c"]), c[0], atol=FLOAT32)
    # What goes on to the next step is not rounded.
    assert np.abs(support.to_numpy(out.next_state["h"]) - rounded(support.to_numpy(out.next_state["h"]))).max() > 1e-4


@pytest.mark.parametrize("name", ["lstm", "gru", "rnn"])
@pytest.mark.nightly_if("jax")
def test_over_time_it_is_the_step_by_step_scan_with_its_gradients(bfloat16: Any, name: str):
    layer, _ = made(LAYERS[name])
    xs, done = bfloat16.asarray(inputs()), bfloat16.asarray(DONE)
    state = bfloat16.stop_gradient(tree_map(lambda s: s * 0 + 0.3, layer.initialize_state(BATCH)))

    def loss(unroll: Any) -> Any:
        def of(net: Any) -> Any:
            out = unroll(net)
            return support.total(net.xp, (out.output, out.next_state))

        return of

    ways = [lambda net: net.unroll(state, xs, done), lambda net: scan_unroll(net, state, xs, done, None)]
    found, expected = (support.compiled(layer, lambda net, way=way: way(net))() for way in ways)
    # Rounding makes of another order of summation another bfloat16 number only rarely; none of these.
    support.assert_trees_close((found.output, found.next_state), (expected.output, expected.next_state), FLOAT32)
    grads, slow_grads = (support.gradients(layer, loss(way)) for way in ways)
    # One product for all steps is summed at once, and one for each step is rounded before it: a unit of each operand.
    assert grads["recurrent_kernel"].any()
    for key, grad in grads.items():
        np.testing.assert_allclose(grad, slow_grads[key], atol=4 * UNIT * max(1.0, np.abs(grad).max()), err_msg=key)


def test_a_convolution(bfloat16: Any):
    layer, values = made(lambda rngs: mp.Conv(2, 3, 2, rngs, stride=2, padding="same"))
    images = np.random.default_rng(0).normal(size=(2, 3, 3, 2)).astype(np.float32)
    run = support.compiled(layer, lambda net, x: net((), x).output)
    padded = np.pad(rounded(images), ((0, 0), (0, 1), (0, 1), (0, 0)))  # 3 to 4, the odd zero at the end
    blocks = padded.reshape(2, 2, 2, 2, 2, 2).transpose(0, 1, 3, 2, 4, 5)  # [B, i, j, a, b, channel]
    expected = np.einsum("bijkly,klyo->bijo", blocks, rounded(values["kernel"])) + values["bias"]
    np.testing.assert_allclose(support.to_numpy(run(bfloat16.asarray(images))), expected, atol=FLOAT32)
    x = bfloat16.asarray(images)
    weights = np.random.default_rng(1).normal(size=expected.shape).astype(np.float32)
    grads = support.gradients(layer, lambda net: net.xp.sum(net((), x).output * bfloat16.asarray(weights)))
    # The loss's weights are the output's gradient.
    np.testing.assert_allclose(grads["bias"], weights.sum((0, 1, 2)), atol=FLOAT32)
    by_kernel = np.einsum("bijkly,bijo->klyo", blocks, rounded(weights))
    np.testing.assert_allclose(grads["kernel"], by_kernel, atol=2 * FLOAT32)


def test_parameters_and_carries_stay_float32_and_the_module_keeps_its_precision(engine: Any):
    with mp.precision("bfloat16"):
        layer, values = made(LAYERS["lstm"])
        with mp.precision("float32"):
            plain = mp.Dense(5, 3, mp.Rngs(0))
        again = mp.Dense(5, 3, mp.Rngs(0))
    outside = mp.Dense(5, 3, mp.Rngs(0))
    x = engine.asarray(inputs()[0])
    results = [support.to_numpy(module((), x).output) for module in (plain, again, outside)]
    np.testing.assert_array_equal(results[0], results[2])
    assert not np.array_equal(results[0], results[1])
    state = layer.initialize_state(BATCH)
    after = layer(state, x)
    assert {value.dtype.name for value in mp.to_portable(layer).values()} == {"float32"}
    assert {str(leaf.dtype).removeprefix("torch.") for leaf in tree_leaves((state, after.next_state))} == {"float32"}
    expected = lstm(values, inputs()[0], *(support.to_numpy(state)[name] for name in ("h", "c")))[0]
    np.testing.assert_allclose(support.to_numpy(after.output), expected, atol=FLOAT32)
