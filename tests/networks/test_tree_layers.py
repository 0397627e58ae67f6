"""Layers that rearrange trees: what they take, in which order they join, what they refuse."""

import collections

import numpy as np
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


def test_filter_takes_an_entry_a_path_a_function_or_a_dict_of_them(torch_engine):
    x = observation(torch_engine)
    assert to_numpy(run(mp.Filter("policy"), x)).tolist() == [[1.0, 2.0]]
    assert to_numpy(run(mp.Filter(("privileged", "goal")), x)).tolist() == [[3.0]]
    assert to_numpy(run(mp.Filter(("parts", 1)), x)).tolist() == [[5.0]]
    assert to_numpy(run(mp.Filter(lambda x: x["policy"] + x["parts"][0]), x)).tolist() == [[5.0, 6.0]]
    out = run(mp.Filter({"s": "policy", "deep": {"g": ("privileged", "goal")}, "n.m": ("parts", 0)}), x)
    assert list(out) == ["s", "deep", "n.m"]
    assert to_numpy(out["deep"]["g"]).tolist() == [[3.0]] and to_numpy(out["n.m"]).tolist() == [[4.0]]
    assert list(run(mp.Filter(s="policy", g=("privileged", "goal")), x)) == ["s", "g"]


def test_flattener_joins_in_sorted_order_whatever_the_order_of_insertion(torch_engine):
    a, b = np.arange(4, dtype=np.float32).reshape(1, 2, 2), np.asarray([[7]], np.uint8)
    c, d = np.asarray([True]), np.asarray([[0.5]], np.float32)
    given = {"b": b, "a": a, "z": {"d": d, "c": c}, "t": (d + 1, d + 2)}
    expected = [[0.0, 1.0, 2.0, 3.0, 7.0, 1.5, 2.5, 1.0, 0.5]]
    orders = [given, dict(reversed(given.items())), collections.OrderedDict(given)]
    for tree in orders:
        on_engine = type(tree)((key, _asarray(torch_engine, value)) for key, value in tree.items())
        out = run(mp.Flattener(), on_engine)
        assert to_numpy(out).tolist() == expected
        assert to_numpy(out).dtype == np.float32
    alone = run(mp.Flattener(), torch_engine.asarray(np.asarray([3], np.int32)))
    assert to_numpy(alone).tolist() == [[3.0]]


def _asarray(engine, value):
    if isinstance(value, dict):
        return {key: _asarray(engine, sub) for key, sub in value.items()}
    return tuple(_asarray(engine, sub) for sub in value) if isinstance(value, tuple) else engine.asarray(value)


def test_scale_multiplies_once_and_leaves_alone_what_it_is_told_to(torch_engine):
    image = torch_engine.asarray(np.asarray([[0, 51, 255]], np.uint8))
    out = to_numpy(run(mp.Scale(1 / 255), image))
    np.testing.assert_allclose(out, [[0.0, 0.2, 1.0]], rtol=1e-6)
    assert out.dtype == np.float32
    both = {"camera": image, "joints": (torch_engine.zeros((1, 1)) + 3, torch_engine.zeros((1, 1)) + 5)}
    out = to_numpy(run(mp.Scale({"camera": 1 / 255, "joints": (None, 2)}), both))
    assert out["joints"][0].tolist() == [[3.0]] and out["joints"][1].tolist() == [[10.0]]
    np.testing.assert_allclose(out["camera"], [[0.0, 0.2, 1.0]], rtol=1e-6)
    assert to_numpy(run(mp.Scale(2.0), both))["joints"][1].tolist() == [[10.0]]
