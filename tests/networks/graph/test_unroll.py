"""PopulationGraph over time: at once wherever nothing comes back, and equal to the steps one by one, gradients too."""

import numpy as np
import pytest
from graph_reference import Shape, build, simulate
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_trees_close, compiled, fill_randomly, on, to_numpy

import multippo as mp
from multippo.networks.core.unrolling import reset_where

T, B = 9, 3
DONE = np.zeros((T, B), bool)
DONE[[0, 3, 4, 5, 8], 0] = True
DONE[[6, 8], 1] = True


@st.composite
def shapes(draw):
    """Graphs of one to four populations: without delay from earlier to later ones in some order, with one anywhere."""
    names = draw(st.permutations("dcba"[: draw(st.integers(1, 4))]))
    sizes = {name: draw(st.integers(1, 3)) for name in sorted(names)}
    inputs = {name: f"obs {name}" for name in names if name == names[0] or draw(st.booleans())}
    found = [(source, target, 0) for i, target in enumerate(names) for source in names[:i] if draw(st.booleans())]
    delayed = st.tuples(st.sampled_from(names), st.sampled_from(names), st.integers(1, 3))
    found += draw(st.lists(delayed, max_size=4))
    for i, name in enumerate(names):
        if name not in inputs and not any(target == name and source in names[:i] for source, target, _ in found):
            found.append((names[i - 1], name, draw(st.integers(0, 2))))
    order = draw(st.permutations(list(dict.fromkeys(found))))
    outputs = draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    # At least one that weights lead to, if there are any.
    return Shape(sizes, inputs, order, list(dict.fromkeys([*outputs, *(target for _, target, _ in order[:1])])))


@st.composite
def ends(draw):
    time, batch = draw(st.integers(1, 6)), draw(st.integers(1, 2))
    flags = draw(st.lists(st.booleans(), min_size=time * batch, max_size=time * batch))
    return np.asarray(flags, bool).reshape(time, batch)


def check(backend, shape, done):
    """``unroll`` from a fresh carry against NumPy."""
    with on(backend, "float64") as engine:
        graph = build(shape)
        weights = fill_randomly(graph, scale=0.7)
        rng = np.random.default_rng(1)
        xs = {entry: rng.normal(size=(*done.shape, shape.sizes[name])) for name, entry in shape.inputs.items()}
        args = (graph.initialize_state(done.shape[1]), {name: engine.asarray(x) for name, x in xs.items()})
        out = compiled(graph, lambda net, *args: net.unroll(*args))(*args, engine.asarray(done))
        assert_trees_close(out.output, simulate(shape, weights, xs, done), 1e-9)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(shapes(), ends())
def test_any_graph_on_torch(shape, done):
    check("torch", shape, done)


# Every graph is compiled anew; the arithmetic is torch's, the scan is not.
@settings(max_examples=4, deadline=None, derandomize=True)
@given(shapes(), ends())
@pytest.mark.nightly
def test_any_graph_on_jax(shape, done):
    check("jax", shape, done)


def test_a_wide_graph_against_numpy(engine):
    """Two loops, one of two populations, that a delay and a way around join; all kinds of ends."""
    connections = [("in", "a", 0), ("a", "a", 2), ("a", "b", 3), ("b", "c", 0), ("c", "b", 1), ("c", "b", 2)]
    connections += [("in", "b", 1), ("in", "out", 2), ("c", "out", 1), ("c", "out", 0)]
    shape = Shape({"out": 2, "b": 3, "a": 2, "c": 1, "in": 2}, {"in": "x", "c": "y"}, connections, ["out", "a"])
    with engine.precision("float64"):
        graph = build(shape)
        weights, rng = fill_randomly(graph), np.random.default_rng(0)
        assert repr(graph).splitlines()[-2].strip() == "over time: in, out at once; a, b with c step by step"
        xs = {"x": rng.normal(size=(T, B, 2)), "y": rng.normal(size=(T, B, 1))}
        given_xs, state = {name: engine.asarray(x) for name, x in xs.items()}, graph.initialize_state(B)
        expected = simulate(shape, weights, xs, DONE)
        out = compiled(graph, lambda net, *args: net.unroll(*args))(state, given_xs, engine.asarray(DONE)).output
        assert_trees_close(out, expected, 1e-10)
        # And by calls, each environment reset where its episode has ended.
        step = compiled(graph, lambda net, *args: net(*args))
        reset = compiled(graph, lambda net, ended, carry: reset_where(net, ended, carry))
        for t in range(T):
            one = step(state, {name: x[t] for name, x in given_xs.items()})
            assert_trees_close(one.output, {name: y[t] for name, y in expected.items()}, 1e-10, str(t))
            state = reset(engine.asarray(DONE[t]), one.next_state)


class Counting(mp.StatefulModule):
    """Passes its input on, and counts how often it is called in Python."""

    calls: list[str] = []  # noqa: RUF012

    def __init__(self, name):
        self.name = name

    def __call__(self, state, x, rollout_extras=None):
        Counting.calls.append(self.name)
        return mp.StatefulModuleOutput(state, x)


def test_only_loops_are_taken_step_by_step(torch_engine):
    """On torch a scan is a Python loop, so that calls can be counted."""
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("before", 1, compute=Counting("before"))
    graph.add_population("loop", 1, compute=Counting("loop"))
    graph.add_population("after", 1, compute=Counting("after"))
    graph.connect("before", "loop", transform=Counting("into"), delay=2)
    graph.connect("loop", "loop", transform=Counting("back"), delay=1)
    graph.connect("loop", "after", transform=Counting("out of"), delay=1)
    graph.add_output("y", source="after", head=Counting("head"))
    graph.finalize()
    Counting.calls.clear()
    xs = {"before": torch_engine.zeros((T, B, 1)) + 1}
    out = graph.unroll(graph.initialize_state(B), xs, torch_engine.asarray(np.zeros((T, B), bool)))
    counts = {name: Counting.calls.count(name) for name in sorted(set(Counting.calls))}
    assert counts == {"before": 1, "into": 1, "loop": T, "back": T, "out of": 1, "after": 1, "head": 1}
    # loop[t] = loop[t-1] + (1 from step 2 on), and y one step later.
    assert to_numpy(out.output["y"])[:, 0, 0].tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 6]
