"""Merge joins dicts; Flattener keeps levels; layers are found where they are documented."""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

import numpy as np
import pytest
from support import assert_trees_close, to_numpy

import multippo as mp


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
