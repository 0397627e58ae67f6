"""Descriptions of networks, and their builders: reports of failures print code that runs in this module."""

from .random_networks.composition import KINDS, Composition, Description, build, depth, parts

__all__ = ["KINDS", "Composition", "Description", "build", "depth", "parts"]
