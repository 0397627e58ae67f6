"""The suite that decides whether an engine is correct; installed as ``multippo.conformance``.

* **Level 1**, each engine alone: replay repeats the rollout, at every step and in every environment.
* **Level 2**, engines against each other: same parameters and keys, same numbers, training included.
* **Level 3**, the suite itself: modules that are wrong on purpose must be caught, each by the check meant for it.

Levels 1 and 2 are also held against random networks, which hypothesis draws; ``networks`` is the strategy.

Three ways to run the suite: ``multippo conformance``; ``pytest conformance`` in a checkout, or ``pytest --pyargs
multippo.conformance``; and ``run``, which returns the results. Nothing is loaded before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hypothesis.strategies import SearchStrategy

    from .checks.check import Result
    from .random_networks.composition import Composition

__all__ = ["cli_main", "networks", "run"]


def networks() -> SearchStrategy[Composition]:
    """Strategy of random networks, for checks of one's own.

    A network comes with its inputs: ``network.build()`` makes the module on the active engine, ``network.inputs`` is
    the shape of one environment's input (or a nested dict of shapes), ``network.script`` says when episodes end, and
    ``repr(network)`` is code that makes the network again, in ``multippo.conformance.composition``. All containers,
    layers and graphs occur, nested up to four deep: a layer in three containers or graphs, not counting modules that
    only join another to its place (``multippo.conformance.composition.depth``). Hypothesis makes failing networks
    simpler::

        from hypothesis import given, settings
        from multippo.conformance import networks

        @settings(deadline=None, max_examples=20)
        @given(networks())
        def test_a_carry_has_a_row_for_each_environment(network):
            state = network.build().initialize_state(3)
            ...

    Raises:
        ImportError: If hypothesis is not installed.
    """
    from .random_networks import drawn_networks

    if not drawn_networks.can_draw():
        raise ImportError(drawn_networks.LEFT_OUT)
    from .random_networks import drawing

    return drawing.networks()


def run(
    backends: Sequence[str] | None = None,
    levels: Sequence[int] = (1, 2, 3),
    precisions: Sequence[str] = ("float32", "float64"),
    **options: Any,
) -> list[Result]:
    """Runs the suite; see ``plan.run``."""
    from . import plan

    return plan.run(backends, levels, precisions, **options)


def cli_main(
    backends: Sequence[str] | None = None,
    as_json: bool = False,
    levels: Sequence[int] = (1, 2, 3),
    precisions: Sequence[str] = ("float32", "float64"),
    **networks: int | None,
) -> int:
    """Runs the suite and prints one table, or with ``as_json`` one JSON object.

    Args:
        backends: Engines; None: every one that is installed.
        as_json: True to print JSON and nothing else.
        levels: Some of 1, 2, 3.
        precisions: Some of "float32", "float64".
        **networks: ``networks``, the number of random networks, and ``networks_seed``, the number of the first of them.

    Returns:
        The exit code: 0 if every check passed, 1 if not.

    Raises:
        ValueError: If a backend, a level or a precision is unknown.
        ImportError: If a backend's package is missing, or hypothesis where random networks are asked for.
    """
    from rich.console import Console

    from . import plan, report

    with Console(stderr=True, quiet=as_json).status("") as shown:
        results = plan.run(
            backends,
            levels,
            precisions,
            on_result=lambda result, number, total: shown.update(
                f"{number}/{total} {result.check} of {result.subject} on {result.backend}, {result.precision}"
            ),
            **networks,
        )
    print(report.as_json(results) if as_json else report.as_text(results))
    # Without a single check nothing has been shown, so an empty run fails.
    return 0 if results and all(result.passed for result in results) else 1
