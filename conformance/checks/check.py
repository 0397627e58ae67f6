"""Checks: a name, and a function from evidence to the largest deviation; and their results."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from ..evidence.deviations import Deviation

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""Deviation allowed in replay, which does the same arithmetic in another order."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Result:
    """Result of one check of one subject.

    Attributes:
        level: 1, 2 or 3.
        check: Name of the check, such as ``replay/log_likelihood``.
        subject: Name of the network or module.
        backend: The engine; ``torch against jax`` at level 2.
        precision: "float32" or "float64".
        worst: The largest deviation found.
        tolerance: The largest one allowed.
        where: Step and environment, or leaf, of the largest deviation.
        passed: True if the check held.
        detail: The mistake, in words.
        crashed: True if the check ended in an exception.
    """

    level: int
    check: str
    subject: str
    backend: str
    precision: str
    worst: float
    tolerance: float
    where: str
    passed: bool
    detail: str = ""
    crashed: bool = False


@dataclasses.dataclass(frozen=True)
class Check:
    """Check of one property of one kind of evidence.

    Attributes:
        name: Name in reports.
        measure: Function from the evidence to its distance from having the property.
        needs: Attributes of the specimen that must hold for the check to make sense.
        trains: True if the check needs an engine that trains.
        precisions: Floating-point types in which the check is made.
        exact: True if not even a rounding error is allowed.
        tolerance: Largest deviation allowed, by precision.
    """

    name: str
    measure: Callable[..., Deviation]
    needs: tuple[str, ...] = ()
    trains: bool = False
    precisions: tuple[str, ...] = ("float32", "float64")
    exact: bool = False
    tolerance: dict[str, float] = dataclasses.field(default_factory=lambda: TOLERANCE)

    def applies(self, specimen: Any) -> bool:
        """True if a specimen has the attributes that the check needs."""
        return all(getattr(specimen, need) for need in self.needs)


def perform(
    check: Check, collect: Callable[[], tuple[Any, ...]], *, level: int, subject: str, backend: str, precision: str
) -> Result:
    """Runs a check; an exception becomes a failure with its message.

    Args:
        check: The check.
        collect: Function that returns the evidence, one piece or two.
        level: 1, 2 or 3.
        subject: Name of the specimen.
        backend: The engine, or ``torch against jax``.
        precision: "float32" or "float64".
    """
    allowed, crashed = 0.0 if check.exact else check.tolerance[precision], False
    try:
        found = check.measure(*collect())
    except Exception as error:
        first_line = (str(error).strip().splitlines() or [""])[0]
        found, crashed = Deviation(float("inf"), "", f"{type(error).__name__}: {first_line}"), True
    return Result(
        level=level,
        check=check.name,
        subject=subject,
        backend=backend,
        precision=precision,
        worst=found.worst,
        tolerance=allowed,
        where=found.where,
        passed=found.worst <= allowed,
        detail=found.detail,
        crashed=crashed,
    )
