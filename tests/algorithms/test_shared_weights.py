"""One module at two places of a network: trained by the sum of its gradients, which count once."""

from typing import Any

import numpy as np
import pytest
import support
import training

import multippo as mp
from multippo.testing import Goal

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def parts() -> tuple[Any, Any, Any]:
    """A trunk, and the heads of the actor and of the critic."""
    rngs = mp.Rngs(0)
    head = mp.Sequential([mp.Dense(3, 2, rngs), mp.NormalTanhSampler(rngs, 0.01)])
    return mp.Dense(1, 3, rngs, activation="tanh"), head, mp.Dense(3, 1, rngs)


def test_it_is_trained_as_one_place_would_be(engine: Any):
    trunk, head, critic = parts()
    shared = mp.PPOAdapter(action=mp.Sequential([trunk, head]), value=mp.Sequential([trunk, critic]))
    support.fill_randomly(shared)
    before = mp.to_portable(shared)
    # The same function, with the trunk at one place; by the order of its parts, which is theirs.
    one_trunk, one_head, one_critic = parts()
    single = mp.Sequential([one_trunk, mp.PPOAdapter(action=one_head, value=one_critic)])
    for mine, theirs in ((one_trunk, trunk), (one_head, head), (one_critic, critic)):
        mp.load_portable(mine, mp.to_portable(theirs))
    fields = {"iterations": 2, "learning_rate": 0.05}
    runs = [training.train(Goal(2), network, **fields) for network in (shared, single)]
    for name in ("losses/actor", "losses/critic", "gradient/norm"):
        np.testing.assert_allclose(runs[0].column(name), runs[1].column(name), rtol=2e-5, atol=1e-6, err_msg=name)
    for mine, theirs in ((one_trunk, trunk), (one_head, head), (one_critic, critic)):
        support.assert_trees_close(mp.to_portable(mine), mp.to_portable(theirs), 2e-5)
    after = mp.to_portable(shared)
    for name in (name for name in after if name.endswith(("kernel", "bias"))):
        assert np.abs(after[name] - before[name]).max() > 1e-3, name
