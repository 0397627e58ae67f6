"""Trees: one vocabulary on both engines."""

from typing import NamedTuple

import numpy as np
import pytest
from support import to_numpy

from multippo.trees import map_leaves, named_leaves, select, tree_leaves, tree_map, tree_structure


class Pair(NamedTuple):
    first: object
    second: object = None


def test_leaves_are_named_in_order_and_none_is_no_leaf():
    tree = {"b": Pair(1, None), "a": [2, (3,)], "c": {}}
    assert named_leaves(tree) == [("a.0", 2), ("a.1.0", 3), ("b.0", 1)]
    assert tree_leaves(tree) == [2, 3, 1]
    assert named_leaves(7) == [("", 7)]
    assert tree_map(lambda x: -x, tree) == {"b": Pair(-1, None), "a": [-2, (-3,)], "c": {}}
    assert tree_structure(tree) == tree_structure(tree_map(str, tree)) != tree_structure({"b": 1})


def test_select_picks_rows_of_every_leaf(engine):
    tree = {"a": engine.zeros((3, 2)), "b": Pair(engine.zeros((3,)))}
    other = tree_map(lambda x: x + 1, tree)
    out = select(engine.xp, engine.asarray(np.asarray([True, False, True])), other, tree)
    assert to_numpy(out["a"]).tolist() == [[1.0, 1.0], [0.0, 0.0], [1.0, 1.0]]
    assert to_numpy(out["b"].first).tolist() == [1.0, 0.0, 1.0] and out["b"].second is None


def test_map_leaves_takes_a_lone_array(engine):
    assert to_numpy(map_leaves(lambda x: x + 1, engine.zeros((2,)))).tolist() == [1.0, 1.0]
    assert to_numpy(map_leaves(lambda x: x + 1, {"a": engine.zeros((1,))})["a"]).tolist() == [1.0]


def test_trees_that_differ_are_not_mapped_together():
    with pytest.raises(ValueError):
        tree_map(lambda x, y: x, {"a": 1}, {"b": 1})
