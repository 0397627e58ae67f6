"""A learning-rate schedule counts iterations, whatever epochs and minibatches they are made of.

Seen in luchris429/purejaxrl#6, Toni-SM/skrl#245, araffin/sbx#55.
"""

from typing import Any

import numpy as np
import pytest
import training

import multippo as mp
from multippo.testing import Clock, TableNet

RATE, ITERATIONS = 0.02, 5


@pytest.mark.parametrize(("epochs", "minibatches"), [(2, 2), (1, 1), (7, 4)])
@pytest.mark.nightly_if("jax")
def test_a_line_from_the_configured_rate_to_zero(engine: Any, epochs: int, minibatches: int):
    # 5 iterations: 1, 4/5, 3/5, 2/5, 1/5 of the rate; 0 would be that of a sixth.
    options = {"lr_schedule": "linear", "num_epochs": epochs, "num_minibatches": minibatches}
    run = training.train(
        Clock(3, "truncated", 4), TableNet([0.0] * 4), iterations=ITERATIONS, learning_rate=RATE, **options
    )
    expected = RATE * (1 - np.arange(ITERATIONS) / ITERATIONS)
    np.testing.assert_allclose(run.column("learning_rate"), expected, rtol=1e-6)


def test_the_rate_logged_is_the_rate_of_the_step(torch_engine: Any):
    # Adam's first step moves each weight that has a gradient by the rate, whatever the gradient.
    network = TableNet([0.0] * 4)
    options = {"num_epochs": 1, "num_minibatches": 1, "gradient_clipping": None, "adam_epsilon": 1e-15}
    run = training.train(Clock(3, "truncated", 4), network, iterations=1, learning_rate=RATE, **options)
    assert run.column("learning_rate") == [pytest.approx(RATE, rel=1e-6)]
    # The final observation is never acted on.
    np.testing.assert_allclose(np.abs(mp.to_portable(network)["values"]), [RATE] * 3 + [0.0], rtol=1e-4)
