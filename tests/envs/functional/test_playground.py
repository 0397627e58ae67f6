"""The playground adapter, against a stand-in for the package, which is an optional extra."""

import sys
import types

import jax.numpy as jnp
import pytest

from multippo.envs import registry
from multippo.envs.make import make_env


@pytest.fixture
def playground(monkeypatch, jax_clock):
    loaded = []

    def load(name, config=None, config_overrides=None):
        loaded.append((name, config, config_overrides))
        return jax_clock(99, "terminated")

    fake_registry = types.SimpleNamespace(
        ALL_ENVS=("CartpoleBalance", "CartpoleSwingup"),
        get_default_config=lambda name: types.SimpleNamespace(episode_length=6, action_repeat=2),
        load=load,
    )
    package = types.ModuleType("mujoco_playground")
    package.registry = fake_registry
    monkeypatch.setitem(sys.modules, "mujoco_playground", package)
    monkeypatch.setattr(registry, "is_installed", lambda package: True)
    return loaded


def test_the_configuration_sets_limit_and_repeat(playground):
    env = make_env("playground/CartpoleBalance", num_envs=2, vision=False)
    assert playground[0][0] == "CartpoleBalance"
    assert playground[0][2] == {"vision": False}
    assert (env.id, env.max_episode_steps) == ("playground/CartpoleBalance", 3)
    state = env.reset(0)
    for t in range(1, 4):
        state = env.step(state, jnp.zeros(2, int))
        assert state.truncated.all() == (t == 3)
    assert make_env("playground/CartpoleBalance", episode_length=8, action_repeat=1).max_episode_steps == 8
    with pytest.raises(ValueError, match="Did you mean 'playground/CartpoleBalance'"):
        make_env("playground/CartpoleBalence")
    assert "playground/CartpoleSwingup" in registry.list_envs()
