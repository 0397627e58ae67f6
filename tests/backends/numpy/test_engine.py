"""The reference engine: what it refuses, what it leaves alone, and that it needs no framework."""

from pathlib import Path

import numpy as np
import pytest

import multippo as mp
from multippo.backends.api import OptimizerConfig
from multippo.testing import Clock, Spy, TableNet

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def engine():
    with mp.use_backend("numpy") as active:
        yield active


def test_double_precision_alone(engine):
    with engine.precision("float64"):
        assert mp.Param(np.ones(2, np.float32))[...].dtype == np.float64
    assert engine.zeros((2, 1)).dtype == engine.float_dtype == np.float64
    with pytest.raises(ValueError, match=r"'float32'.*not possible on the numpy backend.*float64 alone; use jax or to"):
        engine.precision("float32")


def test_what_needs_gradients_is_refused_by_name(engine):
    for name, call in (
        ("value_and_grad", lambda: engine.value_and_grad(lambda params: (params, None))),
        ("optimizer", lambda: engine.optimizer(OptimizerConfig())),
    ):
        with pytest.raises(NotImplementedError, match=f"{name} is not possible.*no gradients. Take jax or torch"):
            call()


def test_training_is_refused_before_the_first_step(engine):
    env = Spy(Clock(3, num_envs=2))
    with pytest.raises(ValueError, match=r"The numpy backend can't train: it has no gradients.*Train on jax or torch"):
        mp.train_ppo(env, TableNet([0.0] * 4))
    assert not env.actions


def test_what_was_read_is_not_changed_by_a_write(engine):
    param = mp.Param([1.0, 2.0])
    before, first = param[...], param[0]
    param[...] = [3.0, 4.0]
    param[1] = 5.0
    assert before.tolist() == [1.0, 2.0] and first == 1.0 and param[...].tolist() == [3.0, 5.0]
    assert isinstance(param, mp.Param) and not isinstance(param, mp.Variable)
