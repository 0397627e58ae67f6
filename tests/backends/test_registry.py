"""Choosing an engine: names, missing packages, the environment variable, nesting, engines of others."""

import importlib.metadata
import importlib.util
import re
import threading
import types

import numpy as np
import pytest

import multippo as mp
from multippo.backends import describe_backends, load_engine, registry
from multippo.backends.api import Engine


@pytest.fixture(autouse=True)
def fresh_registry(monkeypatch):
    """No default engine yet, no variable set, and no trace of the engines that a test registers."""
    for name in ("jax", "torch", "numpy"):
        load_engine(name)  # once, not again in every test
    monkeypatch.delenv(registry.VARIABLE, raising=False)
    monkeypatch.setattr(registry, "_default", None)
    monkeypatch.setattr(registry, "_registered", {})
    monkeypatch.setattr(registry, "_engines", dict(registry._engines))


def without(monkeypatch, *packages):
    """Makes packages look as if they were not installed."""
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *a: None if name in packages else found(name, *a))


class Complete(Engine):
    """Supplies everything, for real use nothing."""

    name = "complete"
    xp = np
    random = None
    capabilities = frozenset()
    activations = types.MappingProxyType({})


for _name in dir(Engine):
    if getattr(getattr(Engine, _name), "__isabstractmethod__", False):
        setattr(Complete, _name, None)


def test_an_unknown_name_is_refused_with_the_known_ones(monkeypatch):
    with pytest.raises(ValueError, match="Unknown backend 'jaxx'; known backends: jax, torch, numpy"):
        load_engine("jaxx")
    monkeypatch.setenv(registry.VARIABLE, "tensorflow")
    with pytest.raises(ValueError, match="Unknown backend 'tensorflow'; known backends: jax, torch, numpy"):
        mp.get_backend()


@pytest.mark.parametrize(("name", "package"), [("jax", "flax"), ("torch", "torch")])
def test_a_missing_package_is_named_with_the_install_command(monkeypatch, name, package):
    without(monkeypatch, package)
    monkeypatch.setattr(registry, "_engines", {})
    with pytest.raises(ImportError, match=rf"{name} backend needs {package}.*pip install 'multippo\[{name}\]'"):
        load_engine(name)
    assert name not in mp.available_backends()
    row = next(row for row in describe_backends() if row["name"] == name)
    assert (row["available"], row["install"]) == (False, f"pip install 'multippo[{name}]'")


def test_the_first_installed_engine_is_the_default(monkeypatch):
    for missing, default in (((), "jax"), (("jax",), "torch"), (("jax", "torch"), "numpy")):
        with monkeypatch.context() as patched:
            patched.setattr(registry, "_default", None)
            without(patched, *missing)
            assert mp.available_backends()[0] == mp.get_backend() == default


def test_the_variable_may_change_before_first_use_and_not_after(monkeypatch):
    monkeypatch.setenv(registry.VARIABLE, "jax")
    monkeypatch.setenv(registry.VARIABLE, "torch")
    assert mp.get_backend() == "torch"
    monkeypatch.setenv(registry.VARIABLE, "jax")
    with pytest.raises(RuntimeError, match="is now 'jax', but was 'torch' when the torch engine was first used"):
        mp.get_backend()
    monkeypatch.setenv(registry.VARIABLE, "torch")
    assert mp.get_backend() == "torch"


def test_blocks_nest_and_end_in_reverse_and_hold_for_their_own_thread(monkeypatch):
    monkeypatch.setenv(registry.VARIABLE, "jax")
    seen = []
    with mp.use_backend("torch") as outer:
        assert mp.get_backend() == outer.name == "torch"
        with pytest.raises(KeyError), mp.use_backend("numpy"):
            assert mp.get_backend() == "numpy"
            raise KeyError
        assert mp.get_backend() == "torch"
        thread = threading.Thread(target=lambda: seen.append(mp.get_backend()))
        thread.start()
        thread.join()
    assert seen == [mp.get_backend()] == ["jax"]


def test_precision_holds_inside_its_block(engine):
    before = engine.float_dtype
    with mp.precision("float64"):
        assert "64" in str(mp.Param(0.5)[...].dtype)
        assert "64" in str(engine.zeros((1,)).dtype)
    with pytest.raises(ValueError, match="expected one of 'float32', 'float64', 'bfloat16'"), mp.precision("half"):
        pass
    assert engine.float_dtype == before
    assert "32" in str(mp.Param(0.5)[...].dtype)


def test_a_registered_engine_can_be_chosen(monkeypatch):
    mp.register_backend("complete", Complete)
    assert mp.available_backends() == ["jax", "torch", "complete", "numpy"]
    with mp.use_backend("complete") as engine:
        assert isinstance(engine, Complete)
    monkeypatch.setenv(registry.VARIABLE, "complete")
    assert mp.get_backend() == "complete"


def test_an_engine_in_another_package_is_found_by_its_entry_point(monkeypatch):
    point = importlib.metadata.EntryPoint("complete", f"{__name__}:Complete", registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda group: [point] * (group == "multippo.backends"))
    assert mp.available_backends()[2] == "complete"
    with mp.use_backend("complete") as engine:
        assert isinstance(engine, Complete)


def broken() -> Engine:
    raise OSError("no driver")


def half() -> object:
    return types.SimpleNamespace(**{name: value for name, value in vars(Complete).items() if name != "scan"})


@pytest.mark.parametrize(
    ("name", "make", "error", "message"),
    [
        ("jax", Complete, ValueError, "the name is taken"),
        ("broken", broken, ImportError, r"The broken backend, from .*, can't be made: OSError: no driver\."),
        ("other", Complete, TypeError, "has an engine with the name 'complete'; expected name = 'other'"),
        ("complete", half, TypeError, "The complete backend does not supply .*scan.*; see multippo/backends/api.py"),
    ],
)
def test_what_cannot_be_registered_or_made_is_refused_with_its_name(name, make, error, message):
    with pytest.raises(error, match=message):
        mp.register_backend(name, make)
        load_engine(name)


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ("no_such_module:make", r"ModuleNotFoundError: No module named 'no_such_module'\."),
        ("os:sep", r"TypeError: 'str' object is not callable\. Expected a function"),
    ],
)
def test_a_broken_entry_point_is_named_with_its_cause(monkeypatch, target, reason):
    point = importlib.metadata.EntryPoint("theirs", target, registry.ENTRY_POINT_GROUP)
    monkeypatch.setattr(registry, "_entry_points", lambda: {"theirs": point})
    told = re.escape(f"The theirs backend, from {point!r}, can't be made: ")
    with pytest.raises(ImportError, match=told + reason), mp.use_backend("theirs"):
        pass
    # The others are there as before.
    assert "theirs" in registry.known_backends()
    assert load_engine("torch").name == "torch"
