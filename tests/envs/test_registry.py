import sys
import types

import pytest

from multippo.envs import registry
from multippo.envs.make import make_env
from multippo.envs.registry import list_envs
from multippo.runs.settings import RunSettings
from multippo.testing import Clock


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
