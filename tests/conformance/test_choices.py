"""Choices that are taken again, and the search for simpler ones."""

from __future__ import annotations

import random

import pytest
from multippo.conformance.choices import Choices, simplest


def numbers(choices: Choices) -> list[int]:
    return [choices.number(0, 99) for _ in range(choices.number(0, 20))]


def test_a_row_makes_the_same_thing_again():
    first = Choices(rng=random.Random(3))
    thing = (first.number(2, 9), first.flag(), first.pick("abc"), first.several(("x", "y", "z"), 2))
    again = Choices(first.row)
    assert (again.number(2, 9), again.flag(), again.pick("abc"), again.several(("x", "y", "z"), 2)) == thing
    assert again.row == first.row


def test_what_is_missing_is_the_simplest_and_what_is_too_large_is_taken_modulo():
    # Of 2 to 4, number 7 is 7 mod 3 = 1, the second; then the row is at its end.
    choices = Choices([7])
    assert (choices.number(2, 4), choices.number(5, 8), choices.flag(), choices.pick("ab")) == (3, 5, False, "a")
    assert choices.row == [1, 0, 0, 0]


@pytest.mark.parametrize("seed", range(5))
def test_the_simplest_list_with_a_large_number_has_that_number_alone(seed: int):
    rng = random.Random(seed)
    row = [20, *(rng.randrange(60) for _ in range(19)), 97]
    assert simplest(numbers, row, lambda made: any(n >= 60 for n in made)) == [60]


def test_nothing_is_tried_after_the_deadline():
    tried: list[list[int]] = []
    row = [2, 70, 80]
    assert simplest(numbers, row, lambda made: tried.append(made) or True, seconds=-1.0) == [70, 80]
    assert tried == []
