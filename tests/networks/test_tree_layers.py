"""Layers that rearrange trees: what they take, in which order they join, what they refuse."""

from __future__ import annotations

import collections

import numpy as np
import pytest
from support import to_numpy

import multippo as mp


def observation(engine):
    return {
        "policy": engine.asarray(np.asarray([[1.0, 2.0]], np.float32)),
        "privileged": {"goal": engine.asarray(np.asarray([[3.0]], np.float32)), 3: engine.zeros((1, 1))},
        "parts": (engine.zeros((1, 1)) + 4, engine.zeros((1, 1)) + 5),
    }


def run(module, x):
    return module(module.initialize_state(1), x).output


def test_filter_takes_an_entry_a_path_a_function_or_a_dict_of_them(engine):
    x = observation(engine)
    assert to_numpy(run(mp.Filter("policy"), x)).tolist() == [[1.0, 2.0]]
    assert to_numpy(run(mp.Filter(("privileged", "goal")), x)).tolist() == [[3.0]]
    assert to_numpy(run(mp.Filter(("parts", 1)), x)).tolist() == [[5.0]]
    assert to_numpy(run(mp.Filter(lambda x: x["policy"] + x["parts"][0]), x)).tolist() == [[5.0, 6.0]]
    out = run(mp.Filter({"s": "policy", "deep": {"g": ("privileged", "goal")}, "n.m": ("parts", 0)}), x)
    assert list(out) == ["s", "deep", "n.m"]
    assert to_numpy(out["deep"]["g"]).tolist() == [[3.0]] and to_numpy(out["n.m"]).tolist() == [[4.0]]
    assert list(run(mp.Filter(s="policy", g=("privileged", "goal")), x)) == ["s", "g"]


def test_filter_says_what_is_missing(engine):
    x = observation(engine)
    with pytest.raises(ValueError, match=r"Filter got a dict with the entries \['parts', 'policy', .*entry 'goal'"):
        run(mp.Filter("goal"), x)
    with pytest.raises(
        ValueError, match=r"Filter got a tuple of 2 entries at \('parts',\); expected it to have the entry 2"
    ):
        run(mp.Filter(("parts", 2)), x)
    with pytest.raises(ValueError, match=r"an array of shape \(1, 2\) at \('policy',\); expected .* entry 'x'"):
        run(mp.Filter(("policy", "x")), x)
    with pytest.raises(ValueError, match=r"Filter got an array of shape \(1, 2\); expected .* entry 0"):
        run(mp.Filter(0), x["policy"])


def test_filter_refuses_what_is_no_spec(engine):
    for make in (mp.Filter, lambda: mp.Filter("a", b="c")):
        with pytest.raises(ValueError, match="either one spec, such as 'policy', or keyword arguments"):
            make()
    for empty in ({}, (), {"a": ()}):
        with pytest.raises(ValueError, match=r"expected a key, a path of keys"):
            mp.Filter(empty)
    with pytest.raises(TypeError, match=r"Filter\['a'\] was given 1.5; expected a key"):
        mp.Filter({"a": 1.5})


def test_flattener_joins_in_sorted_order_whatever_the_order_of_insertion(engine):
    a, b = np.arange(4, dtype=np.float32).reshape(1, 2, 2), np.asarray([[7]], np.uint8)
    c, d = np.asarray([True]), np.asarray([[0.5]], np.float32)
    given = {"b": b, "a": a, "z": {"d": d, "c": c}, "t": (d + 1, d + 2)}
    expected = [[0.0, 1.0, 2.0, 3.0, 7.0, 1.5, 2.5, 1.0, 0.5]]
    orders = [given, dict(reversed(given.items())), collections.OrderedDict(given)]
    for tree in orders:
        on_engine = type(tree)((key, _asarray(engine, value)) for key, value in tree.items())
        out = run(mp.Flattener(), on_engine)
        assert to_numpy(out).tolist() == expected
        assert to_numpy(out).dtype == np.float32
    alone = run(mp.Flattener(), engine.asarray(np.asarray([3], np.int32)))
    assert to_numpy(alone).tolist() == [[3.0]]


def _asarray(engine, value):
    if isinstance(value, dict):
        return {key: _asarray(engine, sub) for key, sub in value.items()}
    return tuple(_asarray(engine, sub) for sub in value) if isinstance(value, tuple) else engine.asarray(value)


def test_flattener_needs_an_array(engine):
    with pytest.raises(ValueError, match=r"Flattener got a dict with the entries \[\]; expected a tree with"):
        run(mp.Flattener(), {})


def test_scale_multiplies_once_and_leaves_alone_what_it_is_told_to(engine):
    image = engine.asarray(np.asarray([[0, 51, 255]], np.uint8))
    out = to_numpy(run(mp.Scale(1 / 255), image))
    np.testing.assert_allclose(out, [[0.0, 0.2, 1.0]], rtol=1e-6)
    assert out.dtype == np.float32
    both = {"camera": image, "joints": (engine.zeros((1, 1)) + 3, engine.zeros((1, 1)) + 5)}
    out = to_numpy(run(mp.Scale({"camera": 1 / 255, "joints": (None, 2)}), both))
    assert out["joints"][0].tolist() == [[3.0]] and out["joints"][1].tolist() == [[10.0]]
    np.testing.assert_allclose(out["camera"], [[0.0, 0.2, 1.0]], rtol=1e-6)
    assert to_numpy(run(mp.Scale(2.0), both))["joints"][1].tolist() == [[10.0]]


def test_scale_refuses_what_does_not_fit(engine):
    for bad in (None, "2", True, {}, {"a": "2"}):
        with pytest.raises(TypeError, match=r"expected a finite number, or a tree of such and None"):
            mp.Scale(bad)
    with pytest.raises(ValueError, match=r"Scale got two factors by the name 'a.b'; rename a key that holds a dot"):
        mp.Scale({"a": {"b": 1.0}, "a.b": 2.0})
    with pytest.raises(ValueError, match=r"Scale got an input with leaves \['b'\]; expected \['a'\]"):
        run(mp.Scale({"a": 2.0}), {"b": engine.zeros((1, 1))})


def test_entries_of_different_batches(engine):
    x = {"a": engine.zeros((4, 2)), "b": engine.zeros((3, 2))}
    with pytest.raises(ValueError, match=r"^Flattener got arrays of shapes \[\(4, 2\), \(3, 2\)\]; expected one batch"):
        mp.Flattener()((), x)
    kept = mp.Flattener(preserve_levels=1)((), x).output
    assert {name: tuple(leaf.shape) for name, leaf in kept.items()} == {"a": (4, 2), "b": (3, 2)}


def test_a_factor_beyond_every_float(engine):
    for factor in (10**400, {"a": 10**400}):
        with pytest.raises(TypeError, match=r"^Scale\(.* is not possible: expected a finite number"):
            mp.Scale(factor)
