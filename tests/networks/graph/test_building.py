"""What can't be described is refused, and the error says what was given, what was expected, and where."""

import pytest

import multippo as mp


@pytest.fixture
def graph(engine):
    """Not finished: "a" sees the observation, "b" nothing."""
    graph = mp.PopulationGraph(mp.Rngs(0))
    graph.add_input("a", 2)
    graph.add_population("b", 3)
    return graph


def test_the_defaults(graph):
    graph.connect("a", "b")
    transform = graph.connections["a->b"].transform
    assert (transform.in_features, transform.out_features, transform.activation) == (2, 3, None)
    assert graph.populations["a"].input_from == "a" and graph.populations["b"].input_from is None
    assert graph.populations["b"].compute is None and graph.populations["b"].input_size == 3


def refused(change, error, message):
    with pytest.raises(error, match=message):
        change()


def test_rngs(engine):
    refused(lambda: mp.PopulationGraph(0), TypeError, "PopulationGraph.*expected a stream of keys")


def test_names(graph):
    refused(lambda: graph.add_population("a", 1), ValueError, "has a population 'a' already")
    refused(lambda: graph.add_population("a->b", 1), ValueError, "population name 'a->b'; expected some letters")
    refused(lambda: graph.add_population("a@1", 1), ValueError, "population name 'a@1'")
    refused(lambda: graph.add_population("", 1), ValueError, "population name ''")
    refused(lambda: graph.add_population(3, 1), TypeError, "population name 3; expected a string")
    refused(
        lambda: graph.connect("a", "c"), ValueError, r"connect\('a', 'c'\) asks for the population 'c'; expected one of"
    )
    refused(lambda: graph.connect("c", "a"), ValueError, r"asks for the population 'c'")
    refused(lambda: graph.add_output("y", source="c"), ValueError, r"add_output\('y'\) asks for the population 'c'")
    graph.connect("a", "b", delay=1)
    refused(
        lambda: graph.connect("a", "b", delay=1),
        ValueError,
        "has a connection 'a->b@1' already; expected another delay",
    )
    graph.add_output("y", source="b")
    refused(lambda: graph.add_output("y", source="a"), ValueError, "has an output 'y' already")
    refused(lambda: graph.add_output("z", 2, output_to="y"), ValueError, "has an output 'y' already")


def test_sizes(graph):
    dense = mp.Dense(2, 3, mp.Rngs(0))
    refused(lambda: graph.add_population("c"), ValueError, "Population 'c' got no size")
    refused(lambda: graph.add_population("c", 1, output_size=2), ValueError, "got size=1 and another size")
    refused(lambda: graph.add_population("c", 0), ValueError, r"Population 'c'\(input_size=0\) is not possible")
    refused(lambda: graph.add_input("c", 1.5), ValueError, r"add_input\(size=1.5\) is not possible")
    refused(
        lambda: graph.add_population("c", input_size=2, output_size=3),
        ValueError,
        "'c' has input_size=2 and output_size=3, but no compute; expected one size, or a module",
    )
    refused(
        lambda: graph.add_population("c", input_size=2, output_size=4, compute=dense),
        ValueError,
        r"Population 'c', compute=..., yields an array of shape \(1, 3\); expected an array with 4 features",
    )
    refused(
        lambda: graph.add_population("c", input_size=5, output_size=3, compute=dense),
        ValueError,
        r"'c', compute=..., does not take an input of 5 features: Dense got an input of shape \(1, 5\); expected 2",
    )
    refused(
        lambda: graph.connect("b", "a", transform=dense),
        ValueError,
        "Connection 'b->a', transform=..., does not take an input of 3 features",
    )
    refused(
        lambda: graph.connect("a", "a", transform=dense), ValueError, r"'a->a', .* yields .*\(1, 3\); expected.* 2 feat"
    )
    refused(
        lambda: graph.connect("a", "b", transform="identity"),
        ValueError,
        "no transform, but leads from 2 features to 3",
    )
    refused(
        lambda: graph.connect("a", "a", transform=mp.Splitter(x=1, y=1)),
        ValueError,
        "yields a dict .*; expected an array",
    )
    refused(
        lambda: graph.add_output("y", source="b", head=dense),
        ValueError,
        "Output 'y', head=..., does not take an input of 3",
    )


def test_nothing_is_left_of_what_was_refused(graph):
    refused(lambda: graph.connect("a", "b", transform="identity"), ValueError, "no transform")
    graph.connect("a", "b")
    graph.add_output("y", source="b")
    graph.finalize()
    assert list(graph.connections) == ["a->b"]


@pytest.mark.parametrize("delay", [-1, 1.5, None, True, "1"])
def test_delays(graph, delay):
    refused(
        lambda: graph.connect("a", "b", delay=delay),
        ValueError,
        r"delay=.* is not possible: expected an integer",
    )


def test_modules(graph):
    other = {"jax": "torch", "torch": "jax"}[graph.engine.name]
    with mp.use_backend(other):
        foreign = mp.Dense(2, 2, mp.Rngs(0))
    refused(
        lambda: graph.add_population("c", 2, compute=lambda x: x),
        TypeError,
        "Population 'c', compute=..., is a function",
    )
    refused(lambda: graph.add_population("c", 2, compute=foreign), TypeError, f"compute=..., is a {other} module")
    refused(lambda: graph.connect("a", "b", transform=3), TypeError, "Connection 'a->b', transform=..., is a int")
    refused(
        lambda: graph.connect("a", "b", transform="dense"),
        ValueError,
        "transform='dense'; expected 'linear', 'identity'",
    )
    refused(lambda: graph.add_output("y", source="a", head=3), TypeError, "Output 'y', head=..., is a int")
    refused(lambda: graph.add_population("c", 2, activation="no"), ValueError, "Unknown activation 'no'")
    dense = mp.Dense(2, 3, mp.Rngs(0))
    refused(
        lambda: graph.connect("a", "b", transform=dense, reciprocal=True), ValueError, "reciprocal=True.* got a module"
    )


def test_outputs(graph):
    refused(lambda: graph.add_output("y"), ValueError, r"add_output\('y'\) takes either source=..., .*, or a size")
    refused(lambda: graph.add_output("y", 2, source="a"), ValueError, r"add_output\('y'\) takes either source=")
    dense = mp.Dense(2, 3, mp.Rngs(0))
    refused(lambda: graph.add_output("y", 2, head=dense), ValueError, "takes a head together with source")
    refused(
        lambda: graph.add_output("y", source="a", activation="tanh"), ValueError, "an activation together with a size"
    )
    graph.connect("a", "b")
    refused(graph.finalize, ValueError, r"no output; expected add_output\(name, source=...\) at least once")


def test_populations_that_nothing_observed_reaches(graph):
    graph.add_output("y", source="a")
    refused(graph.finalize, ValueError, r"without any input: \['b'\]; expected a connection to each")
    graph.connect("b", "b", delay=1)
    refused(
        graph.finalize, ValueError, r"no observation reaches: \['b'\]; connect a population that has one \(\['a'\]\)"
    )
    graph.connect("a", "b", delay=2)
    graph.finalize()


def test_cycles_without_delay(graph):
    for name in "cd":
        graph.add_population(name, 1)
    for source, target in ("ab", "bc", "cd", "db"):
        graph.connect(source, target)
    graph.add_output("y", source="d")
    refused(
        graph.finalize,
        ValueError,
        r"a cycle of connections without delay: (b -> c -> d -> b|c -> d -> b -> c|d -> b -> c)",
    )


def test_a_population_that_reads_itself_at_once(graph):
    graph.connect("a", "b")
    graph.connect("b", "b")
    graph.add_output("y", source="b")
    refused(graph.finalize, ValueError, "without delay: b -> b; expected a delay of at least 1 on one of them")
