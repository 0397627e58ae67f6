"""Choices: their range, which one is the simplest, and which ones there are."""

from typing import Any

from hypothesis import find
from hypothesis import strategies as st
from multippo.conformance.random_networks.choices import Choices

NAMES = ("x", "y", "z")


def drawn(make: Any) -> Any:
    return st.composite(lambda draw: make(Choices(draw)))()


def test_the_simplest_is_the_least_number_no_the_first_and_one():
    thing = drawn(lambda c: (c.number(2, 9), c.flag(), c.pick("abc"), c.several(NAMES, 2)))
    assert find(thing, lambda _: True) == (2, False, "a", ["x"])


def test_a_part_may_take_the_place_of_what_it_is_in():
    def nested(choices: Choices, depth: int) -> Any:
        if depth == 0 or not choices.flag():
            return choices.number(0, 9)
        return [choices.part(nested, depth - 1) for _ in range(choices.number(1, 3))]

    def holds(thing: Any) -> bool:
        return thing == 7 or (isinstance(thing, list) and any(map(holds, thing)))

    assert find(drawn(lambda c: c.part(nested, 4)), holds) == 7
