"""Members stepped in this process, in one thread and in several, beside gymnasium's own SyncVectorEnv."""

import gc
import threading

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import NormalizeObservation

from multippo.envs import make_env
from multippo.envs.host import in_process
from multippo.envs.host.members import MemberConstructor
from multippo.trees import tree_leaves


class Walk(gymnasium.Env):
    """Walks at random, and ends at random; shows itself in one array that each step and reset overwrites."""

    observation_space = spaces.Box(-99, 99, (2,), np.float32)
    action_space = spaces.Box(-1, 1, (2,), np.float32)

    def __init__(self):
        self.seen = np.zeros(2, np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen[:] = self.np_random.normal(size=2)
        return self.seen, {}

    def step(self, action):
        self.seen += action * self.np_random.normal(size=2).astype(np.float32)
        ends = self.np_random.random(2) < 0.2
        return self.seen, float(self.seen.sum()), bool(ends[0]), bool(ends[1]), {}


class Tree(Walk):
    observation_space = spaces.Dict(x=Walk.observation_space, n=spaces.Discrete(3))

    def _shown(self, seen, *rest):
        return {"x": seen, "n": int(abs(seen[0])) % 3}, *rest

    def reset(self, *, seed=None, options=None):
        return self._shown(*super().reset(seed=seed, options=options))

    def step(self, action):
        return self._shown(*super().step(action))


def vector_env_of(makers, num_threads=1):
    first = []
    return in_process.InProcessVectorEnv(
        [MemberConstructor(make, i, (), first) for i, make in enumerate(makers)], num_threads
    )


def same(got, expected):
    for leaf, expected_leaf in zip(tree_leaves(got), tree_leaves(expected), strict=True):
        np.testing.assert_array_equal(leaf, expected_leaf)
        assert np.asarray(leaf).dtype == np.asarray(expected_leaf).dtype


@pytest.mark.parametrize("num_threads", [1, 3])
@pytest.mark.parametrize("kind", [Walk, Tree])
def test_trajectories_are_those_of_gymnasiums_sync_vector_env(kind, num_threads):
    # Its final observations are overwritten by the reset, hence the copies.
    class Copying(kind):
        def step(self, action):
            self.seen = self.seen.copy()
            obs, *rest = super().step(action)
            self.seen = self.seen.copy()
            return obs, *rest

    theirs = SyncVectorEnv([Copying] * 5, autoreset_mode=AutoresetMode.SAME_STEP)
    ours = vector_env_of([kind] * 5, num_threads)
    same(ours.reset(seed=3)[0], theirs.reset(seed=3)[0])
    rng, num_ended = np.random.default_rng(0), 0
    for step in range(30):
        if step == 20:
            first_two = np.arange(5) < 2
            seen = [env.reset(options={"reset_mask": first_two})[0] for env in (ours, theirs)]
            same(*seen)
        actions = rng.uniform(-1, 1, (5, 2)).astype(np.float32)
        (*got, infos), (*expected, their_infos) = ours.step(actions), theirs.step(actions)
        same(tuple(got), tuple(expected))
        finals = [found.get("final_obs", [None] * 5) for found in (infos, their_infos)]
        for one, other in zip(*finals, strict=True):
            same(one, other)
            num_ended += one is not None
    # 5 environments for 30 steps, of which 1 - 0.8² = 36 % end an episode: 54.
    assert 40 < num_ended < 70
    ours.close()


def test_two_members_are_in_their_steps_at_once_and_an_error_names_the_first():
    meeting = threading.Barrier(2)

    class Meeting(Walk):
        def step(self, action):
            meeting.wait(timeout=20)
            raise ValueError(f"met {action[0]:.0f}")

    env = vector_env_of([Meeting, Meeting], 2)
    env.reset(seed=0)
    for _ in range(2):  # the threads go on
        with pytest.raises(ValueError, match="met 0") as caught:
            env.step(np.array([[0, 0], [1, 1]], np.float32))
        assert caught.value.__notes__ == ["Raised by environment 0 of the batch."]
    env.close()


ZEROS = np.zeros(2, np.float32)


@pytest.mark.parametrize(
    ("returned", "error", "message"),
    [
        ((ZEROS, None, False, False, {}), TypeError, "returned a NoneType as reward; expected a number"),
        ((ZEROS, 1.0, "False", False, {}), TypeError, "as terminated; expected a bool"),
        ((np.zeros(3, np.float32), 1.0, False, False, {}), ValueError, r"does not fit .* received shape \(3,\)"),
        ((np.array(["a", "b"]), 1.0, False, False, {}), ValueError, "does not fit .* expected numbers"),
        ((ZEROS, 1.0), ValueError, "not enough values"),
    ],
)
def test_faults_after_the_first_step_are_told_of_their_environment(returned, error, message):
    class Late(Walk):
        answers = ((ZEROS, 1.0, False, False, {}), returned)

        def step(self, action):
            answer, *self.answers = self.answers
            return answer

    env = vector_env_of([Walk, Late])
    env.reset(seed=0)
    env.step(np.zeros((2, 2), np.float32))
    with pytest.raises(error, match=message) as caught:
        env.step(np.zeros((2, 2), np.float32))
    assert "Raised by environment 1 of the batch." in caught.value.__notes__


def test_threads_end_with_the_environment():
    before = set(threading.enumerate())

    def ended():
        for thread in set(threading.enumerate()) - before:
            thread.join(timeout=20)
        return set(threading.enumerate()) <= before

    env = vector_env_of([Walk] * 3, 3)
    env.reset(seed=0)
    env.step(np.zeros((3, 2), np.float32))
    assert len(set(threading.enumerate()) - before) == 2
    env.use_threads(1)
    assert ended()
    env.use_threads(2)
    env.close()
    assert ended()
    env = vector_env_of([Walk] * 3, 3)
    env.reset(seed=0)
    env.step(np.zeros((3, 2), np.float32))
    del env
    gc.collect()
    assert ended()


def trajectory(env):
    state, rng = env.reset(7), np.random.default_rng(0)
    seen = [state[:5]]
    for _ in range(30):
        state = env.step(state, rng.uniform(-1, 1, (3, 1)).astype(np.float32))
        seen.append(state[:5])
    return seen


@pytest.mark.parametrize(
    ("seconds", "choice"), [({"threads": 0.9, "sync": 1.0}, "threads"), ({"threads": 1.0, "sync": 1.0}, "sync")]
)
def test_a_clock_chooses_for_mujoco_and_changes_nothing_else(seconds, choice, monkeypatch):
    pytest.importorskip("mujoco")
    sync = make_env("InvertedPendulum-v5", 3, vectorization="sync")
    monkeypatch.setattr(in_process, "num_cores", lambda: 2)
    medians = list(seconds.values())
    monkeypatch.setattr(in_process.statistics, "median", lambda taken: medians.pop(0))
    auto = make_env("InvertedPendulum-v5", 3, reward_scale=1.0)
    assert (auto.vectorization, sync.vectorization) == (choice, None)
    expected = trajectory(sync)
    same(trajectory(auto), expected)
    # The pendulum falls within some 10 steps.
    assert sum(terminated.sum() for _, _, terminated, *_ in expected) >= 3
    assert not medians
    auto.similar(2).close()  # takes the same form, without a clock
    sync.close()
    auto.close()


@pytest.mark.parametrize("kwargs", [{"render_mode": "rgb_array"}, {"wrappers": [NormalizeObservation]}, {}])
def test_there_is_no_choice_where_steps_leave_a_trace_or_share_anything(kwargs):
    if kwargs:
        pytest.importorskip("mujoco")
        env = make_env("InvertedPendulum-v5", 2, **kwargs)
    else:
        env = make_env([Walk] * 2)
    assert env.vectorization is None
    env.close()
