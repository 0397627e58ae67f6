"""Rollouts in tensors against the same environment behind NumPy arrays, stepped by the driver for those."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import multippo as mp  # noqa: E402
from multippo.envs.api import Env  # noqa: E402
from multippo.testing import TensorPendulum  # noqa: E402
from multippo.trees import named_leaves, tree_map  # noqa: E402

LENGTH, NUM_ENVS = 6, 3


class InNumpy(Env):
    """An environment in tensors, seen through NumPy arrays."""

    functional = False

    def __init__(self, env):
        self.env, self.id, self.num_envs = env, env.id, env.num_envs
        self.observation_space, self.action_space = env.observation_space, env.action_space

    def _shown(self, state):
        self._latest = state
        state = state._replace(final_obs=state.obs if state.final_obs is None else state.final_obs)
        return tree_map(lambda x: x.numpy().copy(), state)

    def reset(self, key):
        return self._shown(self.env.reset(key))

    def step(self, env_state, action):
        return self._shown(self.env.step(self._latest, torch.tensor(action)))


def pendulum(max_episode_steps=4):
    return mp.make_env(TensorPendulum(NUM_ENVS, max_episode_steps, staggered=True))


def make(kind):
    env, rngs = pendulum(), mp.Rngs(3)
    if kind == "mlp":
        return mp.make_mlp_actor_critic(env.observation_space, env.action_space, (8,), (8,), rngs)
    if kind == "shared":  # the critic sees what the actor remembers
        body = [mp.Normalizer(3), mp.LSTM(3, 4, rngs)]
        action = mp.Sequential([mp.Dense(4, 2, rngs), mp.NormalTanhSampler(rngs)])
        return mp.Sequential([*body, mp.PPOAdapter(action=action, value=mp.Dense(4, 1, rngs))])
    if kind == "delayed":  # the carry is made of observations
        actor = mp.Sequential([mp.Delay(np.zeros(3, np.float32), 2), mp.Dense(3, 2, rngs), mp.NormalTanhSampler(rngs)])
        return mp.PPOAdapter(action=actor, value=mp.Dense(3, 1, rngs))
    raise KeyError(kind)


@pytest.fixture(autouse=True)
def on_torch():
    with mp.use_backend("torch", device="cpu"):
        yield


def play(env, network, length=LENGTH):
    env_state, carry = env.reset(5), network.initialize_state(env.num_envs)
    carry, env_state, first = mp.unroll_env(env, env_state, network, carry, length, 0)
    _, _, second = mp.unroll_env(env, env_state, network, carry, length, 0)
    return first, second


def assert_same(ours, expected):
    for (name, one), (other_name, other) in zip(named_leaves(ours), named_leaves(expected), strict=True):
        assert name == other_name
        np.testing.assert_allclose(one.numpy(), other.numpy(), rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("kind", ["mlp", "shared", "delayed"])
@pytest.mark.parametrize("deterministic", [False, True])
def test_every_step_is_that_of_the_driver_for_numpy(kind, deterministic):
    network = make(kind)
    if deterministic:
        network.eval()
    for ours, expected in zip(play(pendulum(), network), play(InNumpy(pendulum()), network), strict=True):
        assert_same(ours, expected)
        # Each step ends an episode somewhere, and values the last observation.
        assert (ours.bootstrap_values != 0).any(1).sum() >= LENGTH - 2


def test_without_last_observations_truncated_episodes_have_the_value_before_their_last_step():
    class Silent(TensorPendulum):
        def step(self, actions):
            return *super().step(actions)[:4], {}

    first, _ = play(mp.make_env(Silent(NUM_ENVS, 4, staggered=True)), make("mlp"))
    expected = torch.where(first.truncated, first.network_output.value_estimates, 0.0)
    assert first.truncated.any()
    torch.testing.assert_close(first.bootstrap_values, expected)


def test_environments_may_write_into_what_they_have_returned():
    class Overwriting(TensorPendulum):
        def step(self, actions):
            obs, reward, terminated, truncated, info = super().step(actions)
            if not hasattr(self, "kept"):
                self.kept = [obs.clone(), reward.clone(), truncated.clone()]
            for own, new in zip(self.kept, (obs, reward, truncated), strict=True):
                own.copy_(new)
            return self.kept[0], self.kept[1], terminated, self.kept[2], info

    network = make("delayed")
    env = mp.make_env(Overwriting(NUM_ENVS, 4, staggered=True))
    for ours, expected in zip(play(env, network), play(pendulum(), network), strict=True):
        assert_same(ours, expected)


def test_networks_of_equal_structure_share_the_code_and_keep_their_weights():
    env, first = pendulum(), make("mlp")
    rngs = mp.Rngs(9)
    second = mp.make_mlp_actor_critic(env.observation_space, env.action_space, (8,), (8,), rngs)
    play(env, first)
    before = first.engine.compile_seconds()
    ours = play(pendulum(), second)
    assert first.engine.compile_seconds() == before
    for one, other in zip(ours, play(InNumpy(pendulum()), second), strict=True):
        assert_same(one, other)


def config(**options):
    ppo = {"total_steps": 48, "rollout_length": 8, "num_epochs": 2, "num_minibatches": 3, "learning_rate": 1e-3}
    return mp.TrainConfig(ppo=mp.PPOConfig(**{**ppo, **options}), seed=1)


@pytest.mark.parametrize("kind", ["mlp", "shared"])
def test_training_is_that_in_numpy(kind):
    logged = {}
    for name, env in (("tensors", pendulum()), ("numpy", InNumpy(pendulum()))):
        rows = logged[name] = []
        mp.train_ppo(env, make(kind), config(), log_fn=rows.append)
    assert len(logged["tensors"]) == 2
    for ours, expected in zip(logged["tensors"], logged["numpy"], strict=True):
        for name in expected.keys() - {
            "throughput/train_sps",
            "time/compile_s",
            "time/elapsed_s",
            "rollout/nonfinite_steps",
        }:
            np.testing.assert_allclose(ours[name], expected[name], rtol=1e-4, atol=1e-6, err_msg=name)
        assert ours["ratio/first_max_dev"] < 1e-5


def test_runs_are_evaluated_saved_and_continued(tmp_path):
    network, saved = make("shared"), []
    evaluated = mp.TrainConfig(ppo=config().ppo, eval=mp.EvalConfig(every_steps=24, num_episodes=NUM_ENVS))
    keep = lambda state, step: saved.append(step)  # noqa: E731
    result = mp.train_ppo(pendulum(), network, evaluated, eval_env=pendulum(), checkpoint_fn=keep)
    assert len(result.eval_history) == 2
    assert saved
    assert result.eval_history[-1]["eval/episode_length/mean"] <= 4
    mp.save_checkpoint(tmp_path / "state", result.training_state, network)
    state = mp.load_checkpoint(tmp_path / "state", make("shared"))
    again = mp.train_ppo(pendulum(), make("shared"), config(total_steps=72), initial_state=state)
    assert again.total_steps == 72


def test_a_value_that_is_not_finite_ends_the_run_and_is_named():
    class Blowing(TensorPendulum):
        steps = 0

        def step(self, actions):
            obs, *rest = super().step(actions)
            self.steps += 1
            if self.steps == 3:
                obs[1, 2] = float("nan")
            return obs, *rest

    env = mp.make_env(Blowing(NUM_ENVS))
    with pytest.raises(mp.NonFiniteError, match=r"observation is not finite.*environment 1"):
        mp.train_ppo(env, make("mlp"), config())


def test_networks_elsewhere_are_refused():
    env = pendulum()
    with mp.use_backend("numpy"):
        network = make("mlp")
        with pytest.raises(ValueError, match=r"returns torch tensors, and the network is on the numpy engine"):
            mp.unroll_env(env, env.reset(0), network, network.initialize_state(NUM_ENVS), 2, 0)
    network = make("mlp")
    elsewhere = mp.make_env(TensorPendulum(NUM_ENVS, device="meta"))
    with pytest.raises(ValueError, match="has its tensors on meta:0, and the network is on cpu:0"):
        mp.unroll_env(elsewhere, elsewhere.reset(0), network, network.initialize_state(NUM_ENVS), 2, 0)
