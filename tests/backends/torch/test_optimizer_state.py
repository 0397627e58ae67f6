"""Moments put back into torch's optimiser."""

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


def test_gradients_and_parameters_may_lie_in_any_memory_order() -> None:
    # The gradient of a convolution comes with channels last. By hand: the first step of Adam is the sign of the
    # gradient, so that a number that ends up in another's place shows.
    values = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]])
    turned = values.T.contiguous().T
    assert turned.stride() != values.stride() and torch.equal(turned, values)
    for parameter, grad in ((torch.zeros(2, 3), turned), (turned * 0, values)):
        params = {"w": torch.nn.Parameter(parameter)}
        optimizer = TorchOptimizer(OptimizerConfig())
        state = optimizer.init(params)
        optimizer.step(params, {"w": grad}, state, torch.tensor(0.1), torch.tensor(False))
        torch.testing.assert_close(params["w"].detach(), -0.1 * values, rtol=1e-4, atol=1e-4)
        first, second, count = optimizer.export_state(state)
        np.testing.assert_allclose(first["w"], 0.1 * values.numpy(), rtol=1e-6)
        again = optimizer.import_state(params, first, second, count)
        optimizer.step(params, {"w": grad}, again, torch.tensor(0.1), torch.tensor(False))
        torch.testing.assert_close(params["w"].detach(), -0.2 * values, rtol=1e-4, atol=1e-4)
