"""A learning-rate schedule counts iterations, whatever epochs and minibatches they are made of.

Seen in luchris429/purejaxrl#6, Toni-SM/skrl#245, araffin/sbx#55.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Clock, TableNet

RATE, ITERATIONS = 0.02, 5


@functools.cache
def rates(name: str, schedule: str = "linear", epochs: int = 2, minibatches: int = 2) -> list[float]:
    with mp.use_backend(name):
        run = training.train(
            Clock(3, "truncated", 4),
            TableNet([0.0] * 4),
            iterations=ITERATIONS,
            learning_rate=RATE,
            lr_schedule=schedule,
            num_epochs=epochs,
            num_minibatches=minibatches,
        )
        return run.column("learning_rate")


def test_a_line_from_the_configured_rate_to_zero(engine: Any):
    # 5 iterations: 1, 4/5, 3/5, 2/5, 1/5 of the rate; 0 would be that of a sixth.
    expected = RATE * (1 - np.arange(ITERATIONS) / ITERATIONS)
    np.testing.assert_allclose(rates(engine.name), expected, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_never_negative_never_rising(torch_engine: Any, schedule: str):
    found = rates("torch", schedule)
    assert found[0] == pytest.approx(RATE, rel=1e-6)
    assert min(found) >= 0
    assert (np.diff(found) <= 0).all()


@pytest.mark.parametrize(("epochs", "minibatches"), [(1, 1), (7, 4)])
def test_epochs_and_minibatches_do_not_matter(torch_engine: Any, epochs: int, minibatches: int):
    assert rates("torch", "linear", epochs, minibatches) == rates("torch")


def test_engines_agree():
    assert rates("jax") == rates("torch")


def test_the_rate_logged_is_the_rate_of_the_step(torch_engine: Any):
    # Adam's first step moves each weight that has a gradient by the rate, whatever the gradient.
    network = TableNet([0.0] * 4)
    options = {"num_epochs": 1, "num_minibatches": 1, "gradient_clipping": None, "adam_epsilon": 1e-15}
    run = training.train(Clock(3, "truncated", 4), network, iterations=1, learning_rate=RATE, **options)
    assert run.column("learning_rate") == [pytest.approx(RATE, rel=1e-6)]
    # The final observation is never acted on.
    np.testing.assert_allclose(np.abs(mp.to_portable(network)["values"]), [RATE] * 3 + [0.0], rtol=1e-4)


def test_a_resumed_run_goes_on_along_the_line(torch_engine: Any):
    network = TableNet([0.0] * 4)
    options: dict[str, Any] = {"iterations": ITERATIONS, "learning_rate": RATE, "lr_schedule": "linear"}
    run = training.train(Clock(3, "truncated", 4), network, config={"checkpoint_every_steps": 2 * 16}, **options)
    state = run.checkpoints[0][0]
    rest = training.train(Clock(3, "truncated", 4), network, initial_state=state, **options)
    assert rest.column("learning_rate") == run.column("learning_rate")[2:]
    support.assert_trees_close(rest.state.key, run.state.key, 0.0)
