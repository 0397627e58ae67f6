"""Iterations one at a time, for loops of one's own: the numbers of ``train_ppo``, and the state between them."""

import copy
import pickle

import numpy as np
import pytest
from gymnasium import spaces

import multippo as mp
from multippo.algorithms.ppo import ppo_loss as loss_by_its_old_path
from multippo.algorithms.rollout import eval_rollout as rollout_by_its_old_path
from multippo.testing import Clock, FunctionalClock

SETTINGS = {"num_envs": 2, "rollout_length": 4, "num_epochs": 2, "num_minibatches": 1}
CONFIG = mp.TrainConfig(ppo=mp.PPOConfig(total_steps=24, **SETTINGS), seed=3)


def network():
    return mp.make_mlp_actor_critic(4, spaces.Discrete(2), (4,), (4,), mp.Rngs(0))


def compared(metrics):
    return {name: value for name, value in metrics.items() if not name.startswith(("time/", "throughput/"))}


def env_of(kind):
    return Clock(3, num_envs=2) if kind == "host" else mp.make_env(FunctionalClock(3), num_envs=2)


@pytest.mark.parametrize(("backend", "kind"), [("torch", "host"), ("jax", "functional")])
def test_the_iterations_are_those_of_train_ppo(backend, kind):
    with mp.use_backend(backend):
        trained, iterated, logged = network(), network(), []
        mp.train_ppo(env_of(kind), trained, CONFIG, log_fn=lambda metrics: logged.append(metrics))
        found = list(mp.iterate_ppo(env_of(kind), iterated, CONFIG))
        assert [state.iteration for state, _ in found] == [1, 2, 3]
        for (_, metrics), expected in zip(found, logged, strict=True):
            np.testing.assert_equal(compared(metrics), compared(expected))
        for mine, theirs in zip(mp.to_portable(iterated).values(), mp.to_portable(trained).values(), strict=True):
            np.testing.assert_array_equal(mine, theirs)


def test_a_loop_as_in_nnx_ppo(torch_engine):
    env, net = mp.make_env(FunctionalClock(3), num_envs=2), network()
    state = mp.new_training_state(env, net, 2, seed=3, learning_rate=1e-2, gradient_clipping=1.0)
    before, networks = mp.to_portable(net), state.networks
    same = {"n_envs": 2, "rollout_length": 4, "n_epochs": 2, "n_minibatches": 1, "combine_advantages": False}
    losses = []
    for _ in range(3):
        state, metrics = mp.ppo_step(env, state, **same, logging_level=None)
        losses.append(metrics["losses/actor/mean"])
    assert state.step == state.steps_taken == 24 and state.networks is networks is net
    assert any((before[name] != now).any() for name, now in mp.to_portable(net).items())
    # Without a TrainConfig the learning rate is constant; the settings hold in the state.
    ppo = mp.PPOConfig(lr_schedule="constant", learning_rate=1e-2, gradient_clipping=1.0, total_steps=24, **same)
    again = mp.iterate_ppo(env_of("functional"), network(), mp.TrainConfig(ppo=ppo, seed=3))
    assert [metrics["losses/actor"] for _, metrics in again] == losses


def test_an_earlier_state_is_gone_on_from_again(torch_engine):
    env, net = mp.make_env(FunctionalClock(3), num_envs=2), network()
    first, _ = mp.ppo_step(env, mp.new_training_state(env, net, CONFIG))
    second, metrics = mp.ppo_step(env, first)
    again, repeated = mp.ppo_step(env, first)
    assert compared(repeated) == compared(metrics) and again.iteration == second.iteration == 2
    for copied in (pickle.loads(pickle.dumps(first)), copy.deepcopy(first)):
        assert type(copied) is mp.TrainingState
        resumed = mp.new_training_state(env, network(), CONFIG, initial_state=copied)
        assert compared(mp.ppo_step(env, resumed)[1]) == compared(metrics)


def test_schedules_end(torch_engine):
    env = Clock(3, num_envs=2)
    for state, _ in mp.iterate_ppo(env, network(), CONFIG):
        last = state
    with pytest.raises(ValueError, match=r"linear schedule .* end after total_steps=24; set more, or lr_schedule"):
        mp.ppo_step(env, last)
    assert mp.ppo_step(env, last, lr_schedule="constant")[0].iteration == 4


def test_a_step_that_fails_leaves_the_state(torch_engine):
    env, net = Clock(3, num_envs=2), network()
    state = mp.new_training_state(env, net, CONFIG)
    with pytest.raises(TypeError, match="unexpected keyword argument 'gamma'"):
        mp.ppo_step(env, state, gamma=0.9)
    assert mp.ppo_step(env, state)[0].iteration == 1


def test_old_paths():
    assert loss_by_its_old_path is mp.ppo_loss and rollout_by_its_old_path is mp.eval_rollout


def test_a_rollout_in_states_of_ones_own(jax_engine):
    import jax

    env, net = FunctionalClock(3), network()
    states = jax.vmap(env.reset)(jax.random.split(jax.random.PRNGKey(0), 2))
    carry, state, first = mp.unroll_env(env, states, net, net.initialize_state(2), 2, 1)
    _, _, second = mp.unroll_env(env, state, net, carry, 2, 2)
    # Episodes of three steps go on from one call to the next.
    assert [*first.done[:, 0].tolist(), *second.done[:, 0].tolist()] == [False, False, True, False]
