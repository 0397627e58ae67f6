"""Specimens: one of every module of the library, and inputs and settings that random networks are not drawn with."""

from collections.abc import Iterator
from typing import Any

import pytest
from multippo.conformance.composition import KINDS
from multippo.conformance.evidence.attribute_writes import named_parts
from multippo.conformance.random_networks.drawn_networks import random_networks
from multippo.conformance.specimens.module_specimens import MODULES, plain_samplers
from multippo.conformance.specimens.specimen import ModuleSpecimen

import multippo as mp
from multippo.random import host

PUBLIC = {
    name: value
    for name, value in ((name, getattr(mp, name)) for name in mp.__all__)
    # StatefulModule is what the others are made of.
    if isinstance(value, type) and issubclass(value, mp.StatefulModule) and value is not mp.StatefulModule
}


@pytest.fixture(autouse=True)
def _reference():
    """Nothing is compiled to build a module."""
    with mp.use_backend("numpy"):
        yield


def held(specimens: Iterator[ModuleSpecimen] | list[ModuleSpecimen]) -> list[Any]:
    """Every module within some specimens."""
    return [part for specimen in specimens for _, part in named_parts(specimen.build())]


def public_names(modules: list[Any]) -> set[str]:
    """Names of the public class nearest to each: an engine's own is derived from it, and some from another."""
    names = {made: name for name, made in PUBLIC.items()}
    nearest = (next((names[base] for base in type(module).__mro__ if base in names), "") for module in modules)
    return set(nearest) - {""}


def test_every_public_module_has_a_specimen_and_is_in_random_networks():
    assert len(PUBLIC) > 25
    assert public_names(held([specimen for specimen in MODULES if not specimen.only_on])) == set(PUBLIC)
    drawn = set(PUBLIC) - set(plain_samplers())
    assert drawn - set(KINDS) == set()
    # A kind makes the module it is called after.
    assert public_names(held(random_networks())) == drawn


def test_some_inputs_are_tuples_and_lists_some_entries_are_taken_by_a_function_and_some_scaled_each_by_its_own():
    nodes = {type(node) for specimen in MODULES for node in nodes_of(specimen.sample(host.key(0)))}
    assert nodes >= {tuple, list, dict}
    modules = held([specimen for specimen in MODULES if not specimen.only_on])
    specs = [spec for module in modules if isinstance(module, mp.Filter) for spec in specs_of(module.spec)]
    assert {kind for kind, _ in specs} == {"call", "dict", "path"}
    assert any(isinstance(key, int) for kind, value in specs if kind == "path" for key in value)
    factors = [module.factors for module in modules if isinstance(module, mp.Scale)]
    assert any(isinstance(factor, tuple) and None in dict(factor).values() for factor in factors)


def nodes_of(tree: Any) -> Iterator[Any]:
    """The containers in a tree."""
    if isinstance(tree, dict | list | tuple):
        yield tree
        for entry in tree.values() if isinstance(tree, dict) else tree:
            yield from nodes_of(entry)


def specs_of(spec: Any) -> Iterator[Any]:
    """The spec of a Filter, and those of its entries."""
    yield spec
    if spec[0] == "dict":
        for _, entry in spec[1]:
            yield from specs_of(entry)
