"""The reference engine: what it refuses, what it leaves alone, and that it needs no framework."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gymnasium
import numpy as np
import pytest
from support import fill_randomly, on, to_numpy

import multippo as mp
from multippo.algorithms.advantages import generalized_advantages
from multippo.algorithms.config import PPOConfig
from multippo.algorithms.losses import ppo_loss
from multippo.algorithms.minibatches import make_sequences
from multippo.backends.api import OptimizerConfig
from multippo.envs.api import Env
from multippo.random import host
from multippo.trees import named_leaves, tree_map

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
    with pytest.raises(ValueError, match=r"'half'.*expected one of 'float32', 'float64', 'bfloat16'"):
        engine.precision("half")


def test_what_needs_gradients_is_refused_by_name(engine):
    for name, call in (
        ("value_and_grad", lambda: engine.value_and_grad(lambda params: (params, None))),
        ("optimizer", lambda: engine.optimizer(OptimizerConfig())),
    ):
        with pytest.raises(NotImplementedError, match=f"{name} is not possible.*no gradients. Take jax or torch"):
            call()


class Untouched(Env):
    """An environment that must not be reset or stepped."""

    num_envs, functional, id = 2, False, "untouched"
    observation_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, key):
        raise AssertionError("reset")

    def step(self, env_state, action):
        raise AssertionError("step")


def test_training_is_refused_before_the_first_step(engine):
    net = mp.make_mlp_actor_critic(3, gymnasium.spaces.Discrete(2), (4,), (4,), mp.Rngs(0))
    with pytest.raises(ValueError, match=r"The numpy backend can't train: it has no gradients.*Train on jax or torch"):
        mp.train_ppo(Untouched(), net)


def test_random_words_are_those_of_the_host(engine):
    key = engine.random.key(2**40 + 3)
    keys = engine.random.split(key, 4)
    np.testing.assert_array_equal(keys, host.split(host.key(2**40 + 3), 4))
    np.testing.assert_array_equal(engine.random.normal(keys, (5,)), host.normal(keys, (5,)))
    assert keys.dtype == np.uint32 and engine.random.uniform(key).dtype == np.float64


def test_what_was_read_is_not_changed_by_a_write(engine):
    param = mp.Param([1.0, 2.0])
    before, first = param[...], param[0]
    param[...] = [3.0, 4.0]
    param[1] = 5.0
    assert before.tolist() == [1.0, 2.0] and first == 1.0 and param[...].tolist() == [3.0, 5.0]
    assert isinstance(param, mp.Param) and not isinstance(param, mp.Variable)


def test_a_split_is_alive_and_a_snapshot_is_not(engine):
    net = mp.Normalizer(1)
    live = engine.split(net).variables
    kept = engine.snapshot(live)
    net.update_statistics(np.asarray([[[1.0]], [[3.0]]]))
    # Mean (1 + 3) / 2; M2 = 1 + 1.
    assert live["mean"].tolist() == [2.0] and live["M2"].tolist() == [2.0]
    assert kept["mean"].tolist() == kept["M2"].tolist() == [0.0]


@pytest.mark.parametrize("skip", [True, False])
def test_statistics_are_left_alone_where_skip_holds(engine, skip):
    net = mp.Normalizer(1)
    engine.update_statistics(*engine.split(net), np.asarray([[[5.0]]]), None, np.asarray(skip))
    assert net.count == (0 if skip else 1)


def test_scan_and_cond_by_hand(engine):
    body = lambda carry, x: (carry + x, {"before": carry})  # noqa: E731
    carry, ys = engine.scan(body, np.zeros(1), np.asarray([[1.0], [2.0], [3.0]]), 3)
    assert carry.tolist() == [6.0] and ys["before"].tolist() == [[0.0], [1.0], [3.0]]
    assert engine.cond(np.asarray(True), lambda: 1, lambda: 2) == 1
    assert engine.cond(np.asarray(False), lambda: 1, lambda: 2) == 2


def recurrent() -> mp.StatefulModule:
    net = mp.make_recurrent_actor_critic(
        3, 2, 4, mp.Rngs(0), encoder_sizes=(3,), shared=True, entropy_weight=0.02, trainable_initial_state=True
    )
    fill_randomly(net)
    return net


@pytest.mark.parametrize("other", ["jax", "torch"])
def test_weights_go_there_and_back(other):
    with mp.use_backend("numpy"):
        reference = recurrent()
    with on(other, "float64"):
        net = mp.make_recurrent_actor_critic(
            3, 2, 4, mp.Rngs(5), encoder_sizes=(3,), shared=True, entropy_weight=0.02, trainable_initial_state=True
        )
        weights = mp.to_portable(reference)
        mp.load_portable(net, weights)
        returned = mp.to_portable(net)
    assert list(returned) == list(weights)
    with mp.use_backend("numpy"):
        fresh = recurrent()
        mp.load_portable(fresh, {name: np.zeros_like(value) for name, value in weights.items()})
        mp.load_portable(fresh, returned)
    for name, value in weights.items():
        np.testing.assert_array_equal(mp.to_portable(fresh)[name], value)


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


def test_an_evaluation_leaves_no_trace(engine):
    env = mp.make_env("CartPole-v1", num_envs=2)
    net = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (4,), (4,), mp.Rngs(0))
    before = mp.to_portable(net)
    first = mp.eval_rollout(env, net, num_episodes=3, deterministic=False, key=4)
    assert first == mp.eval_rollout(env, net, num_episodes=3, deterministic=False, key=4)
    assert not any(vars(m).get("deterministic") for m in (net, net.layers[1].action.layers[-1]))
    for name, value in mp.to_portable(net).items():
        np.testing.assert_array_equal(value, before[name])


def losses(name: str) -> dict[str, float]:
    """Of a rollout of 24 steps, replayed under the weights that acted, which is checked, and under others."""
    with on(name, "float64") as engine:
        env = mp.make_env("CartPole-v1", num_envs=2)
        net = mp.make_recurrent_actor_critic(
            env.observation_space, env.action_space, 4, mp.Rngs(0), encoder_sizes=(), shared=True, entropy_weight=0.02
        )
        weights = fill_randomly(net, scale=0.3)
        carry = net.initialize_state(2)
        _, _, transition = mp.unroll_env(env, env.reset(host.key(1)), net, carry, 24, engine.random.key(2))
        stored = transition.network_output
        assert to_numpy(transition.done).any()
        replayed = mp.replay(net, carry, transition)
        # gymnasium shows an episode's first observation in a step that is none, and does not count.
        valid = to_numpy(transition.valid)
        assert 40 < valid.sum() < valid.size == 48
        for got, expected in (
            (replayed.loglikelihoods, stored.loglikelihoods),
            (replayed.value_estimates, stored.value_estimates),
        ):
            np.testing.assert_allclose(to_numpy(got)[valid], to_numpy(expected)[valid], rtol=1e-12)
        mp.load_portable(net, {key: value * 1.1 if "kernel" in key else value for key, value in weights.items()})
        advantages, returns = generalized_advantages(
            engine.xp,
            r_t=transition.rewards,
            v_t=stored.value_estimates,
            v_last=stored.value_estimates[-1],
            v_bootstrap_t=transition.bootstrap_values,
            terminated_t=transition.terminated,
            truncated_t=transition.truncated,
            valid_t=transition.valid,
            discount=0.9,
            gae_lambda=0.8,
        )
        starts = tree_map(lambda x: x[None], carry)
        sequences = make_sequences(engine.xp, transition, starts, advantages, returns, 24, env.may_skip)
        loss, logged = ppo_loss(net, sequences, PPOConfig(value_clip_range=0.1, clip_range=0.05))
        found = {key: float(value) for key, value in named_leaves(to_numpy(logged._asdict())) if np.ndim(value) == 0}
        return {**found, "loss": float(to_numpy(loss))}


def test_losses_are_those_of_an_engine_that_trains():
    expected = losses("torch")
    assert len(expected) > 4 and expected["loss"] != 0.0
    assert losses("numpy") == pytest.approx(expected, rel=1e-10, abs=1e-12)


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


def test_it_is_no_longer_than_an_example_should_be():
    folder = ROOT / "multippo" / "backends" / "numpy"
    assert sum(len(file.read_text("utf-8").splitlines()) for file in folder.glob("*.py")) < 600
