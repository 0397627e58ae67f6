"""Tools for authors of modules: trees, checks of inputs, and layers that rearrange trees."""

from multippo.arguments import check_features, check_leaves, check_size, describe
from multippo.networks.containers import Map, Merge
from multippo.networks.tree_layers import Filter, Flattener, Scale
from multippo.trees import (
    canonical_leaves,
    map_leaves,
    map_named,
    named_leaves,
    select,
    tree_leaves,
    tree_map,
    tree_structure,
)

__all__ = [
    "Filter",
    "Flattener",
    "Map",
    "Merge",
    "Scale",
    "canonical_leaves",
    "check_features",
    "check_leaves",
    "check_size",
    "describe",
    "map_leaves",
    "map_named",
    "named_leaves",
    "select",
    "tree_leaves",
    "tree_map",
    "tree_structure",
]
