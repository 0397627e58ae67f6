"""``multippo conformance``: the suite that decides whether an engine is correct."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Sequence

from multippo.cli.flags import parse
from multippo.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class _Flags:
    """Checks that replay repeats rollouts, and that engines agree."""

    backend: tuple[str, ...] = ()
    """Engine to check; may be given several times. None: all installed."""

    level: tuple[int, ...] = (1, 2, 3)
    """1: each engine alone, 2: against each other, 3: the suite itself."""

    precision: tuple[str, ...] = ("float32", "float64")
    """Kinds of floating-point numbers."""

    networks: int | None = None
    """Number of random networks to check; they need hypothesis. None: a few, with every kind of module together."""

    networks_seed: int | None = None
    """Number of the first random network. None: 0, or those few."""

    json: bool = False
    """Print one JSON object and nothing else."""


def run(argv: Sequence[str]) -> int:
    """Runs the command; the exit code is 1 if a check fails.

    Raises:
        UsageError: If the suite is not installed.
    """
    flags = parse("conformance", _Flags, argv)
    try:
        suite = importlib.import_module("multippo.conformance")
    except ModuleNotFoundError as error:
        if error.name != "multippo.conformance":
            raise
        raise UsageError(
            "the conformance suite is not installed: install multippo with pip, or `pip install -e .`."
        ) from error
    numbers = {"networks": flags.networks, "networks_seed": flags.networks_seed}
    return suite.cli_main(
        list(flags.backend) or None,
        as_json=flags.json,
        levels=flags.level,
        precisions=flags.precision,
        **{name: value for name, value in numbers.items() if value is not None},
    )
