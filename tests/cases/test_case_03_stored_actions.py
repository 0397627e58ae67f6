"""The action that is stored and replayed is the one that was sampled, not the one the environment clipped or scaled.

Seen in thu-ml/tianshou#312, vwxyzjn/cleanrl#240.
"""

from typing import Any

import numpy as np
import probing
import pytest
import support
from gymnasium import spaces

import multippo as mp

LOW, HIGH = np.array([-0.4, 0.0], np.float32), np.array([0.4, 5.0], np.float32)
SAMPLERS = ("NormalTanhSampler", "NormalSampler")


def make_network(sampler: str, mean: float) -> Any:
    network = support.actor_critic(2, sampler, 4)
    head = {"kernel": np.zeros((2, 4)), "bias": np.array([mean, -mean, 0.3, -0.3])}
    mp.load_portable(network.action.layers[0], head)
    return network


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("mean", [30.0, 1.5])  # every action at the bounds; some of them
def test_likelihoods_and_bounds_hold_together(engine: Any, sampler: str, mean: float):
    seen, stored, found = probing.received(lambda: make_network(sampler, mean), spaces.Box(LOW, HIGH), 4, 8)
    ratio = np.exp(found.loglikelihoods.astype(float) - stored.network_output.loglikelihoods)
    # The likelihood of an action at the bounds is around exp(120), whose exponent is rounded to 1e-5.
    np.testing.assert_allclose(ratio, 1.0, atol=3e-5)
    assert seen.shape == (8, 4, 2)
    if mean == 30.0:
        np.testing.assert_array_equal(seen, np.broadcast_to([HIGH[0], LOW[1]], seen.shape))
    # What was sampled was not clipped: raw samples lie around the mean, far outside of [-1, 1].
    (raw,) = (leaf for leaf in support.tree_leaves(stored.rollout_extras))
    np.testing.assert_allclose(raw.mean((0, 1)), [mean, -mean], atol=1.0)
    assert raw.std((0, 1)).min() > 0.1
