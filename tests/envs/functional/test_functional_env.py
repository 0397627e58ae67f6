import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import support
from gymnasium import spaces
from jax.interpreters.batching import register_vmappable

import multippo as mp
from multippo.envs.functional.functional_env import FunctionalEnv
from multippo.envs.make import make_env
from multippo.testing import FunctionalGoal
from multippo.testing.environments import State


def signature(tree):
    """Structure; and of each leaf shape, type, and whether that is weak."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, [jax.typeof(leaf) for leaf in leaves]


def run(env, num_steps, key=0, action=None):
    """The states of a run, with NumPy leaves, the first one included."""
    state = env.reset(key)
    states = [state]
    for _ in range(num_steps):
        state = env.step(state, jnp.zeros(env.num_envs, int) if action is None else action)
        states.append(state)
    return jax.tree.map(np.asarray, states)


@pytest.mark.parametrize(("end", "dict_obs"), [("terminated", True), ("truncated", False)])
def test_clock(jax_clock, end, dict_obs):
    env = FunctionalEnv(jax_clock(3, end, dict_obs), 2)
    assert env.functional
    assert not env.may_skip
    times, finals, ends = [], [], []
    for t, state in enumerate(run(env, 7, action=jnp.array([0, 4]))[1:]):
        obs, final = (state.obs["z"], state.final_obs["z"]) if dict_obs else (state.obs, state.final_obs)
        times.append(int(obs[0].argmax()))
        finals.append(int(final[0].argmax()))
        flag, other = (state.terminated, state.truncated)[:: 1 if end == "terminated" else -1]
        assert not other.any()
        assert state.valid.all()
        ends.append(bool(flag[0]))
        # 10·time + action; the metric is the time after the step, also in the step that ends an episode.
        np.testing.assert_array_equal(state.reward, [10 * (t % 3), 10 * (t % 3) + 4])
        np.testing.assert_array_equal(state.metrics["time"], t % 3 + 1)
    assert times == [1, 2, 0, 1, 2, 0, 1]
    assert finals == [1, 2, 3, 1, 2, 3, 1]
    assert ends == [False, False, True, False, False, True, False]
    if dict_obs:
        assert state.obs["a"].dtype == np.uint8


@pytest.mark.parametrize(
    ("length", "end", "limit", "terminated", "truncated"),
    [
        (9, "truncated", 3, [], [3, 6, 9]),
        # An end in the very step of the limit is a termination.
        (3, "terminated", 3, [3, 6, 9], []),
        # The environment's own time limit in the very step of the adapter's is a truncation.
        (3, "truncated", 3, [], [3, 6, 9]),
    ],
)
def test_the_adapters_own_limit(jax_clock, length, end, limit, terminated, truncated):
    env = FunctionalEnv(jax_clock(length, end), 2, episode_length=limit)
    states = run(env, 9)
    assert [t for t, state in enumerate(states) if state.terminated.all()] == terminated
    assert [t for t, state in enumerate(states) if state.truncated.all()] == truncated
    assert not any((state.terminated & state.truncated).any() for state in states)
    assert env.max_episode_steps == limit


@pytest.mark.parametrize("num_envs", [3, 8, 100])
def test_each_episode_has_its_own_start(num_envs):
    env = FunctionalEnv(FunctionalGoal(), num_envs)
    states = run(env, 10, action=jnp.zeros((num_envs, 1)))
    goals = np.stack([state.obs[:, 0] for state in states[::2]])
    # No environment sees a goal twice, and no two environments see one at the same time.
    for axis, count in ((0, 6), (1, num_envs)):
        assert (np.diff(np.sort(goals, axis), axis=axis) > 0).all(), f"repeated along axis {axis} of {count}"


def test_refresh_brings_new_starts_and_lets_episodes_run_on():
    env = FunctionalEnv(FunctionalGoal(), 2)
    action = jnp.zeros((2, 1))
    state = env.step(env.reset(0), action)
    refreshed = env.refresh(state, 1)
    assert refreshed.obs is state.obs
    old, new = env.step(state, action), env.step(refreshed, action)
    np.testing.assert_array_equal(old.final_obs, new.final_obs)
    assert not np.isin(np.asarray(new.obs), np.asarray(old.internal.pool.obs)).any()
    np.testing.assert_array_equal(new.internal.draws, 1)
    np.testing.assert_array_equal(env.refresh(new, 2).internal.draws, 0)


def test_equal_keys_give_equal_runs_and_others_differ():
    env = FunctionalEnv(FunctionalGoal(), 2)
    np.testing.assert_array_equal(env.reset(3).obs, env.reset(np.array([0, 3], np.uint32)).obs)
    assert not np.isin(np.asarray(env.reset(4).obs), np.asarray(env.reset(3).obs)).any()
    assert not np.isin(np.asarray(env.reset(3).internal.pool.obs), np.asarray(env.reset(3).obs)).any()


class Drifting:
    """A reset of integers and Python numbers; a step of floats, booleans and 64-bit numbers."""

    observation_space = spaces.Box(-1, 1, (2,), np.float32)
    action_size = 1

    def reset(self, key):
        info = {"truncated": False, "count": 0, "noise": key, "typed": jax.random.wrap_key_data(key)}
        return State(jnp.zeros(2), 0, False, info, {"distance": 0})

    def step(self, state, action):
        count = state.info["count"] + 1
        info = {**state.info, "truncated": count >= 4, "count": count.astype(jnp.int8)}
        obs = (state.obs + action).astype(jnp.float16)
        return State(obs, 1.5 * action[0], count >= 2, info, {"distance": action[0] * 0.5})


def check_signatures(env):
    first = env.reset(0)
    action = jnp.ones((env.num_envs, 1))
    stepped = env.step(first, action)
    assert signature(first) == signature(stepped) == signature(env.refresh(stepped, 1))
    assert not any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(first))
    assert first.reward.dtype == stepped.reward.dtype == env._reward_dtype
    assert stepped.terminated.dtype == stepped.truncated.dtype == stepped.valid.dtype == jnp.bool_
    assert stepped.obs.dtype == env.observation_space.dtype
    np.testing.assert_allclose(stepped.reward, 1.5)
    np.testing.assert_allclose(stepped.metrics["distance"], 0.5)
    assert {leaf.dtype for leaf in stepped.metrics.values()} == {env._reward_dtype}

    stepped = env.step(env.refresh(stepped, 2), action)
    with support.compiling_nothing():
        for seed in range(3):
            stepped = env.step(env.refresh(stepped, seed), action)
            env.reset(seed)


@pytest.mark.parametrize("double", [False, True])
def test_reset_step_and_refresh_return_one_type(double):
    with jax.enable_x64(double):
        env = FunctionalEnv(Drifting(), 3, reward_dtype=np.float64 if double else np.float32)
        assert env.reset(0).obs.dtype == np.float32
        check_signatures(env)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s._replace(info={**s.info, "new": 1}), r"Faulty.step.*additional leaves \[\"\.info\['new'\]\"\]"),
        (lambda s: s._replace(info={}), r"missing leaves \[.*time"),
    ],
    ids=["additional", "missing"],
)
def test_a_state_that_changes_its_type_is_refused_by_leaf(change, message):
    class Faulty(FunctionalGoal):
        def step(self, state, action):
            return change(super().step(state, action))

    env = FunctionalEnv(Faulty(), 2)
    with pytest.raises(TypeError, match=message):
        env.step(env.reset(0), jnp.zeros((2, 1)))


def test_no_two_arrays_of_a_state_share_memory():
    # A compiled training step donates the state; a buffer can be donated once. 64 environments use all of the pool.
    for num_envs in (3, 64):
        env = FunctionalEnv(FunctionalGoal(), num_envs)
        first = env.reset(0)
        for state in (first, env.step(first, jnp.zeros((num_envs, 1)))):
            pointers = [leaf.unsafe_buffer_pointer() for leaf in jax.tree.leaves(state)]
            assert len(set(pointers)) == len(pointers)


def test_action_repeat(jax_clock):
    # Actions 0, clock of 5: steps pay 0 10 20 30 40. Repeated twice: 0+10, 20+30, then 40 alone, as the episode ends.
    env = FunctionalEnv(jax_clock(5, "terminated"), 1, action_repeat=2)
    states = run(env, 4)[1:]
    assert [float(state.reward[0]) for state in states] == [10, 50, 40, 10]
    assert [bool(state.terminated[0]) for state in states] == [False, False, True, False]
    assert [int(state.final_obs[0].argmax()) for state in states] == [2, 4, 5, 2]


@pytest.mark.parametrize("truncation_key", [None, "truncation"])
def test_an_episode_limit_amid_an_action(jax_clock, clock, truncation_key):
    # Limit 5: 0+10, 20+30, then 40 alone. A limit of 1 pays the first step's 0; one of 6 is that of three actions.
    for limit, rewards in ((5, [10, 50, 40, 10]), (1, [0, 0, 0, 0]), (6, [10, 50, 90, 10])):
        env = FunctionalEnv(
            jax_clock(9), 2, action_repeat=2, episode_length=limit, truncation_key=truncation_key, pool_size=2
        )
        host = make_env([lambda: clock(9)] * 2, max_episode_steps=limit, action_repeat=2)
        for states in (run(env, 4)[1:], run(host, 4)[1:]):
            for i in range(2):
                assert [float(state.reward[i]) for state in states] == rewards
                cut = [(t + 1) % env.max_episode_steps == 0 for t in range(4)]
                assert [bool(state.truncated[i]) for state in states] == cut
                last = [min(2 * (t % env.max_episode_steps) + 2, limit) for t in range(4)]
                assert [int(state.final_obs[i].argmax()) for state in states] == last
            assert not any(state.terminated.any() for state in states)
        assert env.max_episode_steps == host.max_episode_steps


def test_similar_and_arguments():
    env = FunctionalEnv(FunctionalGoal(), 2, episode_length=5)
    other = env.similar(7)
    assert (other.num_envs, other.max_episode_steps, other.id) == (7, 5, "FunctionalGoal")
    assert other.reset(0).obs.shape == (7, 1)
    with pytest.raises(ValueError, match=r"FunctionalGoal\(.*pool_size=2.*not possible: expected an integer"):
        FunctionalEnv(FunctionalGoal(), 3, pool_size=2)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Physics:
    """A time for each environment, and a counter of steps that all share."""

    time: Any
    shared: Any


def _for_one(continuation, _, physics, axis):
    return Physics(continuation(physics.time, axis), physics.shared)


def _of_all(continuation, axis_size, physics, axis):
    return Physics(continuation(axis_size, physics.time, axis), physics.shared)


# So MJX's data for warp tell vmap that they have buffers without a row for each world.
register_vmappable(Physics, int, int, _for_one, _of_all, None)


class SharingClock:
    """A clock whose simulator keeps an array that all environments share."""

    action_size = 1

    def __init__(self, size):
        self.size = size

    def _state(self, physics):
        over = (physics.time == 3).astype(jnp.float32)
        info = {"physics": physics, "truncation": over}
        return State(physics.time[None].astype(jnp.float32), 1.0 * physics.time, over, info, {})

    def reset(self, key):
        return self._state(Physics(jax.random.randint(key, (), 0, 2), jnp.zeros(self.size, jnp.int32)))

    def step(self, state, action):
        physics = state.info["physics"]
        return self._state(Physics(physics.time + 1, physics.shared + 1))


# One environment; as many rows as environments; as the pool.
@pytest.mark.parametrize(("num_envs", "size", "action_repeat"), [(1, 4, 1), (4, 4, 2), (5, 4, 1), (5, 64, 2)])
def test_a_simulator_with_leaves_that_all_environments_share(num_envs, size, action_repeat):
    env = FunctionalEnv(SharingClock(size), num_envs, truncation_key="truncation", action_repeat=action_repeat)
    state = env.reset(0)
    time = np.asarray(state.obs)[:, 0]
    for t in range(1, 6):
        state = env.step(state, np.zeros((num_envs, 1), np.float32))
        over = time + action_repeat >= 3
        last = np.minimum(time + action_repeat, 3)
        np.testing.assert_array_equal(state.truncated, over)
        np.testing.assert_array_equal(np.asarray(state.final_obs)[:, 0], last)
        time = np.where(over, np.asarray(state.obs)[:, 0], last)
        np.testing.assert_array_equal(np.asarray(state.obs)[:, 0], time)
        # No environment's new episode puts the others' back.
        shared = state.internal.simulator.info["physics"].shared
        np.testing.assert_array_equal(shared, np.full(size, t * action_repeat))


# -- an environment made in double precision computes in it, whichever engine and mode it is called from


class Draws:
    """Shows a number of the widest type, and a third more after each step."""

    action_size = 1

    def reset(self, key):
        return State(jax.random.uniform(key, (2,)), jnp.zeros(()), jnp.zeros(()), {}, {})

    def step(self, state, action):
        return state._replace(obs=state.obs + 1.0 / 3.0, reward=jnp.sum(action))


def rolled(name: str, precision: str) -> list[np.ndarray]:
    with mp.use_backend(name) as engine, engine.precision(precision):
        env = FunctionalEnv(Draws(), 2, truncation_key=None)
    # Out of the engine's precision: the environment keeps its own.
    shown = [env.reset(np.array([0, 7], np.uint32))]
    for _ in range(2):
        shown.append(env.step(shown[-1], jnp.zeros((2, 1))))
    # What is observed is of the space's type; what is simulated is not.
    return [np.asarray(state.internal.simulator.obs) for state in shown]


@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_every_engine_sees_the_same_numbers(precision):
    found = {name: rolled(name, precision) for name in ("jax", "torch")}
    for shown in found.values():
        assert all(obs.dtype == precision for obs in shown)
        np.testing.assert_array_equal(shown, found["jax"])
    # A third of double precision, not one of single precision: the steps are computed in it, too.
    np.testing.assert_allclose(found["jax"][2] - found["jax"][0], 2 / 3, atol=1e-6 if precision == "float32" else 1e-15)
