"""Networks that hypothesis draws: the same one for a number, and a simpler one with the same fault, in time."""

import subprocess
import sys

import pytest
from hypothesis import given, settings
from multippo.conformance import networks
from multippo.conformance.composition import Composition, parts
from multippo.conformance.random_networks.drawing import draw_network, simplest


def kinds(network: Composition) -> set[str]:
    return {part[0] for part in parts(network.network)}


def test_a_number_stands_for_one_network_in_every_program():
    # This one has loaded much else, of which hypothesis takes constants.
    name = "multippo.conformance.random_networks.drawing"
    program = f"from {name} import draw_network\nprint(*map(draw_network, range(30)), sep='\\n')"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert other.stdout.splitlines() == [repr(draw_network(number)) for number in range(30)]


def holding(kind: str) -> int:
    return next(number for number in range(60) if kind in kinds(draw_network(number)))


@pytest.mark.parametrize("kind", ["LSTM", "PopulationGraph", "BernoulliSampler"])
@pytest.mark.nightly_if("BernoulliSampler")
def test_little_is_left_around_a_fault(kind: str):
    number = holding(kind)
    tried: list[str] = []

    def fails(network: Composition) -> bool:
        tried.append(repr(network))
        return kind in kinds(network) and any("T" in row for row in network.script)

    simple = simplest(number, fails)
    assert fails(simple) and len(list(parts(simple.network))) <= 3
    # One environment of one step, at the end of which the episode ends; inputs of one number.
    assert (simple.script, simple.seed) == (("T",), 0)
    assert len(tried) - 1 == len(set(tried)) < 400


def test_after_the_deadline_the_network_of_the_number_is_what_there_is():
    tried: list[Composition] = []
    assert simplest(5, lambda network: bool(tried.append(network)), seconds=-1.0) == draw_network(5)
    assert tried == []


@settings(max_examples=15, database=None, deadline=None, derandomize=True)
@given(networks())
def test_the_strategy_is_for_checks_of_ones_own(network: Composition):
    assert kinds(network)
    assert len({len(row) for row in network.script}) == 1
    assert network.specimen().sample is not None
