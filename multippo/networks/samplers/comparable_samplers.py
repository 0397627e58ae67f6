"""Samplers that show their distribution, so that a student can be compared with its teacher.

``measured`` makes a copy of a network that shares its parameters and computes the same, and whose samplers

* emit a ``Lesson`` where they emitted a sample: the sample, and the parameters of the distribution it is from;
* in replay take a teacher's ``Lesson``, and evaluate the teacher's sample and distribution under their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

from multippo.networks.samplers.base import ActionSampler
from multippo.networks.types import StatefulModuleOutput


class Lesson(NamedTuple):
    """A teacher's sample and the distribution it is from.

    Attributes:
        raw_action: The sample before squashing; of a deterministic teacher, its distribution's mode.
        distribution: The distribution's parameters, under the name of the sampler's class.
    """

    raw_action: Any
    distribution: dict[str, Any]

    @property
    def sampler(self) -> str:
        """The name of the sampler's class."""
        return next(iter(self.distribution))


def is_lesson(node: Any) -> bool:
    """True if a node of a tree is a ``Lesson``."""
    return isinstance(node, Lesson)


def measured(network: Any, loss: str | None) -> Any:
    """A copy of a network with samplers that give and take lessons; shares parameters and statistics.

    Given a lesson, a sampler with the distribution p' reports KL(p || p') to the teacher's p as its ``entropy``, and as
    its ``log_likelihood`` with the loss "nll" that of the teacher's sample, log p'(u); with "kl", -KL(p || p').

    Args:
        network: A StatefulModule.
        loss: "nll" or "kl"; None for a copy whose samplers stay what they are.
    """
    engine, copies = network.engine, dict[int, Any]()

    def copy(module: Any) -> Any:
        if id(module) not in copies:  # a module that is in two places stays one
            neutral: Any = None
            if loss is not None and isinstance(module, ActionSampler):
                neutral = _measuring(type(module).__mro__[1], loss)
            copies[id(module)] = engine.copy_module(module, copy, neutral)
        return copies[id(module)]

    return copy(network)


@functools.cache
def _measuring(neutral: Any, loss: str) -> type:
    """A subclass of a sampler's class that gives and takes lessons."""

    def call(self: Any, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return _measure(self, x, rollout_extras, lambda raw: neutral.__call__(self, state, x, raw))

    def unroll(self: Any, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return _measure(self, xs, rollout_extras, lambda raw: neutral.unroll(self, state, xs, done, raw))

    def _measure(self: Any, x: Any, extras: Any, run: Callable[[Any], StatefulModuleOutput]) -> StatefulModuleOutput:
        own = self.distribution(x)
        if extras is None:
            out = run(None)
            return out._replace(rollout_extras=Lesson(out.rollout_extras, {neutral.__name__: own}))
        if not is_lesson(extras) or neutral.__name__ not in extras.distribution:
            received = f"that of a {extras.sampler}" if is_lesson(extras) else "a sample without its distribution"
            raise ValueError(
                f"The student's {neutral.__name__} needs the lesson of a teacher's {neutral.__name__}, to compare "
                f"distributions; got {received}. Let target_fn put the teacher's entry in its place, or use "
                "loss='nll'."
            )
        out = run(extras.raw_action)
        divergence = self.kl_divergence(extras.distribution[neutral.__name__], own)
        judged = {**out.output, "entropy": divergence}
        if loss == "kl":
            judged["log_likelihood"] = -divergence
        return out._replace(output=judged)

    names = {"__module__": neutral.__module__, "__qualname__": neutral.__qualname__, "__doc__": neutral.__doc__}
    return type(neutral)(neutral.__name__, (neutral,), {**names, "__call__": call, "unroll": unroll})
