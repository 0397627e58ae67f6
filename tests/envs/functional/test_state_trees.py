"""States of functional environments keep their types, and what can't be compiled is said in words."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.testing import FunctionalClock


class Changed(FunctionalClock):
    def __init__(self, in_step=None, in_reset=None):
        super().__init__(3)
        self.in_step, self.in_reset = in_step, in_reset

    def reset(self, key):
        if self.in_reset is not None:
            self.in_reset(key)
        return super().reset(key)

    def step(self, state, action):
        if self.in_step is not None:
            self.in_step(state.obs)
        return super().step(state, action)


def branches(x):
    if x[0] > 0:
        return 1
    return 2


WRONG = {
    "a branch": (branches, jax.errors.TracerBoolConversionError),
    "NumPy": (lambda x: np.clip(np.asarray(x), 0, 1), jax.errors.TracerArrayConversionError),
}
MESSAGE = r"of Changed needs the value of an array \(test_state_trees.py, line \d+: .*\), but .* for all values"


@pytest.mark.parametrize("which", WRONG)
def test_what_went_wrong_and_where(which):
    change, cause = WRONG[which]
    env = FunctionalEnv(Changed(change), 2, truncation_key="truncation")
    with pytest.raises(TypeError, match=f"^step {MESSAGE}") as raised:
        env.step(env.reset(0), jnp.zeros(2, jnp.int32))
    assert isinstance(raised.value.__cause__, cause)
    with pytest.raises(TypeError, match=f"^reset {MESSAGE}") as raised:
        FunctionalEnv(Changed(in_reset=change), 2)
    assert isinstance(raised.value.__cause__, cause)


def test_errors_of_its_own_stay():
    def fails(x):
        raise KeyError("mine")

    env = FunctionalEnv(Changed(fails), 2)
    with pytest.raises(KeyError, match="mine"):
        env.step(env.reset(0), jnp.zeros(2, jnp.int32))
