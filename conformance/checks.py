"""What a check is: a name, and a function from evidence to the largest deviation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from .measure import Deviation, Result

__all__ = ["TOLERANCE", "Check", "perform"]

E = TypeVar("E")

TOLERANCE = {"float32": 1e-5, "float64": 1e-10}
"""What replay may be off by: the same arithmetic in another order."""


@dataclasses.dataclass(frozen=True)
class Check(Generic[E]):
    """One property of one kind of evidence.

    Attributes:
        name: What reports call it.
        measure: How far the evidence is from having the property.
        needs: Attributes of the specimen that must hold for the check to make sense.
        trains: Whether it needs an engine that trains.
        precisions: In which floating-point types it is made.
        exact: Whether nothing is allowed, not even a rounding error.
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
        """Whether a specimen has what the check is about."""
        return all(getattr(specimen, need) for need in self.needs)

    def allowed(self, precision: str) -> float:
        """The largest deviation allowed."""
        return 0.0 if self.exact else self.tolerance[precision]


def perform(
    check: Check[Any], collect: Callable[[], tuple[Any, ...]], *, level: int, subject: str, backend: str, precision: str
) -> Result:
    """Runs a check; an exception is a failure that says what happened.

    Args:
        check: Which.
        collect: Returns the evidence, one piece or two.
        level: For the result.
        subject: For the result.
        backend: For the result.
        precision: For the result.
    """
    allowed, crashed = check.allowed(precision), False
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
