"""Running the suite in a program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from .measure import Result
from .plan import LEVELS, PRECISIONS, Evidence, make_plan

__all__ = ["run"]

OnResult = Callable[[Result, int, int], None]
"""``on_result(result, number, total)``."""


def run(
    backends: Sequence[str] | None = None,
    levels: Sequence[int] = LEVELS,
    precisions: Sequence[str] = PRECISIONS,
    *,
    networks: int | None = None,
    networks_seed: int | None = None,
    on_result: OnResult | None = None,
) -> list[Result]:
    """Makes every check.

    Args:
        backends: Engines under test; None: every one that is installed.
        levels: Of 1, 2, 3.
        precisions: Of "float32", "float64".
        networks: How many random networks; None: a few, or none where hypothesis is not installed.
        networks_seed: Number of the first of them; None: 0, or the few of ``random_networks.EVERY_RUN``.
        on_result: Called after each check.

    Returns:
        One result for each check, in the order they were made.

    Raises:
        ValueError: If a backend, a level or a precision is unknown.
        ImportError: If a backend's package is missing, or hypothesis where random networks are asked for.
    """
    plan, evidence, results = (
        make_plan(backends, levels, precisions, networks, networks_seed),
        Evidence(),
        list[Result](),
    )
    for number, case in enumerate(plan, start=1):
        results.append(case.run(evidence))
        if on_result is not None:
            on_result(results[-1], number, len(plan))
    return results
