"""The choices that a random thing is made of, each drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

_MOST = 99


class Choices:
    """A source of choices, of which hypothesis can make simpler ones.

    Args:
        draw: The argument that ``hypothesis.strategies.composite`` hands to a function.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def number(self, least: int, most: int) -> int:
        """An integer from ``least`` to ``most``, both included, from 0 to 99; the least is the simplest."""
        # Beyond, hypothesis now and then takes a constant of the code that is loaded: another one in another program.
        if not 0 <= least <= most <= _MOST:
            raise ValueError(f"A choice is a number from 0 to {_MOST}, got one from {least} to {most}.")
        return self._draw(st.integers(least, most))

    def flag(self) -> bool:
        """False, the simpler one, or True."""
        return self._draw(st.booleans())

    def pick(self, options: Sequence[Any]) -> Any:
        """One of some; the first is the simplest."""
        return options[self.number(0, len(options) - 1)]

    def several(self, options: Sequence[str], most: int) -> list[str]:
        """One or more of some, in any order."""
        left = list(options)
        count = self.number(1, min(most, len(left)))
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]

    def part(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """``make(choices, *arguments)``, as a part: hypothesis may put a part within it in its place."""
        return self._draw(_parts(make, arguments))


@st.composite
def _parts(draw: st.DrawFn, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return make(Choices(draw), *arguments)
