"""A recurrent layer is the same function on both engines, biases and all; ``test_recurrent`` says which.

Seen in google/flax#3746, google/flax#5594.
"""

from typing import Any

import numpy as np
import pytest
import support

import multippo as mp

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
