"""The suite that decides whether an engine is correct; installed as ``multippo.conformance``.

* **Level 1**, each engine alone: replay repeats the rollout, at every step and in every environment.
* **Level 2**, engines against each other: same parameters and keys, same numbers, training included.
* **Level 3**, the suite itself: modules that are wrong on purpose must be caught, each by the check meant for it.

Three ways in: ``multippo conformance``; ``pytest conformance`` in a checkout, or ``pytest --pyargs
multippo.conformance``; and ``run``, which returns the results. Nothing is loaded before one of them is taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .measure import Result

__all__ = ["cli_main", "run"]


def run(
    backends: Sequence[str] | None = None,
    levels: Sequence[int] = (1, 2, 3),
    precisions: Sequence[str] = ("float32", "float64"),
    **options: Any,
) -> list[Result]:
    """Runs the suite; see ``runner.run``."""
    from . import runner

    return runner.run(backends, levels, precisions, **options)


def cli_main(
    backends: Sequence[str] | None = None,
    as_json: bool = False,
    levels: Sequence[int] = (1, 2, 3),
    precisions: Sequence[str] = ("float32", "float64"),
    **networks: int,
) -> int:
    """Runs the suite and prints one table, or with ``as_json`` one JSON object.

    Args:
        backends: Which engines; None: every one that is installed.
        as_json: Print JSON and nothing else.
        levels: Which levels.
        precisions: Which floating-point types.
        **networks: ``networks``, how many random networks, and ``networks_seed``, the number of the first of them.

    Returns:
        The exit code: 0 if every check passed, 1 if not.

    Raises:
        ValueError: If a backend, a level or a precision is unknown.
        ImportError: If a backend's package is missing.
    """
    from . import report, runner

    progress = None if as_json else report.Progress()
    results = runner.run(backends, levels, precisions, on_result=progress, **networks)
    if progress is not None:
        progress.close()
    print(report.as_json(results) if as_json else report.as_text(results))
    return 0 if all(result.passed for result in results) else 1
