"""``Connection`` and ``Readout``: the edges of a ``PopulationGraph``, and its ways out."""

from __future__ import annotations

from typing import Any

from multippo.networks.core.parent import Pass
from multippo.networks.graph.population import Population
from multippo.networks.graph.wrapper import Wrapper, check_name, check_output, check_yields
from multippo.networks.types import StatefulModule


class Connection(Wrapper):
    """``transform`` of a population's output, now or some steps ago, on its way to another one's input.

    Made by ``PopulationGraph.connect``.

    Attributes:
        name: ``source->target``, or ``source->target@delay``.
        source: Name of the population it reads.
        target: Name of the population it feeds.
        delay: How many steps ago.
        output_size: Features of the target's input.
    """

    def __init__(self, source: Population, target: Population, delay: int, transform: StatefulModule | None) -> None:
        self.name = connection_name(source.name, target.name, delay)
        where = f"Connection {self.name!r}"
        self.source, self.target, self.delay = source.name, target.name, delay
        self.output_size = target.input_size
        self._hold("transform", transform, where)
        if transform is not None:
            check_yields(f"{where}, transform=...,", transform, source.output_size, self.output_size)
        elif source.output_size != self.output_size:
            raise ValueError(
                f"{where} has no transform, but leads from {source.output_size} features to {self.output_size}; "
                "expected equal sizes, or a module such as Dense; the default transform is one."
            )

    def _route(self, children: Pass, x: Any) -> Any:
        y = children.run("transform", x) if self.keys else x
        check_output(f"Connection {self.name!r}", y, self.output_size)
        return y


class Readout(Wrapper):
    """``head`` of a population's output, under a name of the graph's output.

    Made by ``PopulationGraph.add_output``.

    Attributes:
        name: The entry of the graph's output.
        source: Name of the population it reads.
    """

    def __init__(self, name: str, source: Population, head: StatefulModule | None) -> None:
        self.name = check_name("output", name)
        self.source = source.name
        self._hold("head", head, f"Output {self.name!r}")
        if head is not None:
            check_yields(f"Output {self.name!r}, head=...,", head, source.output_size, None)

    def _route(self, children: Pass, x: Any) -> Any:
        return children.run("head", x) if self.keys else x


def connection_name(source: str, target: str, delay: int) -> str:
    """Name of a connection in carries, snapshots and portable weights."""
    return f"{source}->{target}@{delay}" if delay else f"{source}->{target}"
