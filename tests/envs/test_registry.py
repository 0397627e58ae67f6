"""Known environments are listed, and those of other libraries are recognised by their marks."""

import sys
import types
from typing import Any

import gymnasium
import numpy as np
import pytest

import multippo as mp
from multippo.envs import registry
from multippo.envs.host.vector_forms import vectorize_id
from multippo.envs.make import make_env
from multippo.envs.registry import list_envs, refuse_other_interface
from multippo.runs.settings import RunSettings
from multippo.testing import Clock, FunctionalGoal


def test_the_list_holds_every_family_and_only_newest_versions():
    names = list_envs()
    assert {"CartPole-v1", "Pendulum-v1", "multippo/CartPoleNoVel-v0", "brax/ant"} <= set(names)
    assert "CartPole-v0" not in names
    assert len(names) == len(set(names))


def test_families_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    assert not any(name.startswith("brax/") for name in list_envs())


def test_a_family_is_a_file_and_an_entry(monkeypatch):
    def make_mine(name, num_envs, length=3):
        if name != "clock":
            raise KeyError(name)
        return Clock(length, num_envs=num_envs)

    module = types.ModuleType("mine")
    module.make_mine, module.mine_names = make_mine, lambda: ("clock",)
    monkeypatch.setitem(sys.modules, "multippo.envs.functional.mine", module)
    monkeypatch.setitem(registry.FAMILIES, "mine", registry.Family("numpy", frozenset({"pool_size"})))
    assert make_env("mine/clock", 2, length=4).length.tolist() == [4, 4]
    assert "mine/clock" in list_envs()
    assert RunSettings.of({"env": "mine/clock", "pool_size": 9}).env_kwargs == {"pool_size": 9}
    with pytest.raises(ValueError, match="Did you mean 'mine/clock'"):
        make_env("mine/clok")
    with pytest.raises(TypeError, match="Did you mean 'length'"):
        make_env("mine/clock", lenght=4)


class OneAction:
    """What most host environments have."""

    def reset(self): ...
    def step(self, action): ...


class StateAndAction:
    """What jumanji's environments, and functional ones, have."""

    def reset(self, key): ...
    def step(self, state, action): ...


def fake(base: type, package: str = "users_own", **attributes: Any) -> Any:
    """An object of a user's class, derived from a class of a package's."""
    foreign = type("Environment", (base,), {"__module__": f"{package}.environments.base", **attributes})
    return type("Mine", (foreign,), {"__module__": "__main__"})()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (fake(OneAction, "dm_env"), "is an environment of dm_env.*shimmy.DmControlCompatibilityV0"),
        (fake(OneAction, "pettingzoo"), "is an environment of pettingzoo.*Several agents are not supported"),
        (OneAction(), "is an object whose step takes the action alone.*Derive it from gymnasium.Env"),
    ],
)
def test_the_way_is_named(env, message):
    before = set(sys.modules)
    for given in (env, lambda: env):
        with pytest.raises(TypeError, match=f"^Mine {message}" if type(env) is not OneAction else message):
            mp.make_env(given)
    assert not {"gym", "shimmy", "pettingzoo"} & (set(sys.modules) - before)


def test_functional_environments_pass():
    refuse_other_interface(FunctionalGoal())
    refuse_other_interface(fake(StateAndAction, observation_space=0, action_space=0, render=0))


@pytest.mark.parametrize(
    ("hidden_id", "full_id", "vectorization", "shown"),
    [
        (registry.CARTPOLE_ID, "CartPole-v1", "native", [0, 2]),  # position and angle
        (registry.CARTPOLE_ID, "CartPole-v1", "sync", [0, 2]),
        (registry.PENDULUM_ID, "Pendulum-v1", "sync", [0, 1]),  # cosine and sine
    ],
)
def test_velocities_are_hidden_and_nothing_else_is_changed(hidden_id, full_id, vectorization, shown):
    registry.register_hidden_velocities()
    hidden, full = (vectorize_id(gymnasium.spec(name), 3, vectorization) for name in (hidden_id, full_id))
    assert hidden.observation_space.shape == (3, 2)
    np.testing.assert_array_equal(hidden.single_observation_space.high, full.single_observation_space.high[shown])
    np.testing.assert_array_equal(hidden.reset(seed=1)[0], full.reset(seed=1)[0][:, shown])
    for t in range(201):
        action = np.array([0, 1, t % 2]).reshape(full.action_space.shape)
        hidden_step, full_step = hidden.step(action), full.step(action)
        np.testing.assert_array_equal(hidden_step[0], full_step[0][:, shown])
        for ours, theirs in zip(hidden_step[1:4], full_step[1:4], strict=True):
            np.testing.assert_array_equal(ours, theirs)
