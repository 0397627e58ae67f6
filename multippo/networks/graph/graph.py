"""``PopulationGraph``: populations of units, joined by connections with delays."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from multippo.networks.containers import Parent, Pass
from multippo.networks.core.unrolling import check_rows, check_steps, step_unroll
from multippo.networks.graph.building import Builder
from multippo.networks.graph.drawing import draw, summary
from multippo.networks.graph.plan import Component, Plan, Step
from multippo.networks.recording import ACTIVATION_KEY
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.random import Rngs


class PopulationGraph(Builder):
    """A network given as a graph of named populations, connections between them with delays, and named outputs.

    In each step every population p has the input x and the output y::

        x_p[t] = observation[input_from_p][t] + sum_c transform_c(y_source(c)[t - delay_c])    over connections c to p
        y_p[t] = activation_p(compute_p(x_p[t]))

    where ``y[t - delay]`` is zero before the first step of the episode. Connections without delay must not form a
    cycle, and decide the order within a step. The output is a dict with an entry for each ``add_output``.

    Any module may be a ``compute``, a ``transform`` or a ``head``, recurrent, noisy and normalising ones and other
    graphs too, with carry, snapshots, resets and statistics. Carry and snapshots are
    ``{"populations", "connections", "outputs"}``, each by name.

    Over many steps, in replay, populations without feedback to themselves run on all steps at once, and so do all
    connections that lead to or from them; only loops are taken step by step.

    >>> import multippo as mp
    >>> rngs = mp.Rngs(0)
    >>> g = mp.PopulationGraph(rngs)
    >>> g.add_population("input", input_size=8, output_size=32, compute=mp.Dense(8, 32, rngs), activation="swish",
    ...                  input_from="x")
    >>> g.add_population("hidden", output_size=32, activation="swish")
    >>> g.connect("input", "hidden")
    >>> g.connect("hidden", "hidden", delay=1)
    >>> g.add_output("action_params", source="hidden", head=mp.Dense(32, 4, rngs))
    >>> g.add_output("value", source="hidden", head=mp.Dense(32, 1, rngs))
    >>> g.finalize()
    >>> print(g)
    PopulationGraph(
      populations:
        input: 8 -> 32, Dense, swish, sees 'x'
        hidden: 32, swish
      connections:
        input -> hidden: Dense
        hidden -> hidden, delay 1: Dense
      outputs:
        action_params: Dense of hidden
        value: Dense of hidden
      over time: input at once; hidden step by step
    )

    Args:
        rngs: Source of the initial weights of default transforms, in the order of the calls of ``connect``.

    Attributes:
        record_activations: True to have every population's output in the metrics, as ``activations`` by name,
            ``[B, output_size]``: the outputs of the modules ``graph.populations[name]``.

    Raises:
        TypeError: If ``rngs`` is not an ``Rngs``.
    """

    def __init__(self, rngs: Rngs) -> None:
        self._begin(rngs)
        self.record_activations = False

    @property
    def children_by_key(self) -> dict[Any, StatefulModule]:
        """Populations, connections and outputs, by key."""
        self._ready()
        return {key: self.held(kind)[name] for key in self.keys for kind, _, name in (key.partition("."),)}

    @property
    def scans_in_replay(self) -> bool:  # pyright: ignore[reportIncompatibleVariableOverride]
        """True if the graph has feedback, so that a replay takes a part of it step by step."""
        return self.plan is not None and any(component.feedback for component in self.plan.components)

    @property
    def stepped_children(self) -> frozenset[Any]:
        """Keys of the populations whose output comes back to them, and of the connections between them."""
        loops = [component for component in self._ready().components if component.feedback]
        populations = {f"populations.{name}" for component in loops for name in component.populations}
        edges = {edge for component in loops for step in component.steps for edge in step.incoming}
        return frozenset(populations | {f"connections.{edge.key}" for edge in edges if edge.inside})

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs one step, from an observation, a tree of ``[B, ...]``, to a dict of ``[B, ...]``."""
        plan, children = self._ready(), Pass(self, state, rollout_extras)
        given, outputs = self._observed(plan, x), {}
        for seen in given.values():
            self._check_buffers(state, seen.shape[0])
        for component in plan.components:
            advance(component.steps, given, outputs, children)
        return self._finish(children, outputs)

    def unroll(self, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs many steps component by component, with a scan only of those with feedback."""
        plan, populations = self._ready(), self.held("populations")
        children = Pass(self, state, rollout_extras, done)
        given: dict[str, Any] = self._observed(plan, xs)
        check_steps(type(self).__name__, given, done)
        self._check_buffers(state, done.shape[1])
        outputs: dict[str, Any] = {}
        for component in plan.components:
            for step in component.steps:
                for edge in step.incoming:
                    if edge.inside:
                        continue
                    source = outputs[edge.source]
                    if edge.delay:
                        carry = state["populations"][edge.source]
                        source = populations[edge.source].recall_over_time(carry, source, done, edge.delay)
                    term = children.run(f"connections.{edge.key}", source)
                    given[step.population] = add(given.get(step.population), term)
            if component.feedback:
                entering = {name: given.get(name) for name in component.populations}
                outputs.update(self._scan(component, children, entering))
            else:
                (name,) = component.populations
                outputs[name] = children.run(f"populations.{name}", given[name])
        return self._finish(children, outputs)

    def _scan(self, component: Component, children: Pass, given: Any) -> Any:
        """Runs a component with feedback over all steps; returns its outputs, and leaves the rest in ``children``."""
        loop: Any = Loop(self, component)
        states, extras = children.states, children.extras
        carry = {key: states[key] for key in loop.keys}
        inside = None if extras is None else {key: extras[key] for key in loop.keys}
        out = step_unroll(loop, carry, given, children.done, inside)
        loss = out.regularization_loss
        for key in loop.keys:
            metrics = out.metrics.get(key, {})
            children.outs[key] = StatefulModuleOutput(out.next_state[key], None, loss, metrics, out.rollout_extras[key])
            loss = 0.0  # that of all of them, counted once
        return out.output

    def _check_buffers(self, state: Any, batch: int) -> None:
        """Raises unless past outputs have ``batch`` rows; a single row would be added to every environment's input."""
        for name, population in self.held("populations").items():
            if population.max_outgoing_delay:
                check_rows(f"Population {name!r}", state["populations"][name]["buffer"], batch)

    def _observed(self, plan: Plan, x: Any) -> dict[str, Any]:
        """Observations by input population."""
        populations = self.held("populations")
        return {name: populations[name].observe(x, len(plan.inputs) == 1) for name in plan.inputs}

    def _finish(self, children: Pass, outputs: dict[str, Any]) -> StatefulModuleOutput:
        """Runs the heads, and returns the graph's output."""
        heads = self.held("outputs").items()
        result = children.finish({name: children.run(f"outputs.{name}", outputs[head.source]) for name, head in heads})
        if not self.record_activations:
            return result
        return result._replace(metrics={**result.metrics, ACTIVATION_KEY: outputs})

    def _split(self, tree: Any, what: str = "state") -> dict[Any, Any]:
        try:
            return {key: tree[kind][name] for key in self.keys for kind, _, name in (key.partition("."),)}
        except (KeyError, IndexError, TypeError):
            raise ValueError(self._unfitting(tree, what)) from None

    def _join(self, by_key: dict[Any, Any]) -> Any:
        tree: dict[str, dict[str, Any]] = {"populations": {}, "connections": {}, "outputs": {}}
        for key, entry in by_key.items():
            kind, _, name = key.partition(".")
            tree[kind][name] = entry
        return tree

    def _ready(self) -> Plan:
        if self.plan is None:
            raise RuntimeError("PopulationGraph is not finished; call finalize() once, after the last connect().")
        return self.plan

    def plot(self, ax: Any = None) -> Any:
        """Draws the graph with matplotlib: delays beside the arrows, connections that close a loop in red.

        Args:
            ax: ``matplotlib.axes.Axes`` to draw on; new ones by default.

        Returns:
            The axes.

        Raises:
            ImportError: If matplotlib is missing.
            RuntimeError: Before ``finalize``.
        """
        self._ready()
        return draw(self, ax)

    def __repr__(self) -> str:
        """The populations, connections and outputs, and the parts that run over all steps at once."""
        return summary(self)

    def __str__(self) -> str:
        """The text of ``__repr__`` on every engine, where NNX's own would print every array."""
        return repr(self)


def advance(
    steps: Iterable[Step],
    given: Mapping[str, Any],
    outputs: dict[str, Any],
    children: Pass,
    inside_only: bool = False,
) -> None:
    """Runs populations in order, on one step.

    Args:
        steps: Turns of the populations.
        given: Terms already in a population's sum, by population; None or no entry for nothing.
        outputs: Outputs ``[B, ...]`` by population, read for earlier ones and extended by those of ``steps``.
        children: Pass that runs one module of the graph.
        inside_only: True if connections from outside the component are in ``given`` already.
    """
    for step in steps:
        total = given.get(step.population)
        for edge in step.incoming:
            if edge.inside or not inside_only:
                if edge.delay:
                    key = f"populations.{edge.source}"
                    population: Any = children.children[key]
                    source = population.recall(children.states[key], edge.delay)
                else:
                    source = outputs[edge.source]
                total = add(total, children.run(f"connections.{edge.key}", source))
        outputs[step.population] = children.run(f"populations.{step.population}", total)


def add(total: Any, term: Any) -> Any:
    """The sum of ``total``, which may be None for nothing yet, and ``term``."""
    return term if total is None else total + term


class Loop:
    """The populations of a component and the connections between them, with the methods that ``step_unroll`` calls.

    Input and output are dicts by population: terms from outside the component, and the populations' outputs. Carry and
    snapshots are dicts by the graph's own keys.
    """

    def __init__(self, graph: Parent, component: Component) -> None:
        self.graph, self.component, self.engine, self.xp = graph, component, graph.engine, graph.xp
        # In the order in which the modules run.
        self.keys = tuple(
            key
            for step in component.steps
            for key in (*(f"connections.{e.key}" for e in step.incoming if e.inside), f"populations.{step.population}")
        )
        children = graph.children_by_key
        self.children_by_key = {key: children[key] for key in self.keys}

    def __call__(self, state: Any, given: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Runs one step of the component."""
        children, outputs = Pass(self, state, rollout_extras, root=self.graph), dict[str, Any]()
        advance(self.component.steps, given, outputs, children, inside_only=True)
        return children.finish(outputs)

    def _split(self, tree: Any, what: str = "state") -> Any:
        return tree

    def _join(self, by_key: dict[str, Any]) -> Any:
        return by_key

    def reset_state(self, prev_state: Any) -> Any:
        """The carries of the component, each reset."""
        return {key: child.reset_state(prev_state[key]) for key, child in self.children_by_key.items()}
