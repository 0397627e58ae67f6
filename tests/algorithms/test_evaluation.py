"""Evaluation plays whole episodes, counts them right, and leaves no trace."""

from typing import Any

import gymnasium
import numpy as np
import probing
import pytest
import training
from gymnasium import spaces
from support import assert_trees_close, to_numpy

import multippo as mp
from multippo.algorithms.evaluation import as_key
from multippo.testing import Clock, CountNet, FunctionalClock, Goal, Spy, TableNet

# Conformance and the cases have JAX by day.
pytestmark = pytest.mark.nightly_if("jax")


def play(env: Any, network: Any, **options: Any) -> dict[str, float]:
    return mp.eval_rollout(env, network, **options)


def test_one_episode_in_each_environment_by_hand(engine):
    # Returns 1, 2, 3: mean 2, (population) deviation sqrt(2/3). The short clocks begin again meanwhile; not counted.
    found = play(Clock([1, 2, 3], num_envs=3), TableNet([0.0] * 4))
    assert found == {
        "eval/episode_reward/mean": 2.0,
        "eval/episode_reward/std": pytest.approx(np.sqrt(2 / 3)),
        "eval/episode_reward/min": 1.0,
        "eval/episode_reward/max": 3.0,
        "eval/episode_length/mean": 2.0,
        "eval/episode_length/std": pytest.approx(np.sqrt(2 / 3)),
        "eval/episode_length/min": 1.0,
        "eval/episode_length/max": 3.0,
        "eval/lifespan/mean": 2.0,
        "eval/episodes": 3.0,
        "eval/nonfinite_episodes": 0.0,
    }


@pytest.mark.parametrize("autoreset", ["same_step", "next_step"])
@pytest.mark.parametrize("end", ["terminated", "truncated"])
def test_every_environment_plays_its_share(torch_engine, end, autoreset):
    # 5 episodes in 3 environments: 2, 2 and 1; returns 1, 1, 2, 2, 3.
    found = play(Clock([1, 2, 3], end, 3, autoreset), TableNet([0.0] * 4), num_episodes=5)
    assert found["eval/episodes"] == 5
    assert found["eval/episode_reward/mean"] == pytest.approx(9 / 5)
    assert found["eval/episode_length/mean"] == pytest.approx(9 / 5)


@pytest.mark.parametrize("length", [63, 64, 65, 200])
def test_episodes_of_any_length(torch_engine, length):
    found = play(Clock(length), TableNet([0.0] * (length + 1)))
    assert found["eval/episode_length/mean"] == found["eval/episode_reward/mean"] == length


def test_an_episode_is_given_up_at_the_limit(torch_engine):
    found = play(Clock([2, 50], num_envs=2), TableNet([0.0] * 51), num_episodes=4, max_episode_steps=7)
    # The first plays 2 episodes of 2 steps, the second 2 that are given up after 7: the rest of each, 43 steps, is left
    # out, and neither is a new episode nor costs the environment its share.
    assert found["eval/episodes"] == 4
    assert found["eval/episode_reward/mean"] == found["eval/episode_length/mean"] == (2 + 2 + 7 + 7) / 4
    assert found["eval/episode_reward/max"] == 7


def test_an_environment_that_does_not_end_what_was_given_up_plays_no_more(torch_engine):
    # 10 times 2 steps are not enough to come to the end.
    found = play(Clock([2, 50], num_envs=2), TableNet([0.0] * 51), num_episodes=4, max_episode_steps=2)
    assert (found["eval/episodes"], found["eval/episode_reward/max"]) == (3.0, 2.0)


def test_the_environments_own_limit_is_the_default(torch_engine):
    class Endless(Clock):
        max_episode_steps = 5

    assert play(Endless(1000), TableNet([0.0] * 1001))["eval/episode_length/mean"] == 5.0


def test_functional_environments(engine):
    env = mp.make_env(FunctionalClock(3, "truncated"), num_envs=2)
    found = play(env, CountNet(), num_episodes=4)
    names = ("episodes", "episode_reward/mean", "episode_reward/std")
    assert [found[f"eval/{name}"] for name in names] == [4.0, 3.0, 0.0]


def test_by_default_the_policy_does_not_sample(torch_engine):
    env, network = Spy(Clock(20, num_envs=4)), TableNet([0.0] * 21)
    play(env, network)
    assert not np.any(env.actions)
    play(env, network, deterministic=False)
    assert 0.2 < np.mean(env.actions[-20:]) < 0.8


def test_a_key_decides_everything(torch_engine):
    rngs = mp.Rngs(0)
    action = mp.Sequential([mp.Dense(1, 2, rngs), mp.NormalTanhSampler(rngs)])
    network = mp.PPOAdapter(action=action, value=mp.Dense(1, 1, rngs))
    found = [
        play(Goal(4), network, key=mp.random.key(seed), deterministic=deterministic)["eval/episode_reward/mean"]
        for seed, deterministic in ((0, True), (0, True), (1, True), (0, False), (0, False))
    ]
    assert found[0] == found[1]
    assert found[3] == found[4]
    assert len(set(found)) == 3


# -- no trace


class Single(probing.Small):
    """Episodes of one step."""

    observation_space = gymnasium.spaces.Box(0, 1, (4,), np.float32)

    def observe(self) -> Any:
        return np.zeros(4, np.float32)

    def outcome(self) -> Any:
        return 1.0, True, False


def evaluating(env: Any, eval_env: Any) -> Any:
    """A run of 8 steps with an evaluation."""
    ppo = mp.PPOConfig(total_steps=8, rollout_length=4, num_minibatches=1)
    config = mp.TrainConfig(ppo=ppo, eval=mp.EvalConfig(enabled=True))
    return mp.train_ppo(env, TableNet([0.0] * 4), config, eval_env=eval_env)


def test_a_vector_environment_has_its_own_number(torch_engine):
    env, other = (gymnasium.vector.SyncVectorEnv([Single] * count) for count in (2, 3))
    assert evaluating(env, other).eval_history[-1]["eval/episode_reward/mean"] == 1.0


def test_nor_is_another_adapter_of_what_it_steps(torch_engine):
    vector, single = gymnasium.vector.SyncVectorEnv([Single]), Single()
    limited = mp.make_env(lambda: gymnasium.wrappers.TimeLimit(single, 3), num_envs=1)
    for env, eval_env in ((vector, vector), (mp.make_env(single), limited)):
        with pytest.raises(ValueError, match="eval_env is the training environment itself, or holds what that steps"):
            evaluating(env, eval_env)


def test_when_it_is_due(torch_engine):
    # Iterations of 8 steps, every 20 steps: after 24, 40 and 48 (the end, where it would be due anyway).
    config = {"eval": mp.EvalConfig(enabled=True, every_steps=20, num_episodes=3)}
    run = training.train(Clock(5, num_envs=2), CountNet(), iterations=6, config=config)
    assert [line["step"] for line in run.result.eval_history] == [24, 40, 48]
    assert all(line["eval/episode_reward/mean"] == 5.0 for line in run.result.eval_history)
    assert all(line["eval/episodes"] == 3.0 for line in run.result.eval_history)
    assert run.result.final_metrics["eval/episode_length/mean"] == 5.0
    # Also logged, each with its step.
    assert [line["step"] for line in run.logs if "eval/episodes" in line] == [24, 40, 48]


def test_an_environment_by_name_and_an_integer_for_a_key(torch_engine):
    network = mp.make_mlp_actor_critic(4, spaces.Discrete(2), rngs=mp.Rngs(0))
    shares: list[float] = []
    found = mp.eval_rollout("CartPole-v1", network, num_episodes=2, key=3, progress=shares.append)
    assert shares[-1] == 1.0 and shares == sorted(shares)
    env = mp.make_env("CartPole-v1", num_envs=2)
    assert found == mp.eval_rollout(env, network, num_episodes=2, key=torch_engine.random.key(3))
    assert found != mp.eval_rollout(env, network, num_episodes=2, key=4)
    env.close()


def test_a_network_in_the_place_of_the_environment(torch_engine):
    network, env = TableNet([0.0] * 4), Clock(3, num_envs=2)
    with pytest.raises(TypeError, match=r"^eval_rollout got a Clock .* The environment comes first: eval_rollout"):
        play(network, env)


@pytest.mark.parametrize("key", ["a", 1.5, [1, 2, 3], object()])
def test_what_is_no_key(engine, key):
    with pytest.raises(ValueError, match=r"^A random key was expected, received "):
        play(Clock(3, num_envs=2), TableNet([0.0] * 4), key=key)


def test_keys_of_every_kind_are_one(engine):
    words = np.asarray([0, 3], np.uint32)
    expected = engine.to_numpy(engine.random.key(3))
    for key in (3, np.int64(3), words, engine.random.key(3)):
        np.testing.assert_array_equal(engine.to_numpy(as_key(engine, key)), expected)
    np.testing.assert_array_equal(engine.to_numpy(as_key(engine, None)), engine.to_numpy(engine.random.key(0)))


def test_a_network_without_actions(torch_engine):
    network = mp.Sequential([mp.Lift(lambda x: {"logits": x})])
    said = r"The network's output is a dict with the entries \['logits'\]; acting in an environment needs a PPONetworkO"
    with pytest.raises(TypeError, match=said):
        mp.eval_rollout(Clock(3, num_envs=2), network)


def network(obs_size, rngs):
    trunk = [mp.Delay(np.zeros(obs_size), 1), mp.Dense(obs_size, 4, rngs, "tanh")]
    actor = mp.Sequential([*trunk, mp.Dense(4, 2, rngs), mp.CategoricalSampler(rngs)])
    return mp.PPOAdapter(action=actor, value=mp.Dense(obs_size, 1, rngs))


def make(kind):
    if kind == "functional":
        return mp.make_env(FunctionalClock(3), num_envs=2)
    return Clock([3, 5], num_envs=2, autoreset=kind)


@pytest.mark.parametrize("kind", ["same_step", "next_step", "functional"])
def test_what_was_done_in_each_step(engine, kind):
    env = make(kind)
    size = env.observation_space.shape[0]
    net = network(size, mp.Rngs(0))
    arrays = mp.to_portable(net)
    found = mp.record_activations_rollout(env, net, 8, 1)
    delayed, hidden = (to_numpy(found.activations["action"][i]) for i in (0, 1))
    done = to_numpy(found.done)
    assert delayed.shape == (8, 2, size) and hidden.shape == (8, 2, 4) and done.shape == (8, 2)
    valid = to_numpy(found.valid)
    assert done.any() and not done.all() and valid.all() == (kind != "next_step")
    # The first step of an episode is given zeros, later ones the time of the step before, one-hot.
    for i in range(2):
        times = [0]
        for t in np.flatnonzero(valid[:, i]):
            expected = np.zeros(size)
            if times[-1]:
                expected[times[-1] - 1] = 1.0
            np.testing.assert_array_equal(delayed[t, i], expected, err_msg=f"{t} {i}")
            times.append(0 if done[t, i] else times[-1] + 1)
    expected = np.tanh(delayed @ arrays["action.layers.1.kernel"] + arrays["action.layers.1.bias"])
    np.testing.assert_allclose(hidden, expected, atol=1e-5)
    # The mode of the policy, by default, and nothing of the network changed.
    logits = to_numpy(found.activations["action"][2])
    assert (to_numpy(found.activations["action"][3]["action"]) == logits.argmax(-1)).all()
    assert not net.action[3].deterministic
    assert_trees_close(mp.to_portable(net), arrays, 0.0)
    again = mp.record_activations_rollout(env, net, 8, 1)
    assert_trees_close(again, found, 0.0)


def test_sampled_actions_and_environments_by_name(engine):
    net = network(4, mp.Rngs(0))
    found = mp.record_activations_rollout("CartPole-v1", net, 20, num_envs=3, deterministic=False)
    actions = to_numpy(found.activations["action"][3]["action"])
    logits = to_numpy(found.activations["action"][2])
    assert actions.shape == (20, 3)
    assert (actions != logits.argmax(-1)).any() and (actions == logits.argmax(-1)).any()
