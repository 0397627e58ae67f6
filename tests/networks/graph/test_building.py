"""What can't be described is refused, and the error says what was given, what was expected, and where."""

import pytest

import multippo as mp


@pytest.fixture
def graph(torch_engine):
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


def dense():
    return mp.Dense(2, 3, mp.Rngs(0))


def foreign():
    with mp.use_backend("jax"):
        return dense()


def ring(graph):
    for name in "cd":
        graph.add_population(name, 1)
    for source, target in ("ab", "bc", "cd", "db"):
        graph.connect(source, target)


# What is done to the graph, and what is said of the last of it.
REFUSED = [
    # Names
    (lambda g: g.add_population("a", 1), "has a population 'a' already"),
    (lambda g: g.add_population("a->b", 1), "population name 'a->b'; expected a text, without"),
    (lambda g: g.add_population(3, 1), "population name 3; expected a text"),
    (lambda g: g.connect("a", "c"), "connect('a', 'c') asks for the population 'c'; expected one of"),
    (lambda g: g.add_output("y", source="c"), "add_output('y') asks for the population 'c'"),
    (lambda g: [g.connect("a", "b", delay=1) for _ in range(2)], "has a connection 'a->b@1' already; expected another"),
    (lambda g: [g.add_output("y", source=name) for name in "ab"], "has an output 'y' already"),
    # Sizes
    (lambda g: g.add_population("c"), "Population 'c' got no size, or too many"),
    (lambda g: g.add_population("c", 0), "Population 'c'(input_size=0) is not possible"),
    (lambda g: g.add_population("c", input_size=2, output_size=3), "'c' has no compute, but leads from 2 features to"),
    (lambda g: g.add_population("c", input_size=2, output_size=4, compute=dense()), "yields an array of shape (1, 3);"),
    (lambda g: g.add_population("c", input_size=5, output_size=3, compute=dense()), "not take an input of 5 features:"),
    (lambda g: g.connect("b", "a", transform=dense()), "'b->a', transform=..., does not take an input of 3 features"),
    (lambda g: g.connect("a", "b", transform="identity"), "no transform, but leads from 2 features to 3"),
    *((lambda g, d=delay: g.connect("a", "b", delay=d), "is not possible: expected an integer") for delay in (-1, 1.5)),
    # Modules
    (lambda g: g.add_population("c", 2, compute=foreign()), "Population.compute is a Dense of engine jax"),
    (lambda g: g.connect("a", "b", transform="dense"), "transform='dense'; expected 'linear', 'identity'"),
    (lambda g: g.connect("a", "b", transform=dense(), reciprocal=True), "reciprocal=True"),
    # Outputs
    (lambda g: g.add_output("y"), "add_output('y') takes either source=..., "),
    (lambda g: g.add_output("y", 2, head=dense()), "takes a head together with source"),
    (lambda g: g.add_output("y", source="a", activation="tanh"), "an activation with a size"),
    (lambda g: [g.connect("a", "b"), g.finalize()], "no output; expected add_output(name, source=...) at least once"),
    # Ways through the graph
    (
        lambda g: [g.add_output("y", source="a"), g.finalize()],
        "no observation reaches: ['b']; connect a population that has one (['a'])",
    ),
    (lambda g: [ring(g), g.add_output("y", source="d"), g.finalize()], "a cycle of connections without delay: "),
    (
        lambda g: [g.connect("a", "b"), g.connect("b", "b"), g.add_output("y", source="b"), g.finalize()],
        "without delay: b -> b; expected a delay of at least 1 on one of them",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED, ids=[message[:50] for _, message in REFUSED])
def test_what_is_refused(graph, change, message):
    with pytest.raises((TypeError, ValueError)) as refused:
        change(graph)
    assert message in str(refused.value)
