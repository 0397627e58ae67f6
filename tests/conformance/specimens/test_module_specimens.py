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
