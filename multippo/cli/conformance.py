"""``multippo conformance``: the suite that decides whether an engine is correct."""

from __future__ import annotations

import importlib
from collections.abc import Sequence

from multippo.cli.errors import UsageError
from multippo.cli.flags import parse
from multippo.cli.options import Option

__all__ = ["run"]

_OPTIONS = (
    Option(
        "backend", tuple[str, ...], (), "Engine to check; may be given several times. None: all installed.", "suite"
    ),
    Option(
        "level",
        tuple[int, ...],
        (1, 2, 3),
        "1: each engine alone, 2: against each other, 3: the suite itself.",
        "suite",
    ),
    Option("precision", tuple[str, ...], ("float32", "float64"), "Kinds of floating-point numbers.", "suite"),
    Option(
        "networks",
        int | None,
        None,
        "How many random networks are checked; they need hypothesis. None: a few, with every kind of module together.",
        "suite",
    ),
    Option("networks_seed", int | None, None, "Number of the first random network. None: 0, or those few.", "suite"),
    Option("json", bool, False, "Print one JSON object and nothing else.", "suite"),
)


def run(argv: Sequence[str]) -> int:
    """The command; exit code 1 if a check fails.

    Raises:
        UsageError: If the suite is not installed.
    """
    given = parse("conformance", "Checks that replay repeats rollouts, and that engines agree.", _OPTIONS, argv)
    try:
        suite = importlib.import_module("multippo.conformance")
    except ModuleNotFoundError as error:
        if error.name != "multippo.conformance":
            raise
        raise UsageError(
            "the conformance suite is not installed: install multippo with pip, or `pip install -e .`."
        ) from error
    return suite.cli_main(
        list(given["backend"]) if given.get("backend") else None,
        as_json=given.get("json", False),
        levels=given.get("level", (1, 2, 3)),
        precisions=given.get("precision", ("float32", "float64")),
        **{name: given[name] for name in ("networks", "networks_seed") if name in given},
    )
