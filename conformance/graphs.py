"""Graphs of populations, as specimens: loops, delays, and modules of every kind in them."""

from __future__ import annotations

from multippo.networks.containers import Sequential
from multippo.networks.feedforward import Dense
from multippo.networks.graph import PopulationGraph
from multippo.networks.normalizer import Normalizer
from multippo.networks.recurrent import LSTM
from multippo.networks.sampling_layers import NormalTanhSampler
from multippo.networks.structure import Filter
from multippo.rngs import Rngs

from .custom import CentredTrace, NoisyGain

__all__ = ["graph_of_dense", "graph_of_modules"]


def graph_of_dense(features: int) -> PopulationGraph:
    """Two loops, one of two populations, and delays longer than some episodes; declared against the flow."""
    rngs = Rngs(1)
    graph = PopulationGraph(rngs)
    graph.add_output("late", 2, activation="tanh")
    graph.add_population("b", 3, activation="swish")
    graph.add_population("a", 3, activation="tanh")
    graph.add_input("x", features, output_size=4, compute=Dense(features, 4, rngs), activation="gelu")
    graph.connect("x", "a")
    graph.connect("a", "b")
    graph.connect("b", "a", delay=1)
    graph.connect("b", "a", delay=3)
    graph.connect("x", "late", delay=5)
    graph.connect("b", "late", delay=2)
    graph.connect("late", "late", delay=2)
    graph.add_output("now", source="b", head=Dense(3, 2, rngs))
    graph.finalize()
    return graph


def graph_of_modules(features: int) -> PopulationGraph:
    """Carries, snapshots, statistics and noise inside a loop, before it and after it; and a graph in the graph."""
    rngs = Rngs(2)
    inner = PopulationGraph(rngs)
    inner.add_input("u", 3)
    inner.add_population("v", 2, activation="tanh")
    inner.connect("u", "v", delay=1)
    inner.connect("v", "v", delay=2, transform="identity")
    inner.add_output("w", source="v")
    inner.finalize()
    graph = PopulationGraph(rngs)
    graph.add_input("x", features, output_size=3, compute=Sequential([Normalizer(features), LSTM(features, 3, rngs)]))
    graph.add_population("loop", 3, compute=Sequential([CentredTrace(3), NoisyGain(3, rngs)]), activation="tanh")
    graph.add_population("nested", input_size=3, output_size=2, compute=Sequential([inner, Filter("w")]))
    graph.connect("x", "loop", transform=Normalizer(3), delay=2)
    graph.connect("loop", "loop", delay=1, transform=LSTM(3, 3, rngs))
    graph.connect("loop", "nested", transform=NoisyGain(3, rngs))
    graph.add_output("action", source="nested", head=NormalTanhSampler(rngs, 0.1))
    graph.add_output("value", source="loop", head=Dense(3, 1, rngs))
    graph.finalize()
    return graph
