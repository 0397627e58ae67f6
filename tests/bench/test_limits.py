"""The limits estimate advantages as PPO does."""

import numpy as np
import pytest

# Rewards 1 and 2, values 0.5 and 0.25, then 0.75. Without an end the second advantage is 2 + 0.99 * 0.75 - 0.25 =
# 2.4925, the first 1 + 0.99 * 0.25 - 0.5 + 0.99 * 0.95 * 2.4925 = 3.09169625. If the episode ends in the second step:
# 2 - 0.25 = 1.75 and 0.7475 + 0.9405 * 1.75 = 2.393375. If it is cut there: 0 and 0.7475.
REWARD, VALUE, LAST = np.float32([[1], [2]]), np.float32([[0.5], [0.25]]), np.float32([0.75])
NEVER, SECOND = np.float32([[0], [0]]), np.float32([[0], [1]])
CASES = [
    (NEVER, NEVER, [3.09169625, 2.4925]),
    (SECOND, NEVER, [2.393375, 1.75]),
    (NEVER, SECOND, [0.7475, 0.0]),
]


@pytest.mark.parametrize(("done", "cut", "expected"), CASES)
def test_advantages_in_torch(done, cut, expected):
    import torch

    from multippo.bench.limit_torch import advantages

    found = advantages(*map(torch.as_tensor, (VALUE, REWARD, done, cut, LAST)))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)


@pytest.mark.parametrize(("done", "cut", "expected"), CASES)
def test_advantages_in_jax(done, cut, expected):
    import jax

    from multippo.bench.limit_jax import Steps, advantages

    steps = Steps(None, None, None, VALUE, REWARD, done, cut, None)
    found = advantages(*jax.tree.map(jax.numpy.asarray, (steps, LAST)))
    np.testing.assert_allclose(found[:, 0], expected, rtol=1e-6)
