"""The plan of a graph, by hand: components in order, the order inside them, which of them have feedback."""

from multippo.networks.graph.plan import make_plan


def plan(populations, *connections, inputs="a"):
    names = {f"{s}{t}{d or ''}": (s, t, d) for s, t, d in connections}
    made = make_plan(tuple(populations), tuple(inputs), names)
    return [("".join(part.populations), part.feedback) for part in made.components], made


def test_equally_possible_orders_are_those_of_the_declaration():
    assert [name for name, _ in plan("acb", ("a", "b", 0), ("a", "c", 0))[0]] == ["a", "c", "b"]


def test_delayed_connections_close_loops():
    # b and d read each other through a delay; b comes first, since d reads it in the same step.
    parts, made = plan("dcba", ("a", "b", 0), ("b", "d", 0), ("d", "b", 1), ("d", "c", 0), ("c", "c", 3))
    assert parts == [("a", False), ("bd", True), ("c", True)]
    loop = made.components[1]
    assert [(edge.key, edge.inside) for edge in loop.steps[0].incoming] == [("ab", False), ("db1", True)]
    assert [(edge.key, edge.inside) for edge in loop.steps[1].incoming] == [("bd", True)]
