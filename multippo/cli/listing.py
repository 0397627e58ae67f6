"""``multippo backends`` and ``multippo envs``, which list engines and environments."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from typing import Any

from multippo.backends.registry import VARIABLE, describe_backends
from multippo.cli.flags import parse


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
