"""A graph in words and as a picture."""

import sys

import pytest

import multippo as mp


@pytest.fixture
def graph(torch_engine):
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


def test_in_words(graph):
    assert (
        repr(graph)
        == str(graph)
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


def test_as_a_picture(graph, pyplot):
    ax = graph.plot()
    texts = {text.get_text(): text for text in ax.texts}
    assert {"eye\n3", "a\n3", "b\n3", "y", "('robot', 'camera')", "7", "5, 2"} <= set(texts)
    # Delays of loops in red; connections that lead onwards carry no label without a delay.
    assert texts["7"].get_color() == texts["5, 2"].get_color() == "tab:red" and "0" not in texts
    x = {name: texts[f"{name}\n3"].get_position()[0] for name in ("eye", "a", "b")}
    assert x["eye"] < x["a"] < x["b"] < texts["y"].get_position()[0]
    # Connections between four pairs, an input, an output.
    assert sum(text.arrow_patch is not None for text in ax.texts if hasattr(text, "arrow_patch")) == 6
    ax.figure.canvas.draw()


def test_without_matplotlib(graph, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"PopulationGraph\.plot needs the package matplotlib: pip install"):
        graph.plot()
