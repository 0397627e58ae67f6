"""What a call of a module may return beside its output: a loss and metrics, one number for each environment."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Generator, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from multippo.arguments import describe
from multippo.networks.locating import is_the_librarys
from multippo.networks.types import StatefulModuleOutput

__all__ = [
    "ACTIVATION_KEY",
    "Draw",
    "examined",
    "is_constant",
    "is_engine_array",
    "note_draw",
    "per_environment",
    "returned",
    "wrong_scalars",
]

ACTIVATION_KEY = "activations"
"""Entry of a module's metrics that holds its activations."""


class Draw(NamedTuple):
    """An action that a sampler has put out.

    Attributes:
        sampler: Who.
        action: ``[B, *action shape]``.
        num_choices: See ``ActionSampler.num_choices``.
    """

    sampler: Any
    action: Any
    num_choices: Any


_examined: tuple[frozenset[int], int, list[Draw]] | None = None
"""Identities of the modules whose outputs are looked at now, the number of environments, and what has been drawn; see
``examined``."""

_one_at_a_time = threading.RLock()


def is_constant(value: Any) -> bool:
    """Whether it is a number of Python or NumPy, which stands for the same number in every environment."""
    return isinstance(value, int | float | np.integer | np.floating | np.bool_)


def is_engine_array(engine: Any, leaf: Any) -> bool:
    """Whether it is an array of the engine, or stands for one while a function is compiled."""
    if isinstance(leaf, type(engine.zeros((1,)))):
        return True
    # While it is compiled, an array is of another type.
    return hasattr(leaf, "shape") and hasattr(leaf, "dtype") and not isinstance(leaf, np.ndarray | np.generic)


def wrong_scalars(engine: Any, out: StatefulModuleOutput, batch: int) -> str | None:
    """What is wrong with the loss and the metrics of a call, in words; None if nothing is.

    Args:
        engine: The module's.
        out: What the call returned.
        batch: B, how many environments there were.
    """
    loss = out.regularization_loss
    # Of another shape it would broadcast against the other losses: [B, 1] and [B] to [B, B].
    if not is_constant(loss) and not (is_engine_array(engine, loss) and tuple(loss.shape) in ((), (batch,))):
        expected = f"expected an array [B], here ({batch},), or a number."
        return f"regularization_loss is {describe(loss)}; {expected}{_mend(loss)}"
    if not isinstance(out.metrics, Mapping):
        return f"metrics is {describe(out.metrics)}; expected a dict of arrays."
    names = [name for name, _ in _entries(out.metrics)]
    # A slash in a name means the same there as a dict in a dict.
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        return f"Two metrics would be logged as {twice!r}; give them different names."
    for name, leaf in _entries(out.metrics):
        if is_constant(leaf):
            continue
        if not is_engine_array(engine, leaf):
            return f"The metric {name!r} is {describe(leaf)}; expected an array of the engine, or a number."
        if tuple(leaf.shape) not in ((), (batch,)):
            expected = f"expected a scalar, or an array [B], here ({batch},)."
            return f"The metric {name!r} is {describe(leaf)}; {expected}{_mend(leaf)}"
    return None


def _mend(value: Any) -> str:
    further = len(getattr(value, "shape", ())) > 1
    return " Sum or average over its other axes, such as xp.sum(..., axis=-1)." if further else ""


def _entries(metrics: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Metrics by the name they are logged under, but for what a recording module says of its units."""
    for name, value in metrics.items():
        if isinstance(value, Mapping) and name != ACTIVATION_KEY:
            yield from _entries(value, f"{prefix}{name}/")
        elif name != ACTIVATION_KEY:
            yield f"{prefix}{name}", value


def returned(self: Any, out: Any) -> StatefulModuleOutput:
    """What a call or ``unroll`` of the module ``self`` has returned, if it can be taken for an output.

    Its shapes are looked at inside ``examined`` alone, where the number of rows is known. The argument is called
    ``self`` since that is by what ``locate`` finds the module that an error is about.

    Raises:
        TypeError: If it is no StatefulModuleOutput, its loss no array or number, or its metrics are no dict.
        ValueError: If its loss or a metric is not one number for each environment.
    """
    kind = type(self).__name__
    if not isinstance(out, StatefulModuleOutput):
        raise TypeError(
            f"{kind} returned {describe(out)}; expected a StatefulModuleOutput: "
            "return multippo.StatefulModuleOutput(next_state, output)."
        )
    if not isinstance(out.metrics, Mapping):
        raise TypeError(f"{kind} returned metrics that are {describe(out.metrics)}; expected a dict of arrays.")
    loss = out.regularization_loss
    if not (is_constant(loss) or hasattr(loss, "shape")):
        raise TypeError(
            f"{kind} returned a regularization_loss that is {describe(loss)}; expected an array [B], or a number, such "
            "as 0.0 for none."
        )
    looked_at = _examined  # once, since another thread may change it
    if looked_at is not None and id(self) in looked_at[0]:
        wrong = wrong_scalars(self.engine, out, looked_at[1])
        if wrong:
            raise ValueError(wrong)
    return out


def note_draw(sampler: Any, action: Any, parameters: Any) -> None:
    """Adds to the list of ``examined``; elsewhere it does nothing.

    Args:
        sampler: An ``ActionSampler``.
        action: What it puts out.
        parameters: Of its distribution; None where they say nothing of how many choices there are.
    """
    looked_at = _examined  # once, since another thread may change it
    if looked_at is not None:
        num_choices = (
            None if parameters is None or not is_the_librarys(type(sampler)) else sampler.num_choices(parameters)
        )
        looked_at[2].append(Draw(sampler, action, num_choices))


@contextlib.contextmanager
def examined(network: Any, batch: int) -> Generator[list[Draw]]:
    """Inside it, a call of the network refuses losses and metrics that are not one number for each environment.

    What it gives is a list to which every sampler in the network adds what it draws.

    Looked at are the network and the children of containers, which are given every environment's row; what a module of
    the user's makes of the modules inside it, and of how many rows, is its own affair.

    Args:
        network: The outermost module, which is called with ``batch`` rows.
        batch: B.
    """
    global _examined
    # One thread at a time: what it sets is read in every call, and nothing there may be what torch can't compile.
    with _one_at_a_time:
        draws: list[Draw] = []
        before, _examined = _examined, (_reached(network), batch, draws)
        try:
            yield draws
        finally:
            _examined = before


def _reached(network: Any) -> frozenset[int]:
    """Identities of the modules that containers alone call; those of the user's, subclasses too, call as they like."""
    from multippo.networks.parent import Parent

    seen = {(id(network), False)}
    ahead = [(network, False)]
    while ahead:
        module, within = ahead.pop()
        if isinstance(module, Parent) and is_the_librarys(type(module)):
            children = list(module.children_by_key.values())
        else:
            children, within = [child for _, child in module.engine.children(module) if hasattr(child, "engine")], True
        for entry in ((child, within) for child in children):
            if (id(entry[0]), within) not in seen:
                seen.add((id(entry[0]), within))
                ahead.append(entry)
    return frozenset(one for one, within in seen if not within and (one, True) not in seen)


def per_environment(what: str, value: Any, like: Any) -> Any:
    """A loss or a metric as an array like ``like``; a scalar is every environment's.

    Args:
        what: What an error calls it.
        value: A number, a scalar array, or an array of the shape of ``like``.
        like: Zeros ``[B]`` or ``[T, B]``.

    Raises:
        ValueError: If it is of another shape, which would broadcast.
    """
    if is_constant(value):
        return like + float(value)
    if tuple(value.shape) not in ((), tuple(like.shape)):
        raise ValueError(
            f"{what} is {describe(value)}; expected one number for each environment, of shape {tuple(like.shape)}, "
            "or a scalar."
        )
    return value + like
