"""PopulationGraph: a step, delays, ends of episodes, modules inside; the graph in words and as a picture."""

import re
import sys

import numpy as np
import pytest
from support import assert_trees_close, compiled, each_engine, to_numpy

import multippo as mp
from multippo.trees import named_leaves

T, B = 9, 3
# Ends: at the first and the last step, three in a row, none at all.
DONE = np.zeros((T, B), bool)
DONE[[0, 3, 4, 5, 8], 0] = True
DONE[[6, 8], 1] = True


def plain(*connections, names="a", outputs=None, inputs=("a",)):
    """A graph of single units that pass on what comes in; connections are (source, target, delay)."""
    graph = mp.PopulationGraph(mp.Rngs(0))
    for name in names:
        graph.add_population(name, 1, input_from=name if name in inputs else None)
    for source, target, delay in connections:
        graph.connect(source, target, transform="identity", delay=delay)
    for name in outputs or names:
        graph.add_output(name, source=name)
    graph.finalize()
    return graph


def over_time(engine, graph, xs, done, state=None):
    """The outputs over time, and the carry after it."""
    state = graph.initialize_state(done.shape[1]) if state is None else state
    args = (state, {k: engine.asarray(np.asarray(v, np.float32)) for k, v in xs.items()}, engine.asarray(done))
    out = compiled(graph, lambda net, *a: net.unroll(*a))(*args)
    return {name: value[..., 0].tolist() for name, value in to_numpy(out.output).items()}, out.next_state


def column(values):
    return np.asarray(values, float)[:, None, None]


def no_end(steps, batch=1):
    return np.zeros((steps, batch), bool)


@pytest.mark.parametrize(
    ("connections", "xs", "ends", "expected"),
    [
        # A loop sums up, a[t] = x[t] + a[t-1]: 1, 1+2, 3+3, and from 0 again after the end: 4, 4+5.
        ([("a", "a", 1)], [1, 2, 3, 4, 5], [2], [1, 3, 6, 4, 9]),
        # b[t] = a[t] + a[t-1] + a[t-3], zeros before the first step.
        ([("a", "b", 3), ("a", "b", 0), ("a", "b", 1)], [1, 10, 100, 1000, 10000], [], [1, 11, 110, 1101, 11010]),
        # The end after step 1: step 2 is the first of its episode, so a[t-2] is seen at step 4 for the first time.
        ([("a", "b", 2)], [1, 2, 3, 4, 5], [1], [0, 0, 0, 0, 3]),
        # Declared against the flow: all of it arrives within one step.
        ([("a", "b", 0), ("b", "c", 0), ("a", "c", 0)], [2], [], [4]),
        # b[t] = a[t], a[t] = x[t] + b[t-1] + b[t-2]: Fibonacci from a single 1.
        ([("a", "b", 0), ("b", "a", 1), ("b", "a", 2)], [1, 0, 0, 0, 0, 0], [], [1, 1, 2, 3, 5, 8]),
    ],
)
def test_by_hand(engine, connections, xs, ends, expected):
    names = sorted({name for source, target, _ in connections for name in (source, target)}, reverse=True)
    done = no_end(len(xs))
    done[ends] = True
    out, _ = over_time(engine, plain(*connections, names=names), {"a": column(xs)}, done)
    assert out[names[0]] == [[value] for value in expected]


def test_delays_of_one_source_share_its_buffer(torch_engine):
    graph = plain(("a", "b", 3), ("a", "b", 0), ("a", "b", 1), names="ab")
    state = graph.initialize_state(1)
    assert {name: list(part) for name, part in state["populations"].items()} == {"a": ["buffer"], "b": []}
    assert tuple(state["populations"]["a"]["buffer"].shape) == (1, 3, 1)


def test_what_no_buffer_holds_any_more_when_episodes_end(engine):
    graph = plain(("a", "b", 2), names="ab", outputs="b")
    # Environment 0 ends at the last step; 1 one step before it; 2 never.
    done = np.asarray([[0, 0, 0], [0, 1, 0], [1, 0, 0]], bool)
    _, state = over_time(engine, graph, {"a": np.tile(column([1, 2, 3]), (1, 3, 1))}, done)
    assert to_numpy(state["populations"]["a"]["buffer"])[..., 0].tolist() == [[0.0, 0.0], [0.0, 3.0], [2.0, 3.0]]


def test_carries_go_on_where_they_were_cut(engine):
    graph = plain(("a", "b", 2), ("b", "b", 1), ("a", "a", 3), names="ab")
    xs = np.random.default_rng(0).normal(size=(T, B, 1))
    whole, end = over_time(engine, graph, {"a": xs}, DONE)
    state, parts = None, []
    # A single step, then fewer steps than the longest delay, then the rest.
    for first, last in ((0, 1), (1, 3), (3, T)):
        out, state = over_time(engine, graph, {"a": xs[first:last]}, DONE[first:last], state)
        parts += out["b"]
    np.testing.assert_allclose(parts, whole["b"], rtol=1e-5)
    assert_trees_close(state, end, 1e-5)


def test_reciprocal_is_two_connections(torch_engine):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", 2)
    graph.add_population("b", 3)
    graph.connect("a", "b", delay=1, reciprocal=True)
    graph.add_output("b", source="b")
    graph.finalize()
    there, back = graph.connections["a->b@1"], graph.connections["b->a@1"]
    assert (there.source, there.target, there.delay) == ("a", "b", 1) and (back.source, back.target) == ("b", "a")
    assert there.transform.out_features == back.transform.in_features == 3


def test_the_sum_first_then_compute_then_the_activation_once(engine):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", 1)
    graph.add_input("b", 1)
    graph.add_population("c", input_size=1, output_size=2, compute=mp.Dense(1, 2, mp.Rngs(1)), activation="tanh")
    graph.connect("a", "c", transform="identity")
    graph.connect("b", "c", transform="identity")
    graph.add_output("c", source="c")
    graph.finalize()
    weights = {"populations.c.compute.kernel": np.asarray([[0.5, -1.0]])}
    mp.load_portable(graph, {**weights, "populations.c.compute.bias": np.asarray([0.1, 0.2])})
    out = graph(graph.initialize_state(1), {"a": engine.zeros((1, 1)) + 0.25, "b": engine.zeros((1, 1)) + 0.5})
    np.testing.assert_allclose(to_numpy(out.output["c"]), np.tanh([[0.375 + 0.1, -0.75 + 0.2]]), rtol=1e-6)


def test_populations_of_the_output_and_other_names(engine):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("seen", 2, input_from=("robot", "joints"))
    graph.add_output("arm_value", 2, output_to="arm", activation="relu")
    graph.connect("seen", "arm_value", transform="identity")
    graph.finalize()
    obs = {"robot": {"joints": engine.asarray(np.asarray([[1, -2]], np.int32))}, "more": engine.zeros((1, 3))}
    out = graph(graph.initialize_state(1), obs).output
    assert list(out) == ["arm"] and to_numpy(out["arm"]).tolist() == [[1.0, 0.0]]


def test_an_array_goes_to_the_only_input_and_functions_see_all_of_it(engine):
    graph = plain(("a", "b", 0), names="ab", outputs="b")
    x = engine.zeros((4, 1)) + 3
    assert to_numpy(graph(graph.initialize_state(4), x).output["b"]).tolist() == [[3.0]] * 4
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("left", 1, input_from=lambda x: x[..., :1])
    graph.add_input("right", 1, input_from=lambda x: x[..., 1:])
    graph.connect("left", "right", transform="identity", delay=1)
    graph.add_output("right", source="right")
    graph.finalize()
    xs, done = engine.asarray(np.arange(6, dtype=np.float32).reshape(3, 1, 2)), engine.asarray(no_end(3))
    # right[t] = x[t, 1] + x[t-1, 0]
    assert to_numpy(graph.unroll(graph.initialize_state(1), xs, done).output["right"]).ravel().tolist() == [1, 3, 7]


def test_every_population_can_be_recorded(engine):
    graph = plain(("a", "b", 1), names="ab", outputs="b")
    x, state = {"a": engine.zeros((2, 1)) + 3}, graph.initialize_state(2)
    recording = mp.with_recording(mp.Sequential([graph, mp.Filter("b")]))
    recorded = mp.extract_activations(recording([state, ()], x).metrics)[0]
    assert {name: to_numpy(value).tolist() for name, value in recorded.items()} == {"a": [[3.0]] * 2, "b": [[0.0]] * 2}
    xs, done = {"a": engine.zeros((4, 2, 1)) + 3}, engine.asarray(no_end(4, 2))
    over_time = mp.extract_activations(recording.unroll([state, ()], xs, done).metrics)[0]
    assert to_numpy(over_time["b"])[:, 0, 0].tolist() == [0.0, 3.0, 3.0, 3.0]
    assert graph(state, x).metrics == {}


def recurrent():
    rngs = mp.Rngs(3)
    graph = mp.PopulationGraph(rngs)
    graph.add_population(
        "in", input_size=4, output_size=3, compute=mp.Dense(4, 3, rngs), activation="swish", input_from="x"
    )
    graph.add_population("a.b", 2, activation="tanh")
    graph.connect("in", "a.b", delay=1)
    graph.connect("a.b", "a.b", delay=2)
    graph.add_output("out", source="a.b", head=mp.Dense(2, 2, rngs))
    graph.finalize()
    return graph


def test_one_seed_gives_one_network():
    graphs = each_engine(recurrent)
    weights = {name: mp.to_portable(graph) for name, graph in graphs.items()}
    assert_trees_close(weights["jax"], weights["torch"], 1e-6)
    assert list(weights["jax"]) == [
        "connections.a.b->a.b@2.transform.bias",
        "connections.a.b->a.b@2.transform.kernel",
        "connections.in->a.b@1.transform.bias",
        "connections.in->a.b@1.transform.kernel",
        "outputs.out.head.bias",
        "outputs.out.head.kernel",
        "populations.in.compute.bias",
        "populations.in.compute.kernel",
    ]


def test_a_call_before_finalize_and_a_change_after_it_are_refused(torch_engine):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", 1)
    graph.add_output("a", source="a")
    for call in (lambda: graph((), {}), lambda: graph.initialize_state(1), lambda: graph.unroll((), {}, None)):
        with pytest.raises(RuntimeError, match=r"not finished; call finalize\(\) once"):
            call()
    assert "not finalized" in repr(graph)
    graph.finalize()
    with pytest.raises(RuntimeError, match=r"PopulationGraph.add_population was called after finalize\(\)"):
        graph.add_population("b", 1)
    with pytest.raises(RuntimeError, match=r"PopulationGraph.finalize was called after finalize\(\)"):
        graph.finalize()


def test_wrong_observations_are_refused_by_name(torch_engine):
    graph = plain(("a", "b", 1), names="ab", inputs=("a", "b"))
    state, x = graph.initialize_state(2), torch_engine.zeros((2, 1))
    with pytest.raises(ValueError, match=r"observation of shape \(2, 1\), but several populations have an input_from"):
        graph(state, x)
    with pytest.raises(ValueError, match=r"Population 'a' \(input_from='a'\) got an input of shape \(2, 3\); expect"):
        graph(state, {"a": torch_engine.zeros((2, 3)), "b": x})


def test_a_wrong_carry_is_refused_with_the_form_of_the_right_one(torch_engine):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("eye", 3)
    graph.add_output("y", source="eye")
    graph.finalize()
    form = "{'populations': {'eye': ...}, 'connections': {}, 'outputs': {'y': ...}}"
    with pytest.raises(ValueError, match=re.escape(f" as its state; expected the dict {form}, as initialize_state(")):
        graph((), torch_engine.zeros((2, 3)))


class Charged(mp.StatefulModule):
    """Counts its steps in the carry, which starts at 10; charges its input as loss, and emits it."""

    def __init__(self, weight):
        self.weight = weight
        self.seen = mp.Variable(np.zeros(()))

    def __call__(self, state, x, rollout_extras=None):
        x = x if rollout_extras is None else rollout_extras
        return mp.StatefulModuleOutput(state + 1, x + state, self.weight * x[:, 0], {"steps": state[:, 0]}, x)

    def initialize_state(self, batch_size):
        return self.zeros((batch_size, 1)) + 10

    def reset_state(self, prev_state):
        return self.xp.zeros_like(prev_state) + 10

    def update_statistics(self, rollout_extras, valid=None):
        self.seen[...] = self.seen[...] + self.xp.sum(rollout_extras)


def charged(loop):
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", 1, compute=Charged(1.0))
    graph.add_population("b", 1, compute=Charged(10.0))
    graph.connect("a", "b", transform=Charged(100.0), delay=1)
    if loop:
        graph.connect("b", "b", transform="identity", delay=1)
    graph.add_output("y", source="b", head=Charged(1000.0))
    graph.finalize()
    return graph


def test_losses_metrics_snapshots_and_statistics_of_all_parts(engine):
    for loop in (False, True):
        graph = charged(loop)
        state, x = graph.initialize_state(2), {"a": engine.zeros((2, 1)) + 1}
        out = graph(state, x)
        # a = 1 + 10; its past is 0, so the transform yields 0 + 10; b = 10 + 10; y = 20 + 10.
        assert to_numpy(out.output["y"]).tolist() == [[30.0]] * 2
        # 1 * 1 for a, 100 * 0 for the transform, 10 * 10 for b, 1000 * 20 for the head.
        assert to_numpy(out.regularization_loss).tolist() == [20101.0] * 2
        parts = ["populations.a", "populations.b", "connections.a->b@1", "outputs.y"]
        assert sorted(out.metrics) == sorted(parts)
        extras = {name: to_numpy(leaf)[0, 0] for name, leaf in named_leaves(out.rollout_extras)}
        assert extras == {
            "populations.a.compute": 1.0,
            "connections.a->b@1.transform": 0.0,
            "populations.b.compute": 10.0,
            "outputs.y.head": 20.0,
        }
        # Replay is handed the snapshot of each part back: with another one for a, a = 5 + 10.
        extras = out.rollout_extras
        extras["populations"]["a"]["compute"] = extras["populations"]["a"]["compute"] + 4
        replayed = graph(state, x, extras)
        assert to_numpy(replayed.next_state["populations"]["a"]["buffer"]).ravel().tolist() == [15.0] * 2
        graph.update_statistics(out.rollout_extras)
        assert float(to_numpy(graph.outputs["y"].head.seen[...])) == 40.0


@pytest.fixture
def drawn(torch_engine):
    rngs = mp.Rngs(0)
    graph = mp.PopulationGraph(rngs)
    graph.add_input("eye", 4, input_from=("robot", "camera"), output_size=3, compute=mp.Dense(4, 3, rngs))
    graph.add_population("a", 3, activation="tanh")
    graph.add_population("b", 3, activation=lambda x: x)
    graph.connect("eye", "a")
    graph.connect("a", "a", delay=7)
    graph.connect("a", "b", transform="identity")
    graph.connect("b", "a", delay=5)
    graph.connect("b", "a", delay=2)
    graph.add_output("y", source="b")
    graph.finalize()
    return graph


def test_in_words(drawn):
    assert (
        repr(drawn)
        == str(drawn)
        == """PopulationGraph(
  populations:
    eye: 4 -> 3, Dense, sees ('robot', 'camera')
    a: 3, tanh
    b: 3, <lambda>
  connections:
    eye -> a: Dense
    a -> a, delay 7: Dense
    a -> b: identity
    b -> a, delay 5: Dense
    b -> a, delay 2: Dense
  outputs:
    y: identity of b
  over time: eye at once; a with b step by step
)"""
    )


@pytest.fixture
def pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    yield pyplot
    pyplot.close("all")


def test_as_a_picture(drawn, pyplot):
    ax = drawn.plot()
    texts = {text.get_text(): text for text in ax.texts}
    assert {"eye\n3", "a\n3", "b\n3", "y", "('robot', 'camera')", "7", "5, 2"} <= set(texts)
    # Delays of loops in red; connections that lead onwards carry no label without a delay.
    assert texts["7"].get_color() == texts["5, 2"].get_color() == "tab:red" and "0" not in texts
    x = {name: texts[f"{name}\n3"].get_position()[0] for name in ("eye", "a", "b")}
    assert x["eye"] < x["a"] < x["b"] < texts["y"].get_position()[0]
    # Connections between four pairs, an input, an output.
    assert sum(text.arrow_patch is not None for text in ax.texts if hasattr(text, "arrow_patch")) == 6
    ax.figure.canvas.draw()


def test_without_matplotlib(drawn, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"PopulationGraph\.plot needs the package matplotlib: pip install"):
        drawn.plot()
