"""Environments of other suites, by name where a suite is installed, and its interface by a stand-in where not."""

import importlib
import importlib.util
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct
from gymnasium import spaces

import multippo as mp
from multippo.envs.registry import FAMILIES, REGISTERING, list_envs

NAMES = {
    "popgym": "popgym/RepeatPreviousEasy-v0",
    "minigrid": "minigrid/MemoryS7-v0",
    "ale_py": "ALE/Pong-v5",
    "envpool": "envpool/CartPole-v1",
    "gymnax": "gymnax/MemoryChain-bsuite",
    "craftax": "craftax/Craftax-Classic-Symbolic-v1",
    "jumanji": "jumanji/Snake-v1",
    "navix": "navix/Navix-Empty-5x5-v0",
}


def rollout(env: Any, steps: int, action: Any) -> list[Any]:
    state, seen = env.reset(0), []
    for _ in range(steps):
        state = env.step(state, action)
        seen.append(jax.tree.map(np.asarray, (state.obs, state.reward, state.terminated, state.truncated)))
    return seen


@pytest.mark.filterwarnings("ignore")  # the suites' own
@pytest.mark.parametrize("package", NAMES)
def test_one_key_gives_one_episode_in_each_suite_that_is_installed(package):
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")
    env = mp.make_env(NAMES[package], 2)
    assert any(name.endswith(NAMES[package].rpartition("/")[2]) for name in list_envs())
    action = jax.tree.map(lambda x: np.repeat(np.asarray(x)[None], 2, 0), env.action_space.sample())
    first, again = (rollout(env, 5, action) for _ in range(2))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    env.close()


@pytest.mark.parametrize("name", NAMES.values())
def test_a_suite_that_is_missing_is_named_with_its_extra(name, monkeypatch):
    family = name.partition("/")[0]
    package = REGISTERING[family].package if family in REGISTERING else FAMILIES[family].package
    if importlib.util.find_spec(package) is not None:
        pytest.skip(f"{package} is installed")
    extra = REGISTERING[family].extra if family in REGISTERING else family
    with pytest.raises(ImportError, match=rf"pip install 'multippo\[{extra}\]'"):
        mp.make_env(name)


@struct.dataclass
class Time:
    time: Any


@struct.dataclass
class Params:
    max_steps_in_episode: int = 3
    last: int = 100


class Gymnax:
    """Environment with gymnax's methods that ends at the step ``params.last``, or by time."""

    default_params = Params()

    def reset(self, key: Any) -> Any: ...

    def step(self, key: Any, state: Any, action: Any) -> Any:
        raise AssertionError("resets hide the last observation")

    def reset_env(self, key: Any, params: Any) -> Any:
        return jnp.int32(0), Time(jnp.int32(0))

    def step_env(self, key: Any, state: Any, action: Any, params: Any) -> Any:
        state = Time(state.time + 1)
        done = state.time >= params.last
        if not hasattr(self, "is_truncated"):
            done |= state.time >= params.max_steps_in_episode
        return state.time % 5, state, action.astype(jnp.float32), done, {}

    def action_space(self, params: Any) -> Any:
        return spaces.Discrete(4)

    def observation_space(self, params: Any) -> Any:
        return spaces.Discrete(5)


class GymnaxWithCuts(Gymnax):
    """Environment as gymnax 1.0 has them, where an end by time is told apart."""

    def is_truncated(self, state: Any, params: Any) -> Any:
        return state.time >= params.max_steps_in_episode


@pytest.mark.parametrize("kind", [Gymnax, GymnaxWithCuts])
def test_an_end_by_time_is_a_truncation_in_gymnax(kind, monkeypatch):
    monkeypatch.setattr(Gymnax, "__module__", "gymnax.environments")
    env = mp.make_env(kind(), 2)
    assert env.max_episode_steps == 3
    seen = rollout(env, 4, np.array([1, 2]))
    np.testing.assert_array_equal([truncated for *_, truncated in seen], [[False] * 2] * 2 + [[True] * 2, [False] * 2])
    assert not any(terminated.any() for *_, terminated, _ in seen)
    np.testing.assert_array_equal(seen[0][0], np.eye(5)[[1, 1]])
    np.testing.assert_array_equal(seen[0][1], [1.0, 2.0])

    ended = mp.make_env(kind(), 2, params=Params(max_steps_in_episode=3, last=3))
    *_, terminated, truncated = rollout(ended, 3, np.array([1, 2]))[-1]
    assert terminated.all() and not truncated.any()


class Seen(NamedTuple):
    grid: Any
    action_mask: Any


@struct.dataclass
class Step:
    observation: Any
    reward: Any
    discount: Any
    step_type: Any
    info: Any = struct.field(default_factory=dict)

    def last(self) -> Any:
        return self.step_type == 2

    is_done = last

    def is_truncation(self) -> Any:
        return self.last() & (self.discount > 0)


class Jumanji:
    """Environment with jumanji's methods, cut after two steps by a discount of 1."""

    class action_spec:
        num_values = np.array([2, 3])

    def reset(self, key: Any) -> Any:
        return jnp.int32(0), self._at(jnp.int32(0))

    def step(self, state: Any, action: Any) -> Any:
        return state + 1, self._at(state + 1)

    def _at(self, count: Any) -> Step:
        seen = Seen(jnp.ones((2, 2), jnp.int32) * count, jnp.ones(5, bool))
        return Step(seen, count * 1.0, jnp.float32(1), jnp.where(count == 2, 2, 1))


class Navix:
    """Environment with navix's methods, whose public step resets on its own."""

    max_steps = 2

    class action_space:
        n, shape = 7, ()

    def reset(self, key: Any) -> Step:
        return self._at(jnp.float32(0))

    def step(self, state: Step, action: Any) -> Step:
        raise AssertionError("resets hide the last observation")

    def _step(self, state: Step, action: Any) -> Step:
        return self._at(state.reward + 1)

    def _at(self, count: Any) -> Step:
        return Step(count[None], count, jnp.float32(1), jnp.where(count == 2, 2, 1))


@pytest.mark.parametrize("kind", [Jumanji, Navix])
def test_time_steps_are_taken_apart(kind, monkeypatch):
    monkeypatch.setattr(kind, "__module__", f"{kind.__name__.lower()}.environments")
    env = mp.make_env(kind(), 2)
    action = np.zeros((2, 2), np.int32) if kind is Jumanji else np.zeros(2, np.int32)
    seen = rollout(env, 3, action)
    np.testing.assert_array_equal([reward[0] for _, reward, *_ in seen], [1.0, 2.0, 1.0])
    np.testing.assert_array_equal([truncated[0] for *_, truncated in seen], [False, True, False])
    if kind is Jumanji:
        assert set(env.observation_space.spaces) == {"grid", "action_mask"}
        np.testing.assert_array_equal(seen[0][0]["grid"], np.ones((2, 2, 2)))


@struct.dataclass
class Simulated:
    obs: Any
    reward: Any
    done: Any
    info: Any = struct.field(default_factory=dict)


class Simulator:
    """Simulator whose reward is its system's gain, and whose episodes last three steps."""

    action_size = 1

    def __init__(self) -> None:
        self.sys = {"gain": jnp.float32(1), "mesh": jnp.zeros(100)}

    @property
    def unwrapped(self) -> Any:
        return self

    def reset(self, key: Any) -> Simulated:
        return Simulated(jnp.zeros(1), jnp.float32(0), jnp.float32(0))

    def step(self, state: Simulated, action: Any) -> Simulated:
        obs = state.obs + 1
        return Simulated(obs, self.sys["gain"], jnp.float32(obs[0] == 3), state.info)


def gains(system: Any, rng: Any) -> Any:
    drawn = jax.vmap(lambda key: jax.random.uniform(key, (), minval=0.5, maxval=2.0))(rng)
    return {**system, "gain": drawn}, {"gain": 0, "mesh": None}


def test_each_episode_has_a_system_of_its_own():
    env = mp.make_env(Simulator(), 3, randomization_fn=gains, truncation_key=None)
    rewards = np.array([reward for _, reward, *_ in rollout(env, 6, np.zeros((3, 1), np.float32))])
    for episode in (rewards[:3], rewards[3:]):
        np.testing.assert_array_equal(episode, np.repeat(episode[:1], 3, 0))
    assert len(np.unique(rewards)) == 6
    assert env.env.sys["gain"] == 1


def test_channels_may_come_first():
    first, last = (spaces.Box(0, 255, shape, np.uint8) for shape in ((4, 36, 40), (36, 40, 4)))
    image = np.random.default_rng(0).integers(0, 255, (2, 36, 40, 4)).astype(np.uint8)
    options: dict[str, Any] = {"channels": (2,), "kernel_sizes": (8,), "strides": (4,), "hidden_features": 3}
    values = []
    for space, x in ((first, np.moveaxis(image, -1, 1)), (last, image)):
        net = mp.make_cnn_actor_critic(space, spaces.Discrete(2), mp.Rngs(0), **options)
        out = net(net.initialize_state(2), net.engine.asarray(x)).output
        values.append(net.engine.to_numpy(out.value_estimates))
    np.testing.assert_array_equal(*values)
