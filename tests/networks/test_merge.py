"""Merge joins dicts; Flattener keeps levels; layers are found where they are documented."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import assert_trees_close, compiled, to_numpy

import multippo as mp
from multippo.networks.core.unrolling import step_unroll


class Pair(NamedTuple):
    a: Any
    b: Any


def scaled(**factors):
    return mp.Parallel({name: mp.Scale(factor) for name, factor in factors.items()})


def test_merge_joins_what_its_children_yield(engine):
    merge = mp.Merge({"z": scaled(y=2.0, b=3.0), "a.b": scaled(c=5.0)})
    out = merge(merge.initialize_state(1), engine.zeros((1, 1)) + 1)
    assert {name: to_numpy(value).item() for name, value in out.output.items()} == {"y": 2.0, "b": 3.0, "c": 5.0}
    assert list(out.output) == ["y", "b", "c"]


@pytest.mark.nightly_if("jax")
def test_merge_routes_carry_loss_metrics_snapshots_statistics_and_time(engine):
    rngs = mp.Rngs(0)
    memory = mp.Sequential([mp.Normalizer(2), mp.LSTM(2, 2, rngs), mp.Splitter(h=2)])
    code = mp.Parallel(z=mp.VariationalBottleneck(1, rngs))
    net, batch, time = mp.Merge(memory=memory, code=code), 3, 4
    rng = np.random.default_rng(0)
    xs = engine.asarray(rng.normal(size=(time, batch, 2)).astype(np.float32))
    done = np.zeros((time, batch), bool)
    done[[0, -1], 0] = done[1:3, 1] = True
    done = engine.asarray(done)
    fast = compiled(net, lambda n: tuple(n.unroll(n.initialize_state(batch), xs, done)))()
    slow = compiled(net, lambda n: tuple(step_unroll(n, n.initialize_state(batch), xs, done, None)))()
    assert_trees_close(fast, slow, 1e-5)
    out = mp.StatefulModuleOutput(*fast)
    assert sorted(out.next_state) == ["code", "memory"] and sorted(out.output) == ["h", "z"]
    kl = to_numpy(out.metrics["code"]["z"]["kl"])
    np.testing.assert_allclose(to_numpy(out.regularization_loss), kl, rtol=1e-6)
    net.update_statistics(out.rollout_extras)
    np.testing.assert_allclose(to_numpy(memory[0].mean[...]), to_numpy(xs).mean((0, 1)), rtol=1e-4, atol=1e-6)


def test_merge_refuses_what_it_cannot_join(engine):
    x = engine.zeros((1, 2))
    twice = mp.Merge(left=scaled(a=1.0, b=1.0), right=scaled(b=2.0))
    with pytest.raises(ValueError, match=r"entry 'b' from both components\['left'\] and components\['right'\]"):
        twice(twice.initialize_state(1), x)
    array = mp.Merge(left=mp.Scale(1.0))
    with pytest.raises(TypeError, match=r"Merge.components\['left'\] yielded an array of shape \(1, 2\); expected"):
        array(array.initialize_state(1), x)
    with pytest.raises(ValueError, match="Merge got no child"):
        mp.Merge()
    with pytest.raises(ValueError, match="Merge takes either one dict or keyword arguments"):
        mp.Merge({"a": mp.Scale(1.0)}, b=mp.Scale(1.0))


def test_flattener_keeps_levels(engine):
    asarray = lambda *values: engine.asarray(np.asarray([values], np.float32))  # noqa: E731
    tree = {
        "b": Pair(asarray(1.0), {"z": asarray(3.0), "y": asarray([2.0], [2.5])}),
        "a": [asarray(4.0, 5.0), asarray(6.0)],
    }
    flat = lambda levels: to_numpy(mp.Flattener(preserve_levels=levels)((), tree).output)  # noqa: E731
    assert flat(0).tolist() == [[4.0, 5.0, 6.0, 1.0, 2.0, 2.5, 3.0]]
    one = flat(1)
    assert list(one) == ["b", "a"]
    assert one["b"].tolist() == [[1.0, 2.0, 2.5, 3.0]] and one["a"].tolist() == [[4.0, 5.0, 6.0]]
    two = flat(2)
    assert isinstance(two["b"], Pair) and isinstance(two["a"], list)
    assert two["b"].b.tolist() == [[2.0, 2.5, 3.0]] and two["a"][1].tolist() == [[6.0]]
    again = mp.Flattener(1)((), mp.Flattener(1)((), tree).output).output
    assert_trees_close(again, one, 0.0)


def test_flattener_refuses_levels_that_are_not_there(engine):
    x = {"a": engine.zeros((2, 3)), "b": {"c": engine.zeros((2, 1))}}
    with pytest.raises(ValueError, match=r"preserve_levels=2\) got an array of shape \(2, 3\) 1 level below the top"):
        mp.Flattener(2)((), x)
    with pytest.raises(ValueError, match=r"Flattener got .* expected a tree with at least one array"):
        mp.Flattener(1)((), {"a": {}})
    for bad in (-1, 1.5, True, None):
        with pytest.raises(ValueError, match=r"Flattener\(preserve_levels=.*expected an integer of at least 0"):
            mp.Flattener(bad)


PATHS = {
    "multippo.networks.utils": ("Filter", "Flattener", "Map", "Merge", "Scale"),
    "multippo.networks.containers": (
        "Concat",
        "Filter",
        "Flattener",
        "Map",
        "Merge",
        "Parallel",
        "Scale",
        "Sequential",
    ),
    "multippo.networks.delay": ("Delay",),
    "multippo.networks.variational": ("AR1VariationalBottleneck", "VariationalBottleneck"),
}


@pytest.mark.parametrize("path", PATHS)
def test_documented_import_paths(path):
    module = importlib.import_module(path)
    for name in PATHS[path]:
        assert getattr(module, name) is getattr(mp, name)
