import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from multippo.envs.host.host_env import GymnasiumEnv


class Scripted(VectorEnv):
    """A vector environment that returns what it is told; the base of deliberately wrong ones."""

    def __init__(self, mode=AutoresetMode.NEXT_STEP, num_envs=2, obs_space=None, steps=(), first=None):
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space = obs_space or spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.steps, self.first = list(steps), np.zeros((num_envs, 1), np.float32) if first is None else first

    def reset(self, *, seed=None, options=None):
        return self.first, {}

    def step(self, actions):
        return self.steps.pop(0)


def scripted_step(obs=(0, 0), reward=(1, 1), terminated=(False, False), truncated=(False, False), infos=None):
    return (
        np.array(obs, np.float32)[:, None],
        reward if isinstance(reward, dict) else np.array(reward),
        np.array(terminated),
        np.array(truncated),
        infos or {},
    )


def no_action(num_envs=2):
    return np.zeros(num_envs, np.int64)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_episodes_of_one_two_and_three_steps(clock, mode):
    lengths = (1, 2, 3)
    env = GymnasiumEnv(SyncVectorEnv([lambda n=n: clock(n, "both") for n in lengths], autoreset_mode=mode))
    state, seen = env.reset(0), [[], [], []]
    for _ in range(12):
        state = env.step(state, no_action(3))
        columns = zip(seen, state.valid, state.reward, state.terminated, state.truncated, state.final_obs, strict=True)
        for steps, valid, reward, terminated, truncated, final in columns:
            steps += [(reward, terminated, truncated, final.argmax())] * bool(valid)
    for length, steps in zip(lengths, seen, strict=True):
        # Under NEXT_STEP 1 step in (length + 1) is a reset step. Both flags at once: the termination wins.
        times = [t % length for t in range(12 * length // (length + 1) if env.may_skip else 12)]
        assert steps == [(10.0 * time, time == length - 1, False, time + 1) for time in times]


# -- forms of infos

BOX = spaces.Box(-99, 99, (1,), np.float32)
SHOWN, SEVEN = np.array([[3.0], [4.0]], np.float32), np.array([7.0], np.float32)


def stepped(infos, space=BOX, obs=SHOWN):
    """The state after a step that shows ``obs`` and in which environment 1 has ended."""
    step = (obs, np.ones(2), np.zeros(2, bool), np.array([False, True]), infos)
    env = GymnasiumEnv(Scripted(AutoresetMode.SAME_STEP, obs_space=space, steps=[step], first=obs))
    return env.step(env.reset(0), no_action())


@pytest.mark.parametrize(
    "infos",
    [{"final_obs": (None, SEVEN)}, [{}, {"final_obs": SEVEN}], ({"other": 1}, {"final_observation": SEVEN})],
    ids=["tuple", "list of dicts", "tuple of dicts"],
)
def test_forms_of_infos(infos):
    state = stepped(infos)
    np.testing.assert_array_equal(state.final_obs, [[3], [7]])
    np.testing.assert_array_equal(state.obs, SHOWN)


def test_batches_of_final_observations_in_dicts_with_masks_and_in_tuples():
    batch = np.array([[0], [7]])
    infos = {"final_obs": {"x": batch, "_x": np.array([False, True])}}
    np.testing.assert_array_equal(stepped(infos, spaces.Dict(x=BOX), {"x": SHOWN}).final_obs["x"], [[3], [7]])
    state = stepped({"final_obs": (batch, 10 * batch)}, spaces.Tuple([BOX, BOX]), (SHOWN, 10 * SHOWN))
    np.testing.assert_array_equal(np.hstack(state.final_obs), [[3, 30], [7, 70]])


@pytest.mark.parametrize(
    ("infos", "message"),
    [
        ({"final_obs": (None, None)}, r"environments \[1\] ended, but the step's infos hold no 'final_obs'"),
        ([{}], "received a list of 1 entries"),
    ],
)
def test_infos_that_do_not_tell(infos, message):
    with pytest.raises(ValueError, match=message):
        stepped(infos)


@pytest.mark.parametrize("mode", [None, "sometimes"])
def test_a_mode_that_the_environment_does_not_name_can_be_given(mode):
    assert GymnasiumEnv(Scripted(mode), autoreset_mode="NextStep").may_skip
    assert not GymnasiumEnv(Scripted(mode), autoreset_mode=AutoresetMode.SAME_STEP).may_skip


def test_the_mode_is_the_environments_own_though_metadata_is_shared(clock):
    # gymnasium keeps the mode in the metadata of the member's class, where a later vector environment overwrites it.
    first = SyncVectorEnv([clock], autoreset_mode=AutoresetMode.NEXT_STEP)
    SyncVectorEnv([clock], autoreset_mode=AutoresetMode.SAME_STEP)
    assert first.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    assert GymnasiumEnv(first).may_skip


def test_a_wrong_next_step_declaration_is_noticed():
    # Ends in two steps in a row: impossible when the second one is the reset.
    ends = scripted_step(truncated=(False, True))
    env = GymnasiumEnv(Scripted(AutoresetMode.NEXT_STEP, steps=[ends, ends]))
    state = env.step(env.reset(0), no_action())
    with pytest.raises(ValueError, match="NEXT_STEP does not allow"):
        env.step(state, no_action())


def test_a_reward_on_the_reset_step_is_dropped():
    # As a reward wrapper would make it, which does not know of reset steps.
    steps = [scripted_step(terminated=(True, False)), scripted_step(reward=(5, 6))]
    env = GymnasiumEnv(Scripted(AutoresetMode.NEXT_STEP, steps=steps))
    state = env.step(env.step(env.reset(0), no_action()), no_action())
    np.testing.assert_array_equal(state.valid, [False, True])
    np.testing.assert_array_equal(state.reward, [0, 6])


def test_states_do_not_share_memory_with_the_environment():
    buffer = np.zeros((2, 1), np.float32)
    rewards, flags = np.zeros(2, np.float32), np.zeros(2, np.bool_)
    env = GymnasiumEnv(Scripted(steps=[(buffer, rewards, flags, flags, {})]))
    state = env.step(env.reset(0), no_action())
    buffer[:], rewards[:], flags[:] = 9, 9, True
    assert not state.obs.any()
    assert not state.reward.any()
    assert not state.terminated.any()


def test_only_the_latest_state_can_be_stepped(clock):
    env = GymnasiumEnv(SyncVectorEnv([clock]))
    first = env.reset(0)
    # What a wrapper changes does not make it another state.
    env.step(first._replace(obs=first.obs + 1, reward=first.reward + 1), no_action(1))
    with pytest.raises(ValueError, match="latest state"):
        env.step(first, no_action(1))
    with pytest.raises(ValueError, match="latest state"):
        GymnasiumEnv(SyncVectorEnv([clock])).step(first, no_action(1))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"obs": (0, 0, 0)}, ValueError, "received 3 rows, expected 2, one for each environment"),
        ({"reward": np.zeros((2, 3))}, ValueError, r"rewards of shape \(2, 3\).*expected \(2,\)"),
        ({"reward": {"walk": np.ones(2)}}, TypeError, r"the keys \['walk'\]; expected a number"),
    ],
)
def test_what_a_step_can_not_return(changed, error, message):
    env = GymnasiumEnv(Scripted(steps=[scripted_step(**changed)]))
    state = env.reset(0)
    with pytest.raises(error, match=message):
        env.step(state, no_action())


def test_limit_similar_and_close(clock):
    env = GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 2, max_episode_steps=7))
    assert (env.id, env.num_envs, env.max_episode_steps) == ("CartPole-v1", 2, 7)
    with pytest.raises(ValueError, match="eval_env="):
        env.similar(3)
    env = GymnasiumEnv(SyncVectorEnv([clock] * 2), remake=lambda n: SyncVectorEnv([clock] * n), reward_dtype=np.float64)
    other = env.similar(3)
    assert (other.num_envs, other.similar(1).num_envs, other.reset(0).reward.dtype) == (3, 1, np.float64)
    for _ in range(2):
        env.close()
