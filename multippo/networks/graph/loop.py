"""One step of populations; and a component with feedback, as something that can be scanned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from multippo.networks.core.parent import Parent, Pass
from multippo.networks.graph.plan import Component, Step
from multippo.networks.types import StatefulModuleOutput


def advance(
    steps: Iterable[Step],
    given: Mapping[str, Any],
    outputs: dict[str, Any],
    recall: Callable[[str, int], Any],
    children: Pass,
    inside_only: bool = False,
) -> None:
    """Runs populations in order, on one step.

    Args:
        steps: Their turns.
        given: Terms already in a population's sum; None or no entry for nothing.
        outputs: Outputs ``[B, ...]`` by population; those of earlier ones are read, these ones' added.
        recall: The output of a population some steps ago.
        children: Runs one module of the graph.
        inside_only: Whether connections from outside the component are in ``given`` already.
    """
    for step in steps:
        total = given.get(step.population)
        for edge in step.incoming:
            if edge.inside or not inside_only:
                source = recall(edge.source, edge.delay) if edge.delay else outputs[edge.source]
                total = add(total, children.run(f"connections.{edge.key}", source))
        outputs[step.population] = children.run(f"populations.{step.population}", total)


def add(total: Any, term: Any) -> Any:
    """The sum, where ``total`` may be None for nothing yet."""
    return term if total is None else total + term


class Loop:
    """The populations of a component and the connections between them, with the methods that ``step_unroll`` calls.

    Input and output are dicts by population: terms from outside the component, and the populations' outputs. Carry and
    snapshots are dicts by the graph's own keys.
    """

    def __init__(self, graph: Parent, component: Component) -> None:
        self.graph, self.component, self.engine, self.xp = graph, component, graph.engine, graph.xp
        # In the order in which they run.
        self.keys = tuple(
            key
            for step in component.steps
            for key in (*(f"connections.{e.key}" for e in step.incoming if e.inside), f"populations.{step.population}")
        )
        children = graph.children_by_key
        self.children_by_key = {key: children[key] for key in self.keys}

    def __call__(self, state: Any, given: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """One step."""
        children = Pass(self, state, rollout_extras, root=self.graph)

        def recall(source: str, delay: int) -> Any:
            population: Any = children.children[f"populations.{source}"]
            return population.recall(state[f"populations.{source}"], delay)

        outputs: dict[str, Any] = {}
        advance(self.component.steps, given, outputs, recall, children, inside_only=True)
        return children.finish(outputs)

    def _split(self, tree: Any, what: str = "state") -> Any:
        return tree

    def _join(self, by_key: dict[str, Any]) -> Any:
        return by_key

    def reset_state(self, prev_state: Any) -> Any:
        """Every carry reset."""
        return {key: child.reset_state(prev_state[key]) for key, child in self.children_by_key.items()}
