"""Moments put back into torch's optimiser."""

from __future__ import annotations

import numpy as np
import torch

from multippo.backends.api import OptimizerConfig
from multippo.backends.torch.optimizer import TorchOptimizer


def test_moments_may_come_in_any_memory_order() -> None:
    # A checkpoint's kernels are transposed views; the fused kernel would read their memory as it lies.
    moments = np.arange(6.0, dtype=np.float32).reshape(2, 3)
    optimizer, stepped = TorchOptimizer(OptimizerConfig()), []
    for order in (moments, np.asfortranarray(moments)):
        params = {"w": torch.nn.Parameter(torch.zeros(2, 3))}
        state = optimizer.import_state(params, {0: order}, {0: order + 1}, 3)
        optimizer.step(params, {"w": torch.ones(2, 3)}, state, torch.tensor(0.1), torch.tensor(False))
        stepped.append(params["w"].detach().clone())
    assert torch.equal(stepped[0], stepped[1])
