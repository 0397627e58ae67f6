import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

torch = pytest.importorskip("torch")

import multippo as mp  # noqa: E402
from multippo.envs.host.tensor_env import TensorEnv  # noqa: E402
from multippo.testing import TensorPendulum  # noqa: E402


class IsaacLike(gymnasium.Env):
    """A batch behind the class of a single environment, with a dict of observations and no last ones."""

    num_envs, device, max_episode_length = 3, "cpu", 5
    single_observation_space = spaces.Dict({"policy": spaces.Box(-np.inf, np.inf, (2,), np.float32)})
    single_action_space = spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self):
        self.time, self.done = torch.zeros(3), torch.zeros(3, dtype=torch.bool)

    def _observe(self):
        return {"policy": torch.stack((self.time, -self.time), dim=1)}

    def reset(self, *, seed=None, options=None):
        self.time = torch.arange(3.0)
        return self._observe(), {}

    def step(self, action):
        action.mul_(0)  # which must not change the policy's
        self.time += 1
        self.done[:] = self.time >= 5
        self.time[self.done] = 0
        return self._observe(), self.time, torch.zeros_like(self.done), self.done, {"log": {}}


class RslLike:
    """rsl_rl's manner: one flag of ends, and those by time in the info."""

    num_envs, device, num_actions = 2, torch.device("cpu"), 1

    def reset(self, seed=None):
        return torch.zeros(2, 1), {}

    def step(self, actions):
        return torch.ones(2, 1), actions[:, 0], torch.tensor([1, 1]), {"time_outs": torch.tensor([True, False])}


class OneStep(TensorPendulum):
    """Ends every episode after one step, by the flags given."""

    def __init__(self, terminated, truncated):
        super().__init__(len(terminated))
        self.flags = torch.tensor(terminated), torch.tensor(truncated)

    def step(self, actions):
        obs, reward, *_ = super().step(actions)
        return self.reset()[0], reward, *self.flags, {"final_observation": obs}


def test_make_env_takes_a_batch_on_a_torch_device():
    env = mp.make_env(TensorPendulum(3), num_envs=3)
    assert isinstance(env, TensorEnv)
    assert (env.id, env.num_envs, env.max_episode_steps, env.arrays) == ("TensorPendulum", 3, 200, "torch")
    first, again, other = (env.reset(seed).obs for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    with pytest.raises(ValueError, match="num_envs=4 was asked for, but TensorPendulum has 3 environments"):
        mp.make_env(TensorPendulum(3), num_envs=4)


def test_actions_are_scaled_to_the_bounds_and_clipped():
    class Keeping(TensorPendulum):
        def step(self, actions):
            self.received = actions
            return super().step(actions)

    raw = Keeping(3)
    env = mp.make_env(raw)
    state = env.step(env.reset(0), np.array([[0.5], [-1.0], [3.0]], np.float32))
    # The pendulum's torques go from -2 to 2.
    np.testing.assert_allclose(raw.received.numpy(), [[1.0], [-2.0], [2.0]])
    assert state.final_obs is None
    discrete = mp.make_env(raw, action_space=spaces.Discrete(3, start=-1))
    assert discrete._actions(torch.tensor([0, 2, 1])).tolist() == [-1, 1, 0]


def test_an_end_that_is_both_is_a_termination_and_the_last_observation_is_handed_on():
    env = mp.make_env(OneStep([True, True, False, False], [True, False, True, False]))
    before = env.reset(0)
    after = env.step(before, torch.zeros(4, 1))
    assert after.terminated.tolist() == [True, True, False, False]
    assert after.truncated.tolist() == [False, False, True, False]
    assert not torch.equal(after.final_obs, after.obs)


def test_environments_in_the_manner_of_isaaclab():
    env = mp.make_env(IsaacLike())
    assert env.max_episode_steps == 5
    actions = torch.ones(3, 1)
    state = env.step(env.reset(0), actions)
    assert actions.tolist() == [[1.0]] * 3
    assert (state.obs["policy"][:, 0].tolist(), state.final_obs) == ([1.0, 2.0, 3.0], None)
    shown = mp.make_env(IsaacLike(), observation_keys=["policy"], reward_scale=0.5)
    assert shown.step(shown.reset(0), actions).reward.tolist() == [0.5, 1.0, 1.5]


def test_environments_in_the_manner_of_rsl_rl():
    box = spaces.Box(-1, 1, (1,), np.float32)
    env = mp.make_env(RslLike(), observation_space=box, action_space=box)
    state = env.step(env.reset(0), torch.ones(2, 1))
    assert (state.truncated.tolist(), state.terminated.tolist()) == ([True, False], [False, True])
    with pytest.raises(
        ValueError, match=r"RslLike has no single_observation_space: pass make_env\(..., observation_space=\)"
    ):
        mp.make_env(RslLike())


def test_what_does_not_fit_is_refused():
    with pytest.raises(ValueError, match=r"of torch.float32 on cpu, expected .*\(2, 3\) of torch.float64 on cpu"):
        mp.make_env(TensorPendulum(2), observation_space=spaces.Box(-9, 9, (3,), np.float64)).reset(0)
    with pytest.raises(ValueError, match="Return one-hot vectors"):
        mp.make_env(TensorPendulum(2), observation_space=spaces.Discrete(3))
    late = TensorPendulum(2)
    late.metadata = {"autoreset_mode": gymnasium.vector.AutoresetMode.NEXT_STEP}
    with pytest.raises(ValueError, match="must start a new episode in the step in which one ends"):
        mp.make_env(late)
    with pytest.raises(ValueError, match="pass eval_env="):
        mp.make_env(TensorPendulum(2)).similar(1)
    assert mp.make_env(TensorPendulum(2), remake=TensorPendulum).similar(5).num_envs == 5
