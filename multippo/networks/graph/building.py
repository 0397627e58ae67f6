"""Description of a ``PopulationGraph``: its populations, connections and outputs, and ``build``."""

from __future__ import annotations

from typing import Any

from multippo.arguments import check_size
from multippo.networks.activations import Activation
from multippo.networks.containers import Parent
from multippo.networks.feedforward import Dense
from multippo.networks.graph.parts import Connection, InputFrom, Population, Readout, check_name, connection_name
from multippo.networks.graph.plan import Plan, make_plan
from multippo.networks.types import StatefulModule
from multippo.random import Rngs, check_rngs


class Builder(Parent):
    """The half of ``PopulationGraph`` with the methods that describe the graph."""

    rngs: Rngs | None
    plan: Plan | None

    def _begin(self, rngs: Rngs) -> None:
        self.rngs = check_rngs("PopulationGraph", rngs)
        self.plan = None
        self.keys = ()

    def add_population(
        self,
        name: str,
        size: int | None = None,
        *,
        input_size: int | None = None,
        output_size: int | None = None,
        compute: StatefulModule | None = None,
        activation: Activation = None,
        input_from: InputFrom = None,
    ) -> None:
        """Adds a population: ``y = activation(compute(sum of the inputs))``.

        Args:
            name: Name of the population, without "->" and "@".
            size: Number of features of input and output, if they are equal.
            input_size: Number of features of the input; ``output_size`` by default.
            output_size: Number of features of the output; ``input_size`` by default.
            compute: Any module from ``[B, input_size]`` to ``[B, output_size]``, with or without a carry; None for the
                identity.
            activation: Name such as "tanh", a callable of the engine's arrays that works on trailing axes, or None.
            input_from: Entry of the observation that is added to the input: a key, a path of keys, or a function of the
                observation, as for ``Filter``. An observation of one array goes whole to the only population with an
                ``input_from``.

        Raises:
            RuntimeError: After ``finalize``.
            ValueError: If the name is taken or impossible, a size is missing or impossible, the activation unknown, or
                ``compute`` has other sizes.
            TypeError: If ``compute`` is not a StatefulModule of this engine, or another argument is of the wrong kind.
        """
        self._open("add_population")
        if check_name("population", name) in self.held("populations"):
            raise ValueError(f"PopulationGraph has a population {name!r} already; expected another name.")
        if (size is None) == (input_size is None and output_size is None):
            raise ValueError(f"Population {name!r} got no size, or too many; expected size, or input and output_size.")
        output_size = next(given for given in (size, output_size, input_size) if given is not None)
        population = Population(
            name,
            output_size if input_size is None else input_size,
            output_size,
            compute=compute,
            activation=activation,
            input_from=input_from,
        )
        self._add("populations", name, population)

    def add_input(
        self,
        name: str,
        size: int,
        *,
        input_from: InputFrom = None,
        compute: StatefulModule | None = None,
        output_size: int | None = None,
        activation: Activation = None,
    ) -> None:
        """Adds a population that sees an entry of the observation.

        Args:
            name: Name of the population.
            size: Number of features of the entry.
            input_from: Entry of the observation, as for ``add_population``; the one called ``name`` by default.
            compute: Module from ``[B, size]`` to ``[B, output_size]``; None for the identity.
            output_size: Number of features of the output; ``size`` by default.
            activation: Activation, as for ``add_population``.

        Raises:
            RuntimeError: After ``finalize``.
            ValueError: As for ``add_population``.
            TypeError: As for ``add_population``.
        """
        self.add_population(
            name,
            input_size=check_size("PopulationGraph.add_input", "size", size),
            output_size=size if output_size is None else output_size,
            compute=compute,
            activation=activation,
            input_from=name if input_from is None else input_from,
        )

    def connect(
        self,
        source: str,
        target: str,
        *,
        transform: StatefulModule | str | None = None,
        delay: int = 0,
        reciprocal: bool = False,
    ) -> None:
        """Adds a connection: ``transform`` of the source's output enters the target's sum.

        Args:
            source: Name of a population.
            target: Name of a population, maybe the same one.
            transform: "linear", or None, for ``Dense(source.output_size, target.input_size)``, drawn from the graph's
                rngs; "identity" to pass the output on; or any module between these sizes, with or without a carry.
            delay: Environment steps from the source's output to the target's input, within the episode; before its
                first step there are zeros. 0 is the present step.
            reciprocal: True for a second connection from ``target`` to ``source``, of the same delay, with weights of
                its own.

        Raises:
            RuntimeError: After ``finalize``.
            ValueError: If a population is unknown, there is such a connection already, the delay negative or not an
                integer, the transform unknown or of other sizes, or a module is to be used in both directions.
            TypeError: If the transform is something else.
        """
        self._open("connect")
        if reciprocal and not (transform is None or isinstance(transform, str)):
            raise ValueError(
                "connect(reciprocal=True) got a module as transform; expected 'linear' or 'identity'. Call connect "
                "once for each direction, with a module for each."
            )
        delay = check_size(f"connect({source!r}, {target!r})", "delay", delay, least=0)
        for here, there in ((source, target), (target, source))[: 2 if reciprocal else 1]:
            ends = [self._population(f"connect({here!r}, {there!r})", name) for name in (here, there)]
            name = connection_name(here, there, delay)
            if name in self.held("connections"):
                raise ValueError(
                    f"PopulationGraph has a connection {name!r} already; expected another delay. Parallel transforms "
                    "can be summed in one module."
                )
            self._add("connections", name, Connection(*ends, delay, self._transform(name, transform, *ends)))

    def _transform(self, name: str, transform: Any, source: Population, target: Population) -> StatefulModule | None:
        if isinstance(transform, str) and transform not in ("linear", "identity"):
            raise ValueError(
                f"Connection {name!r} got transform={transform!r}; expected 'linear', 'identity' or a module."
            )
        if transform is None or transform == "linear":
            assert self.rngs is not None
            return Dense(source.output_size, target.input_size, self.rngs)
        return None if transform == "identity" else transform

    def add_output(
        self,
        name: str,
        size: int | None = None,
        *,
        source: str | None = None,
        head: StatefulModule | None = None,
        output_to: str | None = None,
        activation: Activation = None,
    ) -> None:
        """Adds an entry of the graph's output, which is a dict.

        With ``source``, the entry is ``head`` of that population's output. With ``size`` instead, a population of that
        name and size is added, to be connected like any other, and the entry is its output.

        Args:
            name: Name of the entry, and of the population, if one is added.
            size: Number of features of the population to add.
            source: Name of the population to read.
            head: Any module that takes the population's output, and may yield a tree; None for the identity.
            output_to: Name of the entry, if it differs from ``name``.
            activation: Activation of the population to add.

        Raises:
            RuntimeError: After ``finalize``.
            ValueError: If there is such an output already, the population is unknown, both or neither of ``source`` and
                ``size`` are given, a head is given with ``size`` or an activation with ``source``, or the head does not
                take the population's output.
            TypeError: If ``head`` is not a StatefulModule of this engine.
        """
        self._open("add_output")
        if (size is None) == (source is None):
            raise ValueError(
                f"add_output({name!r}) takes either source=..., a population to read, or a size, that of a population "
                "to add."
            )
        entry = check_name("output", name if output_to is None else output_to)
        if entry in self.held("outputs"):
            raise ValueError(f"PopulationGraph has an output {entry!r} already; expected another name.")
        if (head if source is None else activation) is not None:
            raise ValueError(f"add_output({name!r}) takes a head together with source=..., an activation with a size.")
        if source is None:
            self.add_population(name, size, activation=activation)
        population = self._population(f"add_output({name!r})", name if source is None else source)
        self._add("outputs", entry, Readout(entry, population, head))

    def finalize(self) -> None:
        """Checks the graph and puts its parts in order; a finished graph can be run, and not be changed.

        Raises:
            RuntimeError: In a second call.
            ValueError: If the graph has no output, no observation reaches a population, or connections without delay
                form a cycle.
        """
        self._open("finalize")
        populations, connections = self.held("populations"), self.held("connections")
        if not self.held("outputs"):
            raise ValueError("PopulationGraph has no output; expected add_output(name, source=...) at least once.")
        ends = {name: (c.source, c.target, c.delay) for name, c in connections.items()}
        inputs = [name for name, population in populations.items() if population.input_from is not None]
        plan = make_plan(tuple(populations), inputs, ends)
        for name, population in populations.items():
            population.max_outgoing_delay = max(
                (delay for source, _, delay in ends.values() if source == name), default=0
            )
        kinds = ("populations", "connections", "outputs")
        self.keys = tuple(f"{kind}.{name}" for kind in kinds for name in self.held(kind))
        self.plan, self.rngs = plan, None

    def held(self, kind: str) -> Any:
        """Parts of one kind that were added, by name."""
        return getattr(self, kind, {})

    def _add(self, kind: str, name: str, module: StatefulModule) -> None:
        held = self.held(kind)
        if held:
            held[name] = module
        else:
            setattr(self, kind, {name: module})

    def _population(self, where: str, name: Any) -> Population:
        populations = self.held("populations")
        if name not in tuple(populations):
            raise ValueError(
                f"PopulationGraph.{where} asks for the population {name!r}; expected one of {list(populations)}, those "
                "that have been added before."
            )
        return populations[name]

    def _open(self, what: str) -> None:
        if self.plan is not None:
            raise RuntimeError(f"PopulationGraph.{what} was called after finalize(); describe the graph before it.")
