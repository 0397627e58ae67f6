"""The order in which a graph's populations run, and those that can run over all steps at once."""

from __future__ import annotations

import graphlib
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, TypeVar

_T = TypeVar("_T")


class Edge(NamedTuple):
    """A connection to a known target.

    Attributes:
        key: Name of the connection.
        source: Name of the population that is read.
        delay: Delay in environment steps.
        inside: True if source and target are of one component.
    """

    key: str
    source: str
    delay: int
    inside: bool


class Step(NamedTuple):
    """A population's turn within a step.

    Attributes:
        population: Name of the population.
        incoming: Connections to the population, those from outside its component first.
    """

    population: str
    incoming: tuple[Edge, ...]


class Component(NamedTuple):
    """Populations that all reach one another, or a single one.

    Attributes:
        steps: Turns of the populations, in the order of the connections without delay.
        feedback: True if a population's output comes back to it, so that time has to be taken step by step.
    """

    steps: tuple[Step, ...]
    feedback: bool

    @property
    def populations(self) -> tuple[str, ...]:
        """The names of the component's populations."""
        return tuple(step.population for step in self.steps)


class Plan(NamedTuple):
    """Order in which a graph runs its parts, hashable for a module's structure.

    Attributes:
        components: Components in an order in which every connection leads onwards, delayed ones too.
        inputs: Names of the populations that see the observation.
    """

    components: tuple[Component, ...]
    inputs: tuple[str, ...]


def make_plan(
    populations: Sequence[str], inputs: Sequence[str], connections: Mapping[str, tuple[str, str, int]]
) -> Plan:
    """Condenses the graph of all connections to its strongly connected components, and puts them in order.

    Args:
        populations: Names of all populations; their order decides between equally possible ones.
        inputs: Names of the populations that see the observation.
        connections: Source, target and delay by the connection's name.

    Raises:
        ValueError: If no observation reaches a population, or connections without delay form a cycle.
    """
    targets: dict[str, list[str]] = {name: [] for name in populations}
    for source, target, _ in connections.values():
        targets[source].append(target)
    reached = {name: _reachable(targets, targets[name]) for name in populations}
    seen = set(inputs).union(*(reached[name] for name in inputs))
    unreached = [name for name in populations if name not in seen]
    if unreached:
        raise ValueError(
            f"PopulationGraph has populations that no observation reaches: {unreached}; connect a population that has "
            f"one ({list(inputs) or 'none so far, see add_input'}) to them, or give them one (input_from=...)."
        )
    # The component of each population: all populations that it reaches and is reached by.
    together = {
        name: tuple(n for n in populations if n == name or (n in reached[name] and name in reached[n]))
        for name in populations
    }
    groups = list(dict.fromkeys(together.values()))
    sources = {group: {together[s] for s, t, _ in connections.values() if t in group} - {group} for group in groups}
    components: list[Component] = []
    for group in _in_order(sources):
        steps = tuple(Step(name, _incoming(name, group, connections)) for name in _within(group, connections))
        components.append(Component(steps, group[0] in reached[group[0]]))
    return Plan(tuple(components), tuple(inputs))


def _reachable(targets: Mapping[str, Iterable[str]], starts: Iterable[str]) -> set[str]:
    """The starts, and all populations to which connections lead from them."""
    found, waiting = set(starts), list(starts)
    while waiting:
        for target in targets[waiting.pop()]:
            if target not in found:
                found.add(target)
                waiting.append(target)
    return found


def _incoming(name: str, group: Sequence[str], connections: Mapping[str, tuple[str, str, int]]) -> tuple[Edge, ...]:
    edges = [
        Edge(key, source, delay, source in group) for key, (source, to, delay) in connections.items() if to == name
    ]
    # The sum is then taken in one order, whether or not the terms from outside are summed beforehand.
    return tuple(sorted(edges, key=lambda edge: edge.inside))


def _in_order(needs: Mapping[_T, set[_T]]) -> list[_T]:
    """The keys in the given order, as far as each comes after all that it needs."""
    left = list(needs)
    order: list[_T] = []
    while left:
        ready = next(key for key in left if needs[key].isdisjoint(left))
        left.remove(ready)
        order.append(ready)
    return order


def _within(group: Sequence[str], connections: Mapping[str, tuple[str, str, int]]) -> list[str]:
    """The populations of a component, each after all that it reads in the same step."""
    needs = {
        name: {source for source, target, delay in connections.values() if target == name and not delay}
        for name in group
    }
    try:
        graphlib.TopologicalSorter(needs).prepare()
    except graphlib.CycleError as error:
        raise ValueError(
            f"PopulationGraph has a cycle of connections without delay: {' -> '.join(error.args[1])}; expected a "
            "delay of at least 1 on one of them, since a population can't read its own output of the same step."
        ) from None
    return _in_order(needs)
