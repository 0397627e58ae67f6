import sys

from multippo.envs.registry import list_envs


def test_the_list_holds_every_family_and_only_newest_versions():
    names = list_envs()
    assert {"CartPole-v1", "Pendulum-v1", "multippo/CartPoleNoVel-v0", "brax/ant"} <= set(names)
    assert "CartPole-v0" not in names
    assert len(names) == len(set(names))


def test_families_that_are_not_installed_are_left_out(monkeypatch):
    monkeypatch.setitem(sys.modules, "brax", None)
    assert not any(name.startswith("brax/") for name in list_envs())
