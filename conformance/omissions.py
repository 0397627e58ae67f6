"""What is left out, on which engine, and why: nothing is left out in silence."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable

from .modules import MODULES
from .network_specimens import NETWORKS
from .random_networks import LEFT_OUT, can_draw
from .specimens import Specimen

__all__ = ["left_out", "why_not"]


def why_not(specimen: Specimen, backend: str) -> str | None:
    """Why a specimen is not run on an engine; None where it is."""
    missing = [package for package in specimen.requires if importlib.util.find_spec(package) is None]
    if missing:
        return f"needs {' and '.join(missing)}, not installed"
    if specimen.only_on and backend not in specimen.only_on:
        return f"is made of modules of the frameworks of {' and '.join(specimen.only_on)}"
    return None


def left_out(backends: Iterable[str]) -> list[str]:
    """A line for each subject that is not run on each of some engines."""
    lines = [
        f"Left out on {backend}: {specimen.name} ({reason})."
        for backend in backends
        for specimen in (*MODULES, *NETWORKS)
        if (reason := why_not(specimen, backend)) is not None
    ]
    return lines if can_draw() else [*lines, LEFT_OUT]
