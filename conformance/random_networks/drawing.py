"""Random networks from hypothesis: the strategy, the network of a number, and the simplest one with a fault."""

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
    """Draws networks of any modules of the library, with inputs and ends of episodes; see ``architect.compose``.

    Args:
        draw: Argument from hypothesis.
        wrong: A kind that is wrong on purpose; every network then has one such module.
    """
    return compose(Choices(draw), wrong)


def draw_network(number: int, wrong: str | None = None) -> Composition:
    """Draws the random network of a number, the same one for the same version of hypothesis."""
    drawn: list[Composition] = []
    _run(drawn.append, number, wrong, (Phase.generate,))
    return drawn[-1]


def simplest(
    number: int, fails: Callable[[Composition], bool], *, wrong: str | None = None, seconds: float = 60.0
) -> Composition:
    """Simplest network with a fault that hypothesis finds in time.

    Args:
        number: Number of a random network that has the fault.
        fails: True if a network has the fault; called once for each.
        wrong: A kind that is wrong on purpose, as for ``draw_network``.
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
    """Failure that hypothesis looks for."""


def _run(test: Callable[[Composition], None], number: int, wrong: str | None, phases: tuple[Phase, ...]) -> None:
    """Runs a test on two networks: hypothesis always starts with the simplest one of all; the second is random."""
    options = settings(
        max_examples=2,
        phases=phases,
        # Hypothesis keeps nothing from run to run, refuses no network for its size or time, and prints nothing.
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
