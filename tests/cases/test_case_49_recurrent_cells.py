"""A recurrent layer is the same function on both engines, biases and all.

Seen in google/flax#3746, google/flax#5594.
"""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp

CELLS = ("LSTM", "GRU")
FEATURES, HIDDEN, BATCH, STEPS = 4, 5, 3, 20
OTHER = {"jax": "torch", "torch": "jax"}


def make(cell: str, seed: int, **options: Any) -> Any:
    return getattr(mp, cell)(FEATURES, HIDDEN, mp.Rngs(seed), **options)


def inputs() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(STEPS, BATCH, FEATURES)).astype(np.float32), rng.random((STEPS, BATCH)) < 0.15


def run_steps(layer: Any) -> tuple[Any, list[Any]]:
    """Outputs ``[T, B, hidden]`` and the carry after each step, one call at a time."""
    xs, _ = inputs()
    step = support.compiled(layer, lambda net, s, x: tuple(net(s, x))[:2])
    state, outputs, carries = layer.initialize_state(BATCH), [], []
    for x in xs:
        state, output = step(state, layer.engine.asarray(x))
        outputs.append(support.to_numpy(output))
        carries.append(support.to_numpy(state))
    return np.stack(outputs), carries


def gradients_of(layer: Any) -> dict[str, np.ndarray]:
    xs, done = (layer.engine.asarray(x) for x in inputs())

    def loss(net: Any) -> Any:
        out = net.unroll(net.initialize_state(BATCH), xs, done)
        return support.total(net.xp, [out.output, out.next_state])

    return support.gradients(layer, loss)


@pytest.mark.parametrize(("cell", "trainable"), [("LSTM", True), ("GRU", False)])
@pytest.mark.nightly_if("jax")
def test_converted_weights_compute_the_same(engine: Any, cell: str, trainable: bool):
    layer = make(cell, 0, trainable_initial_state=trainable)
    values = support.fill_randomly(layer, seed=1)
    assert all(np.abs(value).min() > 0 for value in values.values())  # no bias at its start of 0
    with mp.use_backend(OTHER[engine.name]):
        other = make(cell, 7, trainable_initial_state=trainable)
        mp.load_portable(other, mp.to_portable(layer))
        outputs, carries = run_steps(other)
        grads = gradients_of(other)
        back = mp.to_portable(other)
    support.assert_trees_close(back, mp.to_portable(layer), 0.0)  # nothing was dropped on the way
    expected, expected_carries = run_steps(layer)
    np.testing.assert_allclose(outputs, expected, atol=1e-5)
    support.assert_trees_close(carries, expected_carries, 1e-5)
    own = gradients_of(layer)
    support.assert_trees_close(grads, own, 1e-5)
    assert set(own) == set(values)
    assert all(np.abs(grad).max() > 1e-3 for grad in own.values())
    assert np.abs(expected).max() > 0.1


def lstm(values: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    z = x @ values["input_kernel"] + h @ values["recurrent_kernel"] + values["bias"]
    i, f, g, o = np.split(z, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def gru(values: dict[str, np.ndarray], x: np.ndarray, h: np.ndarray, c: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    x_r, x_z, x_n = np.split(x @ values["input_kernel"] + values["bias"], 3, axis=-1)
    h_r, h_z, h_n = np.split(h @ values["recurrent_kernel"], 3, axis=-1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = np.tanh(x_n + r * (h_n + values["recurrent_bias"]))
    return (1 - z) * n + z * h, c


def sigmoid(z: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-z))


@pytest.mark.parametrize(("cell", "step"), [("LSTM", lstm), ("GRU", gru)])
def test_a_cell_is_the_function_its_documentation_gives(engine: Any, cell: str, step: Any):
    layer = make(cell, 0)
    values = {name.split(".")[-1]: value for name, value in support.fill_randomly(layer, seed=1).items()}
    h, c = np.zeros((BATCH, HIDDEN)), np.zeros((BATCH, HIDDEN))
    outputs, carries = run_steps(layer)
    for time, x in enumerate(inputs()[0].astype(np.float64)):
        h, c = step(values, x, h, c)
        np.testing.assert_allclose(outputs[time], h, atol=1e-5)
        assert cell == "GRU" or np.abs(carries[time]["c"] - c).max() < 1e-5


@pytest.mark.parametrize("cell", CELLS)
def test_a_parameter_without_a_counterpart_is_an_error(torch_engine: Any, cell: str):
    layer = make(cell, 0)
    values = mp.to_portable(layer)
    name = next(name for name in values if "bias" in name)
    doubled = {**values, f"{name}_2": values[name]}
    with pytest.raises(ValueError, match=f"left over.*{name}_2"):
        mp.load_portable(layer, doubled)
    with pytest.raises(ValueError, match=f"missing.*{name}"):
        mp.load_portable(layer, {other: value for other, value in values.items() if other != name})
    with pytest.raises(ValueError, match="initial"):
        mp.load_portable(layer, mp.to_portable(make(cell, 0, trainable_initial_state=True)))
    support.assert_trees_close(mp.to_portable(layer), values, 0.0)
