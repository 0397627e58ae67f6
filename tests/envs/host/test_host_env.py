import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv

from multippo.envs.host.host_env import GymnasiumEnv

MODES = list(AutoresetMode)


class Scripted(VectorEnv):
    """A vector environment that returns what it is told; the base of deliberately wrong ones."""

    def __init__(self, mode=AutoresetMode.NEXT_STEP, num_envs=2, obs_space=None, steps=()):
        self.metadata = {} if mode is None else {"autoreset_mode": mode}
        self.num_envs = num_envs
        self.single_observation_space = obs_space or spaces.Box(-1, 1, (1,), np.float32)
        self.single_action_space = spaces.Discrete(2)
        self.steps = list(steps)

    def reset(self, *, seed=None, options=None):
        return np.zeros((self.num_envs, 1), np.float32), {}

    def step(self, actions):
        return self.steps.pop(0)


def scripted_step(obs=(0, 0), reward=(1, 1), terminated=(False, False), truncated=(False, False), infos=None):
    return np.array(obs, np.float32)[:, None], np.array(reward), np.array(terminated), np.array(truncated), infos or {}


def no_action(num_envs=2):
    return np.zeros(num_envs, np.int64)


def plain(obs):
    """A converted observation of one environment as something that compares with ==."""
    if isinstance(obs, dict):
        return tuple((key, plain(value)) for key, value in sorted(obs.items()))
    return tuple(np.ravel(obs).tolist())


def row(tree, index):
    return {key: row(value, index) for key, value in tree.items()} if isinstance(tree, dict) else tree[index]


def real_steps(env, actions_per_env, num_steps):
    """Each environment's list of (obs, action, reward, terminated, truncated, final obs), invalid steps dropped.

    Actions are taken in the order given, one for each valid step.
    """
    records = [[] for _ in range(env.num_envs)]
    used = [0] * env.num_envs
    state = env.reset(0)
    for _ in range(num_steps):
        action = np.array([actions_per_env[used[i] % len(actions_per_env)] for i in range(env.num_envs)])
        before, state = state, env.step(state, action)
        for i in range(env.num_envs):
            if not state.valid[i]:
                assert state.reward[i] == 0
                assert not state.terminated[i]
                assert not state.truncated[i]
                continue
            used[i] += 1
            records[i].append(
                (
                    plain(row(before.obs, i)),
                    int(action[i]),
                    float(state.reward[i]),
                    bool(state.terminated[i]),
                    bool(state.truncated[i]),
                    plain(row(state.final_obs, i)),
                )
            )
    return records


@pytest.mark.parametrize("dict_obs", [False, True])
@pytest.mark.parametrize("end", ["terminated", "truncated", "both"])
@pytest.mark.parametrize("mode", MODES)
def test_every_autoreset_mode_gives_the_same_steps(clock, mode, end, dict_obs):
    # Environments of length 1 (an end in every step), 2 and 3.
    lengths = (1, 2, 3)
    vector_env = SyncVectorEnv([lambda n=n: clock(n, end, dict_obs) for n in lengths], autoreset_mode=mode)
    env = GymnasiumEnv(vector_env)
    assert env.may_skip == (mode is AutoresetMode.NEXT_STEP)
    records = real_steps(env, actions_per_env=[0, 1, 2, 3], num_steps=12)
    for length, record in zip(lengths, records, strict=True):
        # Under NEXT_STEP 1 step in (length + 1) is a reset step: 12 vector steps hold 6, 8 and 9 real ones.
        expected = 12 * length // (length + 1) if env.may_skip else 12
        assert len(record) == expected
        for t, step in enumerate(record):
            time, action = t % length, t % 4
            over = time == length - 1
            assert step == (
                shown(time, dict_obs),
                action,
                10.0 * time + action,
                over and end != "truncated",
                # Both flags at once: the termination wins.
                over and end == "truncated",
                shown(time + 1, dict_obs),
            )


def shown(time, dict_obs):
    one_hot = tuple(float(i == time) for i in range(10))
    return (("a", (time,)), ("z", one_hot)) if dict_obs else one_hot


def test_a_batched_dict_of_final_observations_with_masks():
    space = spaces.Dict({"x": spaces.Box(-1, 1, (1,), np.float32)})

    class DictEnv(Scripted):
        def reset(self, *, seed=None, options=None):
            return {"x": np.zeros((2, 1), np.float32)}, {}

        def step(self, actions):
            infos = {"final_obs": {"x": np.array([[0.0], [7.0]]), "_x": np.array([False, True])}}
            _, *rest, _ = scripted_step(terminated=(False, True))
            return ({"x": np.ones((2, 1))}, *rest, infos)

    env = GymnasiumEnv(DictEnv(AutoresetMode.SAME_STEP, obs_space=space))
    np.testing.assert_array_equal(env.step(env.reset(0), no_action()).final_obs["x"], [[1], [7]])


@pytest.mark.parametrize(("final", "reports"), [([0, 4], 1), ([0, 7], 0)])
def test_a_final_observation_that_is_the_next_first_one_is_reported_once(caplog, final, reports):
    # As of an environment that reports its buffer after it has begun the next episode in it.
    ends = scripted_step(obs=(3, 4), truncated=(False, True), infos={"final_obs": np.array(final, np.float32)[:, None]})
    env = GymnasiumEnv(Scripted(AutoresetMode.SAME_STEP, steps=[scripted_step(), ends, ends]))
    state = env.reset(0)
    for _ in range(3):
        state = env.step(state, no_action())
    assert [("environments [1]" in record.getMessage()) for record in caplog.records] == [True] * reports


@pytest.mark.parametrize("mode", [None, "sometimes"])
def test_an_unknown_autoreset_mode_is_an_error(mode):
    with pytest.raises(ValueError, match=r"autoreset_mode'\] is .*expected one of AutoresetMode.NEXT_STEP"):
        GymnasiumEnv(Scripted(mode))
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


@pytest.mark.parametrize("reward_dtype", [np.float32, np.float64])
@pytest.mark.parametrize("returned", [np.int64, np.float64, np.float32])
def test_types(returned, reward_dtype):
    obs = np.zeros((2, 1))  # float64, declared float32
    step = (obs, np.array([1, 2], returned), np.array([0, 1]), np.array([1, 1]), {})
    env = GymnasiumEnv(Scripted(steps=[step]), reward_dtype=reward_dtype)
    first = env.reset(0)
    for state in (first, env.step(first, no_action())):
        assert state.obs.dtype == np.float32
        assert state.reward.dtype == reward_dtype
        assert state.terminated.dtype == state.truncated.dtype == state.valid.dtype == np.bool_
    np.testing.assert_array_equal(state.terminated, [False, True])
    np.testing.assert_array_equal(state.truncated, [True, False])


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
        ({"reward": (1.0, None)}, TypeError, "Scripted returned rewards of type object; expected an array of numbers"),
        ({"reward": ("1", "2")}, TypeError, "rewards of type str"),
        ({"reward": (1j, 0)}, TypeError, "rewards of type complex128"),
        ({"terminated": ("False", "False")}, TypeError, "terminations of type str"),
        ({"truncated": (None, False)}, TypeError, "truncations of type object"),
    ],
)
def test_what_a_step_can_not_return(changed, error, message):
    env = GymnasiumEnv(Scripted(steps=[scripted_step(**changed)]))
    state = env.reset(0)
    with pytest.raises(error, match=message):
        env.step(state, no_action())


def test_a_vector_environment_with_rewards_for_several_keys_is_refused():
    env = GymnasiumEnv(Scripted(steps=[(*scripted_step()[:1], {"walk": np.ones(2)}, *scripted_step()[2:])]))
    state = env.reset(0)
    with pytest.raises(TypeError, match=r"the keys \['walk'\]; expected a number"):
        env.step(state, no_action())


def test_seeds(goal):
    env = GymnasiumEnv(SyncVectorEnv([goal] * 4, autoreset_mode=AutoresetMode.SAME_STEP))

    def goals(key):
        state = env.reset(key)
        shown_goals = [state.obs.ravel()]
        for _ in range(6):
            state = env.step(state, no_action(4))
            shown_goals.append(state.obs.ravel())
        return np.stack(shown_goals[::2])  # four episodes of two steps, four environments

    run = goals(0)
    assert len(np.unique(run)) == 16  # every environment and every episode has its own
    np.testing.assert_array_equal(goals(0), run)
    np.testing.assert_array_equal(goals(np.array([0, 0], np.uint32)), run)
    assert not np.isin(goals(1), run).any()


def test_limit_similar_and_close(clock):
    vector_env = gymnasium.make_vec("CartPole-v1", 2, max_episode_steps=7)
    env = GymnasiumEnv(vector_env)
    assert (env.id, env.num_envs, env.max_episode_steps) == ("CartPole-v1", 2, 7)
    with pytest.raises(ValueError, match="eval_env="):
        env.similar(3)
    env = GymnasiumEnv(SyncVectorEnv([clock] * 2), remake=lambda n: SyncVectorEnv([clock] * n), reward_dtype=np.float64)
    other = env.similar(3)
    assert (other.num_envs, other.similar(1).num_envs) == (3, 1)
    assert other.reset(0).reward.dtype == np.float64
    env.close()
    env.close()


def test_cartpoles_native_form_accepts_the_actions():
    env = GymnasiumEnv(gymnasium.make_vec("CartPole-v1", 3, vectorization_mode="vector_entry_point"))
    state = env.step(env.reset(0), np.array([0, 1, 1], np.int32))
    assert state.obs.flags.c_contiguous
    np.testing.assert_array_equal(state.reward, 1)
