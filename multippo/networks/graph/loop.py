"""One step of populations; and a component with feedback, as something that can be scanned."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from multippo.networks.graph.plan import Component, Step
from multippo.networks.parent import Run
from multippo.networks.types import StatefulModule, StatefulModuleOutput

__all__ = ["Loop", "add", "advance"]


def advance(
    steps: Iterable[Step],
    given: Mapping[str, Any],
    outputs: dict[str, Any],
    recall: Callable[[str, int], Any],
    run: Run,
    inside_only: bool = False,
) -> None:
    """Runs populations in order, on one step.

    Args:
        steps: Their turns.
        given: What is in a population's sum already; None or no entry for nothing.
        outputs: Outputs ``[B, ...]`` by population; those of earlier ones are read, these ones' added.
        recall: The output of a population some steps ago.
        run: Runs one module of the graph.
        inside_only: Whether connections from outside the component are in ``given`` already.
    """
    for step in steps:
        total = given.get(step.population)
        for edge in step.incoming:
            if edge.inside or not inside_only:
                source = recall(edge.source, edge.delay) if edge.delay else outputs[edge.source]
                total = add(total, run(f"connections.{edge.key}", source).output)
        outputs[step.population] = run(f"populations.{step.population}", total).output


def add(total: Any, term: Any) -> Any:
    """The sum, where ``total`` may be None for nothing yet."""
    return term if total is None else total + term


class Loop:
    """The populations of a component and the connections between them, with the methods that ``step_unroll`` calls.

    Input and output are dicts by population: what comes from outside the component, and what is put out. Carry and
    snapshots are dicts by the graph's own keys.
    """

    def __init__(self, component: Component, children: Mapping[str, StatefulModule], engine: Any) -> None:
        self.component, self.engine, self.xp = component, engine, engine.xp
        inside = [edge.key for step in component.steps for edge in step.incoming if edge.inside]
        keys = [*(f"populations.{name}" for name in component.populations), *(f"connections.{key}" for key in inside)]
        self.children = {key: children[key] for key in keys}

    def __call__(self, state: Any, given: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """One step."""
        outs: dict[str, StatefulModuleOutput] = {}

        def run(key: str, x: Any) -> StatefulModuleOutput:
            outs[key] = self.children[key](state[key], x, None if rollout_extras is None else rollout_extras[key])
            return outs[key]

        def recall(source: str, delay: int) -> Any:
            population: Any = self.children[f"populations.{source}"]
            return population.recall(state[f"populations.{source}"], delay)

        outputs: dict[str, Any] = {}
        advance(self.component.steps, given, outputs, recall, run, inside_only=True)
        loss: Any = 0.0
        for out in outs.values():
            loss = loss + out.regularization_loss
        return StatefulModuleOutput(
            next_state={key: outs[key].next_state for key in self.children},
            output=outputs,
            regularization_loss=loss,
            metrics={key: out.metrics for key, out in outs.items()},
            rollout_extras={key: out.rollout_extras for key, out in outs.items()},
        )

    def reset_state(self, prev_state: Any) -> Any:
        """Every carry reset."""
        return {key: child.reset_state(prev_state[key]) for key, child in self.children.items()}
