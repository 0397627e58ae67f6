"""Random networks from hypothesis: the strategy, the network of a number, and the simplest one with the same fault."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

from hypothesis import HealthCheck, Phase, Verbosity, given, seed, settings
from hypothesis import strategies as st

from .architect import compose
from .choices import Choices
from .composition import Composition


@st.composite
def networks(draw: st.DrawFn, wrong: str | None = None) -> Composition:
    """Networks of any modules of the library, their inputs and the ends of their episodes; see ``architect.compose``.

    Args:
        draw: Given by hypothesis.
        wrong: A kind that is wrong on purpose; every network then has one of it.
    """
    return compose(Choices(draw), wrong)


def draw_network(number: int, wrong: str | None = None) -> Composition:
    """The random network of a number, the same one whenever hypothesis is of the same version."""
    drawn: list[Composition] = []
    _run(drawn.append, number, wrong, (Phase.generate,))
    return drawn[-1]


def simplest(
    number: int, fails: Callable[[Composition], bool], *, wrong: str | None = None, seconds: float = 60.0
) -> Composition:
    """The simplest network with a fault that hypothesis finds in time.

    Args:
        number: Of a random network that has the fault.
        fails: True if another network has it; called once for each.
        wrong: As for ``draw_network``.
        seconds: Processor time after which ``fails`` is not called any more.
    """
    known = {repr(draw_network(number, wrong)): True}
    deadline = time.process_time() + seconds
    found: list[Composition] = []

    def test(network: Composition) -> None:
        name = repr(network)
        if name not in known:
            known[name] = time.process_time() < deadline and fails(network)
        if known[name]:
            found.append(network)
            raise _FaultFoundError

    with contextlib.suppress(_FaultFoundError):
        _run(test, number, wrong, (Phase.generate, Phase.shrink))
    # Hypothesis runs the simplest one once more, last.
    return found[-1]


class _FaultFoundError(Exception):
    """The failure that hypothesis looks for."""


def _run(test: Callable[[Composition], None], number: int, wrong: str | None, phases: tuple[Phase, ...]) -> None:
    """Runs a test on two networks: hypothesis always starts with the simplest one of all; the second is random."""
    options = settings(
        max_examples=2,
        phases=phases,
        # Nothing is kept from run to run, none is refused for its size or time, and nothing is printed.
        database=None,
        deadline=None,
        derandomize=False,
        report_multiple_bugs=False,
        suppress_health_check=list(HealthCheck),  # pyright: ignore[reportArgumentType]
        verbosity=Verbosity.quiet,
    )

    def body(network: Composition) -> None:
        test(network)

    seed(number)(options(given(networks(wrong))(body)))()
