"""A graph of dense layers in NumPy, straight from the equations: all outputs of the past kept, none in a buffer."""

from typing import Any, NamedTuple

import numpy as np

import multippo as mp


class Shape(NamedTuple):
    """Which graph: sizes and the observed entry by population, and (source, target, delay) of each connection."""

    sizes: dict[str, int]
    inputs: dict[str, str]
    connections: list[tuple[str, str, int]]
    outputs: list[str]


def build(shape: Shape, activation: str = "tanh") -> Any:
    """The graph, every connection a Dense, every output as it is."""
    graph = mp.PopulationGraph(mp.Rngs(0))
    for name, size in shape.sizes.items():
        graph.add_population(name, size, activation=activation, input_from=shape.inputs.get(name))
    for source, target, delay in shape.connections:
        graph.connect(source, target, delay=delay)
    for name in shape.outputs:
        graph.add_output(name, source=name)
    graph.finalize()
    return graph


def simulate(shape: Shape, weights: dict[str, np.ndarray], xs: dict[str, Any], done: np.ndarray) -> dict[str, Any]:
    """The outputs ``[T, B, size]``, from the start of an episode; tanh is the activation."""
    time, batch = done.shape
    ys = {name: np.full((time, batch, size), np.nan) for name, size in shape.sizes.items()}
    for b in range(batch):
        start = 0
        for t in range(time):
            for name in order(shape):
                total = np.zeros(shape.sizes[name])
                if name in shape.inputs:
                    total = total + xs[shape.inputs[name]][t, b]
                for source, target, delay in shape.connections:
                    if target == name:
                        seen = ys[source][t - delay, b] if t - delay >= start else np.zeros(shape.sizes[source])
                        key = f"connections.{source}->{target}{f'@{delay}' if delay else ''}.transform"
                        total = total + seen @ weights[f"{key}.kernel"] + weights[f"{key}.bias"]
                ys[name][t, b] = np.tanh(total)
            if done[t, b]:
                start = t + 1
    return {name: ys[name] for name in shape.outputs}


def order(shape: Shape) -> list[str]:
    """Populations, each after those that it reads in the same step."""
    found: list[str] = []
    while len(found) < len(shape.sizes):
        for name in shape.sizes:
            needs = [source for source, target, delay in shape.connections if target == name and not delay]
            if name not in found and all(source in found for source in needs):
                found.append(name)
    return found
