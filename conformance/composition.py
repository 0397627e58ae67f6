"""Descriptions of networks, and their builders, for the code that reports of failures print."""

from .random_networks.composition import KINDS, Composition, Description, build, depth, parts

__all__ = ["KINDS", "Composition", "Description", "build", "depth", "parts"]
