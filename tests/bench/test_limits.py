"""The limits estimate advantages as PPO does, and take the same gradient steps on both frameworks."""

import dataclasses

import numpy as np
import pytest

from multippo.bench.limit_host import Steps, Task
from multippo.bench.works import WORKS

# Rewards 1 and 2, values 0.5 and 0.25, then 0.75. Without an end the second advantage is 2 + 0.99 * 0.75 - 0.25 =
# 2.4925, the first 1 + 0.99 * 0.25 - 0.5 + 0.99 * 0.95 * 2.4925 = 3.09169625. If the episode ends in the second step:
# 2 - 0.25 = 1.75 and 0.7475 + 0.9405 * 1.75 = 2.393375. If it is cut there: 0 and 0.7475.
VALUE, REWARD = np.float32([[0.5], [0.25], [0.75]]), np.float32([[1], [2]])
NEVER, SECOND = np.float32([[0], [0]]), np.float32([[0], [1]])


@pytest.mark.parametrize("engine", ["jax", "torch"])
@pytest.mark.parametrize(
    ("done", "cut", "expected"),
    [(NEVER, NEVER, [3.09169625, 2.4925]), (SECOND, NEVER, [2.393375, 1.75]), (NEVER, SECOND, [0.7475, 0.0])],
)
def test_advantages(engine, done, cut, expected):
    if engine == "jax":
        from multippo.bench.limit_jax import advantages
    else:
        import torch

        from multippo.bench import limit_torch

        def advantages(*arrays):
            return limit_torch.advantages(*map(torch.as_tensor, arrays))

    np.testing.assert_allclose(advantages(VALUE, REWARD, done, cut)[:, 0], expected, rtol=1e-6)


@pytest.mark.nightly_if("jax")
@pytest.mark.parametrize("sizes", [{"lstm": 0, "hidden": (8, 8)}, {"lstm": 4, "hidden": (8,)}])
@pytest.mark.parametrize("discrete", [True, False])
def test_both_frameworks_take_the_same_steps(monkeypatch, sizes, discrete):
    from multippo.bench import limit_jax, limit_torch

    # All rows at once, so that their order does not matter; steps that grow with the gradient, not with its sign.
    for module in (limit_jax, limit_torch):
        for name, value in {"NUM_MINIBATCHES": 1, "RATE": 1.0, "EPSILON": 1.0}.items():
            monkeypatch.setattr(module, name, value)
    length, batch = 6, 8
    work = dataclasses.replace(WORKS["quick"], num_envs=batch, rollout_length=length, **sizes)
    rng = np.random.default_rng(0)

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    action = rng.integers(0, 2, (length, batch)) if discrete else normal(length, batch, 2)
    ends = (rng.random((3, length, batch)) < 0.2).astype(np.float32)
    numbers = normal(length, batch) - 1, normal(length + 1, batch), normal(length, batch)
    steps = Steps(normal(length, batch, 3), action, *numbers, *ends)
    carries = ((0.1 * normal(batch, 4),) * 2,) * 2 if sizes["lstm"] else ((), ())
    after = []
    for module in (limit_jax, limit_torch):
        learner = module._Learner(Task(work, 3, 2, discrete))
        learner.update(carries, steps)
        heads, scales = learner.weights()
        after.append([*(leaf for head in heads.values() for layer in head["layers"] for leaf in layer), *scales])
    for ours, theirs in zip(*after, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)
    assert np.abs(after[0][0]).max() > 0.1
