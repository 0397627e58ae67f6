"""The choices behind a random network, each drawn by hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

_MOST = 99


class Choices:
    """Source of choices, which hypothesis can make simpler.

    Args:
        draw: The argument that ``hypothesis.strategies.composite`` hands to a function.
    """

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def number(self, least: int, most: int) -> int:
        """Integer from ``least`` to ``most``, both included, in 0 to 99; the least is the simplest."""
        # Beyond 99 hypothesis may take a constant of the code that is loaded, which differs between programs.
        if not 0 <= least <= most <= _MOST:
            raise ValueError(f"A choice is a number from 0 to {_MOST}, got one from {least} to {most}.")
        return self._draw(st.integers(least, most))

    def flag(self) -> bool:
        """False, the simpler one, or True."""
        return self._draw(st.booleans())

    def pick(self, options: Sequence[Any]) -> Any:
        """Chooses one item; the first is the simplest."""
        return options[self.number(0, len(options) - 1)]

    def several(self, options: Sequence[str], most: int) -> list[str]:
        """Chooses one or more items, in any order."""
        left = list(options)
        count = self.number(1, min(most, len(left)))
        return [left.pop(self.number(0, len(left) - 1)) for _ in range(count)]

    def part(self, make: Callable[..., Any], *arguments: Any) -> Any:
        """Result of ``make(choices, *arguments)``, as a part, which hypothesis may replace by a part within."""
        return self._draw(_parts(make, arguments))


@st.composite
def _parts(draw: st.DrawFn, make: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
    return make(Choices(draw), *arguments)
