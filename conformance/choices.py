"""Random choices that can be recorded, taken again, and made simpler.

A random thing made of ``Choices`` alone is a function of a row of small numbers. To find a simpler one with the same
fault, the row is shortened and its numbers lowered: numbers that are missing are 0, and those too large are taken
modulo, so every row makes something. (This is how hypothesis shrinks, see MacIver and Donaldson, 2020, "Test-case
reduction via test-case generation", ECOOP; without it, a network comes from a seed in no time, and the same one with
every version of every package.)
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

__all__ = ["Choices", "simplest"]

T = TypeVar("T")


class Choices:
    """A source of choices.

    Args:
        row: Choices to take again first.
        rng: Where the others come from; None for 0, the simplest.
    """

    def __init__(self, row: Sequence[int] = (), rng: random.Random | None = None) -> None:
        self._given, self._rng = tuple(row), rng
        self.row: list[int] = []

    def number(self, least: int, most: int) -> int:
        """An integer from ``least`` to ``most``, both included; the least is the simplest."""
        count, place = most - least + 1, len(self.row)
        if place < len(self._given):
            chosen = self._given[place] % count
        else:
            chosen = 0 if self._rng is None else self._rng.randrange(count)
        self.row.append(chosen)
        return least + chosen

    def flag(self) -> bool:
        """False, the simpler one, or True."""
        return bool(self.number(0, 1))

    def pick(self, options: Sequence[Any]) -> Any:
        """One of some; the first is the simplest."""
        return options[self.number(0, len(options) - 1)]

    def several(self, options: Sequence[str], most: int) -> list[str]:
        """One or more of some, in any order."""
        left = list(options)
        count = self.number(1, min(most, len(left)))
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]


def simplest(
    make: Callable[[Choices], T],
    row: Sequence[int],
    fails: Callable[[T], bool],
    *,
    tries: int = 250,
    seconds: float = 60.0,
) -> T:
    """The simplest thing with the same fault that is found in time.

    Args:
        make: Makes a thing of choices.
        row: The choices of one that has the fault.
        fails: Whether a thing has it.
        tries: After how many calls of ``fails`` to be content.
        seconds: After what time.
    """
    choices = Choices(row)
    best, best_row = make(choices), choices.row
    tried, deadline = {repr(best)}, time.monotonic() + seconds

    def improve(candidate: list[int]) -> bool:
        nonlocal best, best_row
        choices = Choices(candidate)
        thing, found = make(choices), choices.row
        if (len(found), found) >= (len(best_row), best_row) or repr(thing) in tried:
            return False
        tried.add(repr(thing))
        if not fails(thing):
            return False
        best, best_row = thing, found
        return True

    improved = True
    while improved:
        improved = False
        for attempt in _attempts:
            place = 0
            while place < len(best_row):
                if time.monotonic() > deadline or len(tried) > tries:
                    return best
                candidate = attempt(best_row, place)
                if candidate is not None and improve(candidate):
                    improved = True
                else:
                    place += 1
    return best


def _without(count: int) -> Callable[[list[int], int], list[int] | None]:
    return lambda row, i: row[:i] + row[i + count :] if i + count <= len(row) else None


def _lowered(row: list[int], place: int, to: int) -> list[int] | None:
    return [*row[:place], to, *row[place + 1 :]] if to < row[place] else None


_attempts: tuple[Callable[[list[int], int], list[int] | None], ...] = (
    *(_without(count) for count in (32, 16, 8, 4, 3, 2, 1)),
    lambda row, i: _lowered(row, i, 0),
    # A lower number often means fewer of something, so what described one of them goes as well.
    *(
        lambda row, i, n=n: None if not row[i] else [*row[:i], row[i] - 1, *row[i + 1 + n :]]
        for n in (1, 2, 3, 4, 6, 8)
    ),
    lambda row, i: _lowered(row, i, row[i] // 2),
    lambda row, i: _lowered(row, i, row[i] - 1),
)
"""What is tried at every place of a row: larger steps first."""
