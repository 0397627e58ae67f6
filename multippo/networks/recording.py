"""Copies of a network that share its parameters and compute the same, but show more.

``with_recording`` makes a copy that has every layer's output in its metrics; ``extract_activations`` reads the outputs
from the metrics. The network itself is left as it is.

>>> import numpy as np
>>> import multippo as mp
>>> net = mp.Sequential([mp.Dense(3, 4, mp.Rngs(0), "tanh"), mp.Dense(4, 2, mp.Rngs(1))])
>>> recordable = mp.with_recording(net)
>>> out = recordable(recordable.initialize_state(5), net.engine.asarray(np.ones((5, 3), np.float32)))
>>> {layer: tuple(array.shape) for layer, array in mp.extract_activations(out.metrics).items()}
{0: (5, 4), 1: (5, 2)}

A module of your own is recorded by its output, as every layer is. A module whose inner units are not modules records
them itself: its constructor sets ``self.record_activations = False``, and where that is True a call returns metrics
with a tree of arrays ``[B, ...]`` under ``ACTIVATION_KEY``. ``with_recording`` sets the attribute to True on the copy.

``measured`` makes a copy by which a student is compared with its teacher, and whose samplers

* emit a ``Lesson`` where they emitted a sample: the sample, and the parameters of the distribution it is from;
* in replay take a teacher's ``Lesson``, and evaluate the teacher's sample and distribution under their own.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from multippo.networks.containers import Parent
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.outputs import ACTIVATION_KEY
from multippo.networks.samplers.base import ActionSampler
from multippo.networks.types import StatefulModule, StatefulModuleOutput

__all__ = ["ACTIVATION_KEY", "Recorder", "extract_activations", "with_recording"]

_FLAG = "record_activations"
_OWN = "output"

Run = Callable[[Any], StatefulModuleOutput]
Through = Callable[[Any, Any, Any, Run], StatefulModuleOutput]


def with_recording(net: Any) -> Any:
    """A copy of a network that records the output of every layer in its metrics.

    The copy is of the same classes, with the same carry, snapshots and output, and *shares* the network's parameters
    and statistics: it follows a network in training, and writing to one writes to both. Modes are not shared:
    ``with_recording(net).eval()`` leaves ``net`` sampling. A network that records already is copied as it is.

    A ``PopulationGraph`` records the outputs of its populations, and not those of the layers inside them.

    Args:
        net: A StatefulModule. Containers hand on their children's records; any other module is recorded as a whole,
            with the children whose metrics it hands on.

    Raises:
        TypeError: If ``net`` is not a StatefulModule.
        ValueError: If a child is called "activations".
    """
    refuse_other_module("with_recording", net)
    engine = net.engine

    def make(module: Any, copy: Callable[[Any], Any]) -> Any:
        if not isinstance(module, StatefulModule):
            return engine.copy_module(module, copy)
        if _FLAG in vars(module):
            copied = engine.copy_module(module, lambda child: child)
            setattr(copied, _FLAG, True)
            return copied
        if not isinstance(module, Parent):
            return engine.copy_module(module, copy, passing_through(module, _recorded))
        if ACTIVATION_KEY in module.keys:
            raise ValueError(
                f"with_recording got a {type(module).__name__} with a child called {ACTIVATION_KEY!r}, which would be "
                "taken for a record itself; rename it."
            )
        return engine.copy_module(module, copy)

    return copied_with(net, make)


class _RecorderMeta(type):
    def __call__(cls, module: Any) -> Any:
        refuse_other_module("Recorder", module)
        return module.engine.copy_module(module, lambda child: child, passing_through(module, _recorded))

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, StatefulModule) and passing_through(instance, _recorded) is None


class Recorder(metaclass=_RecorderMeta):
    """A copy of one module that records its output, by its own class, and shares its parameters and statistics.

    ``isinstance(module, Recorder)`` holds of such copies, and of the layers that ``with_recording`` makes of others.

    Raises:
        TypeError: If ``module`` is not a StatefulModule.
    """

    if TYPE_CHECKING:

        def __init__(self, module: Any) -> None: ...


def _recorded(module: Any, x: Any, extras: Any, run: Run) -> StatefulModuleOutput:
    out = run(extras)
    return out._replace(metrics={**out.metrics, ACTIVATION_KEY: out.output})


def extract_activations(metrics: Any) -> Any:
    """The activations in the metrics of a recording network, all else left out.

    Args:
        metrics: ``out.metrics`` of a call (``[B, ...]``) or an ``unroll`` (``[T, B, ...]``).

    Returns:
        A nested dict with the keys of the network's carry: positions of a ``Sequential`` as integers, names
        elsewhere (names that are all digits are taken for positions, too); at each layer its output. A module that is
        not a container and hands on its children's outputs has its own under ``"output"`` beside them. None if
        nothing was recorded.
    """
    if not isinstance(metrics, Mapping):
        return None
    below = {key: extract_activations(value) for key, value in metrics.items() if key != ACTIVATION_KEY}
    # Metrics are named by strings, whatever the container's keys are.
    positions = all(str(key).isdigit() for key in below)
    found = {int(key) if positions else key: value for key, value in below.items() if value is not None}
    if ACTIVATION_KEY not in metrics:
        return found or None
    return {_OWN: metrics[ACTIVATION_KEY], **found} if found else metrics[ACTIVATION_KEY]


class Lesson(NamedTuple):
    """A teacher's sample and the distribution it is from.

    Attributes:
        raw_action: Sample before squashing; the distribution's mode, if the teacher is deterministic.
        distribution: Parameters of the distribution, under the name of the sampler's class.
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
    """A copy of a network with samplers that give and take lessons, and with shared parameters and statistics.

    Given a lesson, a sampler with the distribution p' reports KL(p || p') to the teacher's p as its ``entropy``. Its
    ``log_likelihood`` is that of the teacher's sample, log p'(u), with the loss "nll", and -KL(p || p') with "kl".

    Args:
        network: A StatefulModule.
        loss: "nll" or "kl"; None for a copy with unchanged samplers.
    """
    through = {"nll": _compared, "kl": _imitating, None: None}[loss]

    def make(module: Any, copy: Callable[[Any], Any]) -> Any:
        kind = passing_through(module, through) if through and isinstance(module, ActionSampler) else None
        return network.engine.copy_module(module, copy, kind)

    return copied_with(network, make)


def _compared(sampler: Any, x: Any, extras: Any, run: Run) -> StatefulModuleOutput:
    own, kind = sampler.distribution(x), type(sampler).__mro__[1].__name__
    if extras is None:
        out = run(None)
        return out._replace(rollout_extras=Lesson(out.rollout_extras, {kind: own}))
    if not is_lesson(extras) or kind not in extras.distribution:
        received = f"that of a {extras.sampler}" if is_lesson(extras) else "a sample without its distribution"
        raise ValueError(
            f"The student's {kind} needs the lesson of a teacher's {kind}, to compare distributions; got {received}. "
            "Let target_fn put the teacher's entry in its place, or use loss='nll'."
        )
    out = run(extras.raw_action)
    divergence = sampler.kl_divergence(extras.distribution[kind], own)
    metrics = {**out.metrics, "entropy": out.output["entropy"]}
    return out._replace(output={**out.output, "entropy": divergence}, metrics=metrics)


def _imitating(sampler: Any, x: Any, extras: Any, run: Run) -> StatefulModuleOutput:
    out = _compared(sampler, x, extras, run)
    if extras is None:
        return out
    return out._replace(output={**out.output, "log_likelihood": -out.output["entropy"]})


def copied_with(network: Any, make: Callable[[Any, Callable[[Any], Any]], Any]) -> Any:
    """A copy of a network, module by module.

    Args:
        network: A StatefulModule.
        make: Function of a module, native ones included, and of the function that copies its children; returns the
            copy.
    """
    copies: dict[int, Any] = {}

    def copy(module: Any) -> Any:
        if id(module) not in copies:  # a module that is in two places stays one
            copies[id(module)] = make(module, copy)
        return copies[id(module)]

    return copy(network)


def passing_through(module: Any, through: Through) -> type | None:
    """A subclass of a module's class, of the same name, whose calls pass through a function; None if they do already.

    Args:
        module: A StatefulModule.
        through: Function of the module, its input, snapshots and a function of snapshots that runs it, to an output.
    """
    neutral = type(module).__mro__[1]
    return None if neutral.__dict__.get("_through") is through else _subclass(neutral, through)


@functools.cache
def _subclass(neutral: Any, through: Through) -> type:
    def call(self: Any, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return through(self, x, rollout_extras, lambda extras: neutral.__call__(self, state, x, extras))

    def unroll(self: Any, state: Any, xs: Any, done: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return through(self, xs, rollout_extras, lambda extras: neutral.unroll(self, state, xs, done, extras))

    names = {"__module__": neutral.__module__, "__qualname__": neutral.__qualname__, "__doc__": neutral.__doc__}
    members = {**names, "__call__": call, "unroll": unroll, "_through": through}
    return type(neutral)(neutral.__name__, (neutral,), members)
