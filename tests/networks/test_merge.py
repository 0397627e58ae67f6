"""Merge joins dicts; Flattener keeps levels; layers are found where they are documented."""

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


def test_merge_joins_what_its_children_yield(torch_engine):
    merge = mp.Merge({"z": scaled(y=2.0, b=3.0), "a.b": scaled(c=5.0)})
    out = merge(merge.initialize_state(1), torch_engine.zeros((1, 1)) + 1)
    assert {name: to_numpy(value).item() for name, value in out.output.items()} == {"y": 2.0, "b": 3.0, "c": 5.0}
    assert list(out.output) == ["y", "b", "c"]


def test_flattener_keeps_levels(torch_engine):
    asarray = lambda *values: torch_engine.asarray(np.asarray([values], np.float32))  # noqa: E731
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
