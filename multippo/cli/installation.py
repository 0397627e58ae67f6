"""``multippo backends``, ``multippo envs`` and ``multippo conformance``: lists and checks of the installation."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
from collections.abc import Sequence
from typing import Any

from multippo.backends.registry import VARIABLE, describe_backends
from multippo.cli.flags import parse
from multippo.errors import UsageError


@dataclasses.dataclass(frozen=True, kw_only=True)
class _BackendsFlags:
    """Lists the engines, and how to install those that are missing."""

    json: bool = False
    """Print JSON and nothing else."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class _EnvsFlags:
    """Lists the environments that are installed."""

    json: bool = False
    """Print JSON and nothing else."""


def list_backends(argv: Sequence[str]) -> int:
    """Prints a line for each engine; loads none of them."""
    flags = parse("backends", _BackendsFlags, argv)
    rows = describe_backends()
    if flags.json:
        print(json.dumps(rows))
        return 0
    for row in rows:
        print(f"{row['name']:10} {_state(row)}")
    chosen = os.environ.get(VARIABLE)
    print(f"{VARIABLE} is {chosen}." if chosen else f"{VARIABLE} is not set; the first that is installed is used.")
    return 0


def list_environments(argv: Sequence[str]) -> int:
    """Prints the names of environments, one a line."""
    flags = parse("envs", _EnvsFlags, argv)
    from multippo.envs.registry import list_envs

    names = list_envs()
    print(json.dumps(names) if flags.json else "\n".join(names))
    return 0


def _state(row: dict[str, Any]) -> str:
    if not row["available"]:
        return f"not installed: {row['install']}"
    versions = ", ".join(f"{package} {version}" for package, version in row["versions"].items())
    return f"installed  {versions}" + (f" ({row['note']})" if row["note"] else "")


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
