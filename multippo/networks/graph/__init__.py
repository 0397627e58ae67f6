"""Networks given as graphs of populations."""

from multippo.networks.graph.graph import PopulationGraph

__all__ = ["PopulationGraph"]
