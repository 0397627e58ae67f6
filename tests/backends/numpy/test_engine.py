"""The reference engine: what it refuses, what it leaves alone, and that it needs no framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import multippo as mp
from multippo.algorithms.config import PPOConfig
from multippo.backends.api import OptimizerConfig
from multippo.testing import Clock, Spy, TableNet

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def engine():
    with mp.use_backend("numpy") as active:
        yield active


def test_it_is_one_of_the_engines_and_says_what_it_can(engine):
    assert "numpy" in mp.available_backends()
    assert mp.get_backend() == engine.name == "numpy"
    assert engine.capabilities == {"float64"}
    assert engine.xp.__name__ == "array_api_compat.numpy"


def test_double_precision_alone(engine):
    with engine.precision("float64"):
        assert mp.Param(np.ones(2, np.float32))[...].dtype == np.float64
    assert engine.zeros((2, 1)).dtype == engine.float_dtype == np.float64
    with pytest.raises(ValueError, match=r"'float32'.*not possible on the numpy backend.*float64 alone; use jax or to"):
        engine.precision("float32")
    with pytest.raises(ValueError, match=r"'bfloat16'.*not possible on the numpy backend"):
        engine.precision("bfloat16")
    with pytest.raises(ValueError, match=r"'half'.*expected one of 'float32', 'float64', 'bfloat16'"):
        engine.precision("half")


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


def test_a_checkpoint_of_another_engine_is_loaded_and_evaluates_alike(tmp_path):
    ppo = PPOConfig(total_steps=16, num_envs=2, rollout_length=8, num_minibatches=1, num_epochs=1)
    with mp.use_backend("torch"):
        env = mp.make_env("CartPole-v1", num_envs=2)
        net = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (4,), (4,), mp.Rngs(0))
        result = mp.train_ppo(env, net, mp.TrainConfig(ppo=ppo))
        mp.save_checkpoint(tmp_path / "checkpoint", result.training_state, net)
        expected = mp.eval_rollout(env, net, num_episodes=4)
    with mp.use_backend("numpy"):
        loaded = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (4,), (4,), mp.Rngs(1))
        state = mp.load_checkpoint(tmp_path / "checkpoint", loaded)
        assert (state.step, state.params["layers.1.action.layers.0.kernel"].dtype) == (16, np.float64)
        assert mp.eval_rollout(env, loaded, num_episodes=4) == pytest.approx(expected, abs=1e-5)


def test_it_needs_no_framework():
    # None in sys.modules makes an import fail as it does where the package is not installed.
    program = """
import sys
frameworks = ("jax", "jaxlib", "flax", "optax", "torch")
sys.modules.update(dict.fromkeys(frameworks))
import importlib.util
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name in frameworks else find(name, *rest)
import multippo as mp
env = mp.make_env("CartPole-v1", num_envs=2)
net = mp.make_recurrent_actor_critic(env.observation_space, env.action_space, 4, rngs=mp.Rngs(0))
print(mp.get_backend(), mp.available_backends(), mp.eval_rollout(env, net, num_episodes=2)["eval/episodes"])
print([name for name in frameworks if sys.modules.get(name)])
"""
    run = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines() == ["numpy ['numpy'] 2.0", "[]"]
