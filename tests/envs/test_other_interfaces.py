"""Environments of other libraries are recognised by their marks, and the way to train on them is named."""

from __future__ import annotations

import sys
from typing import Any

import pytest

import multippo as mp
from multippo.envs.other_interfaces import refuse_other_interface
from multippo.testing import FunctionalGoal, check_env


class OneAction:
    """What most host environments have."""

    def reset(self) -> Any:
        return None

    def step(self, action: Any) -> Any:
        return None


class StateAndAction:
    """What jumanji's environments, and functional ones, have."""

    def reset(self, key: Any) -> Any:
        return None

    def step(self, state: Any, action: Any) -> Any:
        return None


class KeyStateAction:
    """What gymnax's environments have."""

    def reset(self, key: Any, params: Any = None) -> Any:
        return None

    def step(self, key: Any, state: Any, action: Any, params: Any = None) -> Any:
        return None


def fake(base: type, package: str = "users_own", **attributes: Any) -> Any:
    """An object of a user's class, derived from a class of a package's."""
    foreign = type("Environment", (base,), {"__module__": f"{package}.environments.base", **attributes})
    return type("Mine", (foreign,), {"__module__": "__main__"})()


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (fake(KeyStateAction, "gymnax"), "is a gymnax environment; expected.*GymnaxToGymWrapper"),
        (fake(StateAndAction, "jumanji"), "is a jumanji environment.*JumanjiToGymWrapper"),
        (fake(KeyStateAction, "craftax", default_params=0), "is a craftax environment.*auto_reset=False"),
        (fake(OneAction, "dm_env"), "is a dm_env environment.*shimmy.DmControlCompatibilityV0"),
        (fake(OneAction, "gym"), "is an environment of the old package gym.*GymV26CompatibilityV0"),
        (fake(OneAction, "pettingzoo"), "is a PettingZoo environment.*Several agents are not supported"),
        (fake(OneAction, "pufferlib"), "is a PufferLib environment.*gymnasium.vector.VectorEnv"),
        (fake(OneAction, "stable_baselines3"), "is a vector environment of Stable-Baselines3's.*functions that make"),
        (OneAction(), "is an object whose step takes the action alone.*Derive it from gymnasium.Env"),
    ],
)
def test_the_way_is_named(env, message):
    before = set(sys.modules)
    for given in (env, lambda: env):
        with pytest.raises(TypeError, match=f"^Mine {message}" if type(env) is not OneAction else message):
            mp.make_env(given)
    assert not {"gymnax", "jumanji", "gym", "shimmy", "pettingzoo"} & (set(sys.modules) - before)


def test_check_env_names_it_too():
    report = check_env(fake(KeyStateAction, "gymnax"))
    assert "is a gymnax environment" in str(report)


def test_functional_environments_pass():
    refuse_other_interface(FunctionalGoal())
    refuse_other_interface(fake(StateAndAction, "gymnax", action_size=1))  # as gymnax's wrapper for brax
    refuse_other_interface(fake(StateAndAction, observation_space=0, action_space=0, render=0))
