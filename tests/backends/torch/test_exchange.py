"""Arrays that come from JAX."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp


def test_a_write_does_not_reach_the_environments_state(torch_engine: Any):
    observed = jnp.zeros(3000)  # small arrays are copied by themselves
    torch_engine.from_jax({"obs": observed})["obs"].add_(1)
    assert not observed.any()
