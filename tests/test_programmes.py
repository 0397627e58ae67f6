"""Programmes are kept for equal work, a bounded number of them, and keep nothing alive."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from multippo import programmes
from multippo.programmes import Programmes, frozen, identity, programmes_of


@pytest.fixture(autouse=True)
def empty() -> Iterator[None]:
    programmes.clear_programmes()
    yield
    programmes.clear_programmes()


class Scale:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def times(self, x: int) -> int:
        return self.factor * x


def jit_like(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compiles by calling once: what the owner was then is what every later call gets."""
    made: list[Any] = []

    def call(x: int) -> int:
        made or made.append(function(1))
        return made[0] * x

    return call


def test_what_is_compiled_for_one_serves_its_like():
    shared = Programmes()
    first = shared.compiled(Scale(3), Scale.times, jit_like)
    second = shared.compiled(Scale(3), Scale.times, jit_like)
    assert (first(2), second(5)) == (6, 15)
    # What compiles nothing whole keeps the method, and each owner its own.
    plain = Programmes()
    assert [plain.compiled(Scale(n), Scale.times, lambda f: f)(2) for n in (3, 7)] == [6, 14]
    assert plain.compiled(Scale(3), Scale.times).func is Scale.times


def test_the_longest_unused_is_forgotten_first(monkeypatch):
    monkeypatch.setattr(programmes, "_MOST", 2)
    a, b = programmes_of("a", 1), programmes_of("b", 1)
    assert programmes_of("a", 1) is a
    programmes_of("c", 1)  # in the place of b, since a was used after it
    assert programmes_of("a", 1) is a
    assert programmes_of("b", 1) is not b


def test_keys_by_content_and_by_identity():
    one, other = Scale(1), Scale(1)
    assert identity(one) == identity(one) != identity(other)
    assert len({identity(one), identity(one), identity(other)}) == 2
    dead = identity(Scale(1))
    assert dead == dead
    assert dead != identity(Scale(1))
    assert frozen([1, {"a": {2, 3}}, None], identity) == frozen([1, {"a": {3, 2}}, None], identity)
    assert len({frozen(value, identity) for value in (1, 1.0, True, "1", (1,), [1])}) == 6
