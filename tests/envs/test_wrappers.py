"""Reward scale, observation filter, episode limit and action repeat, on every family they are for."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from probing import Small

import multippo as mp
from multippo.envs.nonfinite import restart_broken
from multippo.envs.wrappers import EpisodeLimit, FilterObservation, ScaleReward
from multippo.testing import Clock, FunctionalClock, Goal, Spy


class Sensors(Small):
    """Counts its steps in three places of a nested Dict; pays the count; ends after ``length`` steps by terminating."""

    box = spaces.Box(-100, 100, (1,), np.float32)
    observation_space = spaces.Dict({"b": spaces.Dict({"x": box, "y": box}), "a": box})

    def __init__(self, length: int = 5, nan_at: int = -1) -> None:
        self.length, self.nan_at, self.total = length, nan_at, 0

    def observe(self) -> dict[str, Any]:
        value = lambda offset: np.full(1, self.time + offset, np.float32)  # noqa: E731
        return {"a": value(0), "b": {"x": value(10), "y": value(np.nan if self.total == self.nan_at else 20)}}

    def step(self, action: Any) -> Any:
        self.total += 1
        return super().step(action)

    def outcome(self) -> Any:
        return float(self.time), self.time == self.length, False


def play(env: Any, steps: int) -> list[Any]:
    state, seen = env.reset(0), []
    for _ in range(steps):
        state = restart_broken(env, env.step(state, np.zeros(env.num_envs, np.int64)))
        seen.append(state)
    return seen


def test_scaled_rewards():
    env = mp.make_env("CartPole-v1", num_envs=2, reward_scale=0.25)
    assert isinstance(env, ScaleReward)
    states = play(env, 3)
    assert all(state.reward.dtype == np.float32 for state in states)
    np.testing.assert_array_equal([state.reward for state in states], np.full((3, 2), 0.25))
    assert env.similar(3).num_envs == 3
    np.testing.assert_array_equal(play(env.similar(3), 1)[0].reward, np.full(3, 0.25))
    env.close()


def test_scaled_rewards_by_key():
    class Keyed(Clock):
        def reset(self, key: Any) -> Any:
            state = super().reset(key)
            return state._replace(reward={"a": state.reward, "b": state.reward})

        def step(self, env_state: Any, action: Any) -> Any:
            state = super().step(env_state, action)
            return state._replace(reward={"a": state.reward, "b": 2 * state.reward})

    state = play(ScaleReward(Keyed(3, num_envs=2), {"b": 10.0, "a": -1.0}), 1)[0]
    np.testing.assert_array_equal(state.reward["a"], [-1, -1])
    np.testing.assert_array_equal(state.reward["b"], [20, 20])
    with pytest.raises(ValueError, match=r"scales for \['c'\], but Keyed gives \['a', 'b'\]"):
        play(ScaleReward(Keyed(3), {"c": 1.0}), 1)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_shown_keys(mode):
    vector_env = SyncVectorEnv([Sensors, lambda: Sensors(4)], autoreset_mode=mode)
    env = mp.make_env(vector_env, observation_keys=["b.y", "a"])
    assert env.observation_space == spaces.Dict(
        {"b": spaces.Dict({"y": spaces.Box(-100, 100, (1,), np.float32)}), "a": spaces.Box(-100, 100, (1,), np.float32)}
    )
    skips = mode is AutoresetMode.NEXT_STEP
    for t, state in enumerate(play(env, 7)):
        assert set(state.obs) == set(state.final_obs) == {"a", "b"}
        assert set(state.obs["b"]) == set(state.final_obs["b"]) == {"y"}
        period = 6 if skips else 5
        np.testing.assert_array_equal(state.obs["a"][0, 0], (t + 1) % period)
        np.testing.assert_array_equal(state.obs["b"]["y"], state.obs["a"] + 20)
        if t == 4:
            assert state.final_obs["a"][0, 0] == 5
    env.close()


class Talking(Small):
    """Says in words what it shows in numbers."""

    observation_space = spaces.Dict(x=spaces.Box(0, 9, (1,), np.float32), text=spaces.Text(9))

    def observe(self) -> Any:
        return {"x": np.array([self.time], np.float32), "text": str(self.time)}

    def outcome(self) -> Any:
        return 1.0, False, self.time == 2


@pytest.mark.parametrize("form", ["sync", "async", *AutoresetMode])
def test_keys_that_are_hidden_may_be_of_any_space(form):
    if isinstance(form, str):
        env = mp.make_env([Talking, Talking], observation_keys=["x"], vectorization=form)
    else:
        env = mp.make_env(SyncVectorEnv([Talking, Talking], autoreset_mode=form), observation_keys=["x"])
    assert env.observation_space == spaces.Dict(x=spaces.Box(0, 9, (1,), np.float32))
    assert [state.final_obs["x"][0, 0] for state in play(env, 2)] == [1, 2]
    env.close()


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ([], "expected a list of at least one key"),
        (["b.z"], r"no key 'z' that could be shown; it has the keys \['x', 'y'\]"),
    ],
)
def test_keys_that_there_are_not(keys, message):
    with pytest.raises(ValueError, match=message):
        mp.make_env(Sensors, observation_keys=keys)


@pytest.mark.parametrize("mode", list(AutoresetMode))
def test_an_episode_limit_around_a_vector_environment(mode):
    makers = [Sensors, lambda: Sensors(2)]
    env = mp.make_env(SyncVectorEnv(makers, autoreset_mode=mode), max_episode_steps=3)
    assert isinstance(env, EpisodeLimit)
    assert env.max_episode_steps == 3
    states = play(env, 9)
    np.testing.assert_array_equal([state.truncated[0] for state in states], [False, False, True] * 3)
    np.testing.assert_array_equal([state.obs["a"][0, 0] for state in states], [1, 2, 0] * 3)
    np.testing.assert_array_equal([states[t].final_obs["a"][0, 0] for t in (2, 5, 8)], [3, 3, 3])
    assert all(state.valid[0] for state in states)
    # The other ends by itself at 2, which is no truncation.
    assert not any(state.truncated[1] for state in states)
    skips = mode is AutoresetMode.NEXT_STEP
    ends = [False, True, False] * 3 if skips else [False, True] * 4 + [False]
    np.testing.assert_array_equal([state.terminated[1] for state in states], ends)
    env.close()


def test_an_episode_limit_starts_counting_with_each_reset():
    env = EpisodeLimit(Clock(10, num_envs=1), 4)
    state = env.reset(0)
    for _ in range(3):
        state = env.step(state, np.zeros(1, np.int64))
    states = play(env, 4)  # resets
    np.testing.assert_array_equal([s.truncated[0] for s in states], [False, False, False, True])


def test_limits_that_are_not_possible():
    with pytest.raises(ValueError, match="make it with episode_length=4"):
        EpisodeLimit(mp.make_env(FunctionalClock(9)), 4)
    with pytest.raises(ValueError, match="can't restart single environments"):
        mp.make_env(gymnasium.make_vec("CartPole-v1", 2), max_episode_steps=3)

    # Not below its own limit: nothing to wrap.
    assert not isinstance(mp.make_env(gymnasium.make_vec("CartPole-v1", 2), max_episode_steps=500), EpisodeLimit)


def test_a_repeat_stops_where_the_episode_ends():
    env = mp.make_env(Sensors, action_repeat=3)
    states = play(env, 2)
    # 1 + 2 + 3, then 4 + 5 and the end; the next action is that of a new episode.
    assert [float(state.reward[0]) for state in states] == [6, 9]
    assert [bool(state.terminated[0]) for state in states] == [False, True]
    env.close()


def test_a_broken_step_behind_wrappers():
    makers = [lambda: Sensors(nan_at=3), Sensors]
    env = mp.make_env(
        SyncVectorEnv(makers, autoreset_mode=AutoresetMode.SAME_STEP), reward_scale=2.0, max_episode_steps=4
    )
    env = FilterObservation(env, ["b"])
    states = play(env, 5)
    assert [state.broken is not None and state.broken[0] > 0 for state in states] == [False, False, True, False, False]
    np.testing.assert_array_equal([state.reward[0] for state in states], [2, 4, 0, 2, 4])
    np.testing.assert_array_equal([state.obs["b"]["x"][0, 0] for state in states], [11, 12, 10, 11, 12])
    # The neighbour's limit of 4 is counted on, the broken one's from its restart.
    np.testing.assert_array_equal([state.truncated[1] for state in states], [False, False, False, True, False])
    np.testing.assert_array_equal([state.reward[1] for state in states], [2, 4, 6, 8, 2])
    env.close()


def test_wrappers_pass_everything_on():
    spy = Spy(Goal(2))
    env = ScaleReward(spy, 1.0)
    assert (env.id, env.num_envs, env.may_skip, env.max_episode_steps) == (spy.id, 2, False, 2)
    env.reset(5)
    assert spy.resets == [5]
    pool = mp.make_env(FunctionalClock(3), num_envs=2)
    wrapped = ScaleReward(pool, 1.0)
    drawn = wrapped.draw_starts(1)
    state = wrapped.with_starts(wrapped.reset(0), drawn)
    assert state.internal.pool is drawn
