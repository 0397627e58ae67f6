"""Training as a whole: what is logged, saved, resumed and refused."""

import math
from typing import Any

import gymnasium
import numpy as np
import pytest
import training

import multippo as mp
from multippo.testing import Clock, CountNet, FunctionalGoal, Goal, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")

ITERATIONS = 4


def goal_net() -> Any:
    rngs = mp.Rngs(1)
    action = mp.Sequential([mp.Dense(1, 2, rngs), mp.NormalTanhSampler(rngs, entropy_weight=0.01)])
    return mp.Sequential([mp.Normalizer(1), mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))])


def make_env(kind: str) -> Any:
    return Goal(2, length=3) if kind == "host" else mp.make_env(FunctionalGoal(3), num_envs=2)


def go(env: Any, network: Any, **fields: Any) -> training.Run:
    return training.train(env, network, **{"iterations": ITERATIONS, "lr_schedule": "linear", **fields})


# -- what is said


def test_with_rollouts_of_another_length_it_goes_on_to_the_steps_asked_for():
    with mp.use_backend("torch"):
        env, network = Clock(3, num_envs=2, autoreset="same_step"), TableNet([0.5, 0.25, 0.0, -0.5])
        first = training.train(env, network, rollout_length=4, iterations=3, lr_schedule="linear")
        assert (first.result.total_steps, first.state.planned_steps) == (24, 24)
        more = {"rollout_length": 8, "total_steps": 64, "lr_schedule": "linear", "learning_rate": 1.0}
        second = training.train(env, network, initial_state=first.state, **more)
    # 24 of 64 steps are done; iterations of 16 reach 40, 56 and 72. The rate falls from where 24 steps have brought it.
    assert second.column("step") == [40, 56, 72] and second.column("iteration") == [4, 5, 6]
    np.testing.assert_allclose(second.column("learning_rate"), [1 - 24 / 64, 1 - 40 / 64, 1 - 56 / 64], rtol=1e-6)


def test_a_run_that_has_nothing_left_to_do_says_so(torch_engine, caplog):
    network = goal_net()
    first = go(make_env("host"), network, iterations=2)
    assert "Nothing is left" not in caplog.text
    again = go(make_env("host"), network, iterations=2, initial_state=first.state)
    assert "Nothing is left to train: 16 steps in 2 iterations are done, and total_steps=16 asks for 2" in caplog.text
    assert (again.result.total_steps, again.logs) == (16, [])


def test_what_has_no_effect_is_named(torch_engine, caplog):
    sizes = {"ppo": mp.PPOConfig(**training.DEFAULTS, total_steps=8), "checkpoint_every_steps": 8}
    mp.train_ppo(make_env("host"), goal_net(), mp.TrainConfig(**sizes, log_every_steps=16), eval_env=make_env("host"))
    said = [record.getMessage().partition(" has no effect")[0] for record in caplog.records]
    assert said == ["checkpoint_every_steps=8", "eval_env", "log_every_steps=16"]
    caplog.clear()
    config = mp.TrainConfig(**sizes, checkpoint_at_evals=True, eval=mp.EvalConfig(num_episodes=1))
    keep = lambda state, step: None  # noqa: E731
    mp.train_ppo(make_env("host"), goal_net(), config, eval_env=make_env("host"), checkpoint_fn=keep)
    assert not caplog.records


def test_another_seed_does_not_change_a_run_that_goes_on(torch_engine, caplog):
    network = goal_net()
    first = go(make_env("host"), network, iterations=1, config={"seed": 3})
    caplog.clear()
    go(make_env("host"), network, iterations=2, config={"seed": 3}, initial_state=first.state)
    go(make_env("host"), network, iterations=2, initial_state=first.state)  # the default says nothing
    assert not caplog.records
    go(make_env("host"), network, iterations=2, config={"seed": 4}, initial_state=first.state)
    assert caplog.records[0].getMessage().startswith("seed=4 has no effect on a run that goes on")


# -- what is logged


@pytest.mark.parametrize("name", ["jax", "torch"])
def test_what_is_logged(name):
    with mp.use_backend(name):  # a functional environment would be compiled for torch as well
        run = go(make_env("functional" if name == "jax" else "host"), goal_net())
    for line in run.logs:
        assert all(isinstance(value, int | float) for value in line.values())
        assert {"losses/actor", "losses/critic", "losses/regularization", "kl/approx", "gradient/norm"} <= line.keys()
    assert run.column("step") == [8, 16, 24, 32]
    assert run.column("iteration") == [1, 2, 3, 4]
    assert max(run.column("ratio/first_max_dev")) <= 1e-5
    # Episodes of 3 steps: after 4, 8, 12, 16 steps 1, 2, 4, 5 of each of the two environments have ended.
    assert run.column("rollout/episodes") == [2.0, 2.0, 4.0, 2.0]
    assert set(run.column("rollout/episode_length/mean")) == {3.0}
    assert all(value < 0 for value in run.column("rollout/episode_reward/mean"))
    assert {name: value for name, value in run.result.final_metrics.items() if name in run.logs[-1]} == run.logs[-1]
    assert all(0 < value < 1e6 for value in run.column("throughput/train_sps"))


def test_log_functions_of_fewer_arguments(torch_engine):
    lines: list[Any] = []
    config = mp.TrainConfig(ppo=mp.PPOConfig(total_steps=8, rollout_length=4, num_minibatches=2))
    for log_fn in (
        lambda metrics, prefix="": lines.append((metrics["step"], prefix)),
        lambda *args: lines.append((args[0]["step"], *args[1:])),
        lambda data, step=None, commit=True: lines.append((step, commit)),  # as wandb.log
    ):
        mp.train_ppo(Clock(3, num_envs=2), TableNet([0.0] * 4), config, log_fn=log_fn)
    assert lines == [(8, ""), (8, 8), (8, True)]


def test_steps_are_rounded_up_to_whole_iterations(torch_engine):
    env = Spy(Clock(3, num_envs=2))
    run = go(env, TableNet([0.0] * 4), total_steps=9)
    assert (run.result.total_steps, run.result.total_iterations, env.real_steps) == (16, 2, 16)
    assert [(state.step, step) for state, step in run.checkpoints] == [(16, 16)]


def test_no_episode_has_ended_yet(torch_engine):
    run = go(Clock(100, num_envs=2), TableNet([0.0] * 101), iterations=1)
    assert math.isnan(run.logs[0]["rollout/episode_reward/mean"])
    assert run.logs[0]["rollout/episodes"] == 0.0


# -- what is saved, and taken up again


def test_environments_made_by_name_are_made_and_closed(torch_engine, monkeypatch):
    closed: list[Any] = []
    kind = type(mp.make_env("CartPole-v1"))
    monkeypatch.setattr(kind, "close", lambda self: closed.append(self))
    network = mp.make_mlp_actor_critic(4, gymnasium.spaces.Discrete(2), (4,), (4,))
    evaluation = mp.EvalConfig(enabled=True, num_episodes=1, max_episode_steps=3)
    config = mp.TrainConfig(ppo=mp.PPOConfig(total_steps=1, rollout_length=4), eval=evaluation)
    result = mp.train_ppo("CartPole-v1", network, config)
    # 8 copies, if nobody says how many.
    assert result.training_state.step == 32
    assert sorted(env.num_envs for env in closed) == [1, 8]
    # An environment of the user's stays open; the one made like it is closed.
    env = mp.make_env("CartPole-v1", num_envs=4)
    mp.train_ppo(env, network, config)
    assert [e.num_envs for e in closed[2:]] == [1]
    with pytest.raises(ValueError, match="num_minibatches"):
        mp.train_ppo("CartPole-v1", network, mp.TrainConfig(ppo=mp.PPOConfig(rollout_length=1, num_minibatches=3)))
    assert [e.num_envs for e in closed[3:]] == [8]


def test_a_network_that_replay_does_not_repeat_is_told_of_once(torch_engine, caplog):
    source = np.random.default_rng(0)

    class Afresh(CountNet):
        """Its logits are noise from outside its state."""

        def heads(self, memory: Any, x: Any) -> Any:
            memory, logits, value = super().heads(memory, x)
            noise = torch_engine.asarray(source.normal(size=logits.shape).astype(np.float32))
            return memory, logits + noise, value

    def warnings_of(network: Any) -> list[str]:
        caplog.clear()
        training.train(Clock(3, num_envs=2), network, iterations=3)
        return [record.getMessage() for record in caplog.records if record.name == "multippo"]

    assert warnings_of(CountNet()) == []
    (message,) = warnings_of(Afresh())
    assert "in iteration 1: replayed, the network does not repeat what it did in the rollout" in message


def test_a_network_in_evaluation_mode_is_trained_on_samples_and_left_in_it(torch_engine):
    env, weights = Clock(2, num_envs=2), []
    for evaluating in (False, True):
        network = mp.make_mlp_actor_critic(env.observation_space, env.action_space, [4], [4], rngs=mp.Rngs(0))
        network.train(not evaluating)
        training.train(env, network, iterations=2)
        assert all(one.training != evaluating for one in network.modules() if isinstance(one, mp.StatefulModule))
        weights.append(mp.to_portable(network))
    for name, value in weights[0].items():
        np.testing.assert_array_equal(value, weights[1][name], err_msg=name)
