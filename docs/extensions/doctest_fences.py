"""Makes Markdown of what docstrings hold for Python's sake: examples with prompts become blocks of code."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator
from typing import Any

import griffe


class DoctestFences(griffe.Extension):
    """Rewrites every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Rewrites one object's docstring."""
        del kwargs
        if obj.docstring is not None:
            obj.docstring.value = "\n".join(_fenced(obj.docstring.value.splitlines()))


def _fenced(lines: Iterable[str]) -> Iterator[str]:
    """An example reaches from its first prompt to the next blank line, as for doctest."""
    for blank, group in itertools.groupby(lines, key=lambda line: not line.strip()):
        block = list(group)
        start = next((i for i, line in enumerate(block) if line.lstrip().startswith(">>> ")), len(block))
        if blank or start == len(block):
            # A paragraph before an indented block ends in two colons.
            yield from (line[:-1] if line.endswith("::") else line for line in block)
        else:
            margin = block[start][: block[start].index(">")]
            yield from block[:start]
            yield from ["", f"{margin}```pycon", *block[start:], f"{margin}```"]
