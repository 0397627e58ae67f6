"""Networks as plain data: nested tuples that print, compare, and build the same network on any engine.

A description is a tuple of a kind and its arguments, such as ``("Sequential", ("Dense", 3, 4, None), ("Lift",))``;
``KINDS`` lists them. Named children are pairs, ``("Map", ("a", ("Flattener",)), ("b", ("LayerNorm", 3)))``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import multippo as mp
from multippo.backends.registry import active_engine
from multippo.random import host

from ..specimens import mutant_modules
from ..specimens.specimen import ModuleSpecimen, normal_inputs

Description = tuple[Any, ...]
"""A kind, and its arguments: numbers, names, shapes, and descriptions of children."""


@dataclasses.dataclass(frozen=True)
class Composition:
    """A network, its inputs, and the ends of its episodes. The ``repr`` is code that makes the composition again.

    Attributes:
        network: The description.
        inputs: Shape of one environment's input, or a (nested) dict of shapes.
        script: One string for each environment, one letter for each step: ``"T"`` where an episode ends, ``"."``
            elsewhere.
        seed: Seed of the inputs, and of the numbers in every array of the network.
    """

    network: Description
    inputs: Any
    script: tuple[str, ...]
    seed: int = 0

    def build(self) -> mp.StatefulModule:
        """Builds the network on the active engine."""
        return build(self.network)

    def specimen(self, name: str = "", *, differentiated: bool = True) -> ModuleSpecimen:
        """Subject of the checks of modules."""
        kinds = {kind for kind, *_ in parts(self.network)}
        rows = (len(self.script[0]), len(self.script))
        sample = normal_inputs(self.inputs, rows=rows)
        return ModuleSpecimen(
            name or repr(self),
            self.build,
            lambda key: sample(host.fold_in(key, self.seed)),
            carries=any(_carries(part) for part in parts(self.network)),
            emits=bool(kinds & _EMITTING),
            learns_statistics="Normalizer" in kinds,
            differentiated=differentiated and any(_trains(part) for part in parts(self.network)),
            script=self.script,
            seed=self.seed,
        )


def build(description: Description, rngs: mp.Rngs | None = None) -> Any:
    """Builds the module of a description on the active engine.

    Raises:
        ValueError: If a kind is unknown.
    """
    kind, *arguments = description
    if kind not in KINDS:
        raise ValueError(f"{kind!r} describes no module; expected one of {sorted(KINDS)}.")
    return KINDS[kind](mp.Rngs(0) if rngs is None else rngs, *arguments)


def parts(description: Description) -> Iterator[Description]:
    """Yields a description, and those of all modules inside."""
    if _is_module(description):
        yield description
    for item in description:
        if isinstance(item, tuple):
            yield from parts(item)


def depth(description: Description) -> int:
    """Levels of nesting: 1 for a layer; one more than the deepest child's for a container or a graph.

    A module that only joins another to its place is not a level of its own, and has the depth of the other:

    * a ``Sequential`` of two that has a ``Dense`` before a sampler or a bottleneck, a ``Flattener`` before a graph, or
      behind any module a ``Flattener`` of everything or a ``Dense`` without activation;
    * the ``Parallel`` of one that a ``Merge`` has around each of its children to name the output.
    """
    if not _is_module(description):
        return max((depth(item) for item in description if isinstance(item, tuple)), default=0)
    inner = _joined(description)
    if inner is not None:
        return depth(inner)
    kind, *items = description
    if kind == "Merge":
        items = [child[1] if child[0] == "Parallel" and len(child) == 2 else child for _, child in items]
    return 1 + max((depth(item) for item in items if isinstance(item, tuple)), default=0)


def _is_module(item: Description) -> bool:
    return bool(item) and isinstance(item[0], str) and item[0] in KINDS


def _joined(description: Description) -> Description | None:
    """Module of two that the other and a Sequential only join to its place; None if there is none."""
    if description[0] != "Sequential" or len(description) != 3:
        return None
    _, first, second = description
    if second == ("Flattener", 0) or (second[0] == "Dense" and second[3] is None):
        return first
    joins = {"Dense": _SAMPLING | _BOTTLENECKS, "Flattener": {"PopulationGraph"}}
    return second if second[0] in joins.get(first[0], ()) else None


def _carries(part: Description) -> bool:
    return (part[0] == "Delay" and part[2] > 0) or part[0] in _CARRYING


def _trains(part: Description) -> bool:
    return part[0] in _TRAINED or (part[0] == "NormalSampler" and not part[3])


def _named(container: Callable[..., Any]) -> Callable[..., Any]:
    return lambda rngs, *children: container({name: build(child, rngs) for name, child in children})


def _without_rngs(layer: Callable[..., Any]) -> Callable[..., Any]:
    return lambda _, *arguments: layer(*arguments)


def _example(shape: Any) -> Any:
    if isinstance(shape, dict):
        return {key: _example(part) for key, part in shape.items()}
    return np.zeros(shape, np.float32)


def _squash(x: Any) -> Any:
    return x**2 / (1.0 + x**2)


def _lifted(rngs: mp.Rngs, in_features: int, out_features: int) -> Any:
    """Dense layer of the framework's own."""
    kernel = host.normal(rngs.key(), (in_features, out_features))
    return mp.Lift(active_engine().linear(np.asarray(kernel), np.zeros(out_features)))


def _rnn(rngs: mp.Rngs, inside: int, hidden: int, activation: Any, tau: Any, trained: bool, initial: bool) -> Any:
    options = {"time_constant": tau, "trainable_time_constant": trained, "trainable_initial_state": initial}
    return mp.RNN(inside, hidden, rngs, activation=activation, **options)


def _graph(
    rngs: mp.Rngs, populations: Description, connections: Description, outputs: Description, order: str = "described"
) -> Any:
    graph = mp.PopulationGraph(rngs)
    made = lambda item: build(item, rngs) if isinstance(item, tuple) else item  # noqa: E731
    for name, sizes, compute, activation, input_from in populations if order == "described" else populations[::-1]:
        of_it = {"compute": made(compute), "activation": activation, "input_from": input_from}
        graph.add_population(name, input_size=sizes[0], output_size=sizes[1], **of_it)
    for source, target, delay, transform in connections:
        graph.connect(source, target, delay=delay, transform=made(transform))
    for name, source, head in outputs:
        graph.add_output(name, source=source, head=made(head))
    graph.finalize()
    return graph


KINDS: dict[str, Callable[..., Any]] = {
    "Dense": lambda rngs, inside, outside, activation: mp.Dense(inside, outside, rngs, activation),
    "LSTM": lambda rngs, inside, hidden, initial: mp.LSTM(inside, hidden, rngs, trainable_initial_state=initial),
    "GRU": lambda rngs, inside, hidden, initial: mp.GRU(inside, hidden, rngs, trainable_initial_state=initial),
    "RNN": _rnn,
    "LayerNorm": _without_rngs(mp.LayerNorm),
    "Dropout": lambda rngs, rate: mp.Dropout(rate, rngs),
    "Lift": lambda _: mp.Lift(_squash),
    "LiftedDense": _lifted,
    "Normalizer": _without_rngs(mp.Normalizer),
    "Scale": _without_rngs(mp.Scale),
    "MoveAxis": _without_rngs(mp.MoveAxis),
    "Flattener": _without_rngs(mp.Flattener),
    "Filter": _without_rngs(mp.Filter),
    "Splitter": lambda _, *sizes: mp.Splitter(dict(sizes)),
    "Conv": lambda rngs, inside, outside, kernel, stride, padding: mp.Conv(
        inside, outside, kernel, rngs, stride=stride, padding=padding, activation="tanh"
    ),
    "Delay": lambda _, shape, k_steps, initial: mp.Delay(_example(shape), k_steps, initial),
    "VariationalBottleneck": lambda rngs, latent, weight: mp.VariationalBottleneck(latent, rngs, weight, 0.1),
    "AR1VariationalBottleneck": lambda rngs, latent, weight, smoothness, through_time, correlation: (
        mp.AR1VariationalBottleneck(latent, rngs, weight, 0.1, smoothness, through_time, prior_correlation=correlation)
    ),
    "NormalTanhSampler": lambda rngs, weight, shape: mp.NormalTanhSampler(rngs, weight, 0.1, action_shape=shape),
    "NormalSampler": lambda rngs, weight, shape, dependent: mp.NormalSampler(
        rngs, weight, 0.1, action_shape=shape, state_dependent_std=dependent
    ),
    "CategoricalSampler": lambda rngs, weight: mp.CategoricalSampler(rngs, weight),
    "MultiCategoricalSampler": lambda rngs, weight, sizes: mp.MultiCategoricalSampler(sizes, rngs, weight),
    "BernoulliSampler": lambda rngs, weight, shape: mp.BernoulliSampler(rngs, weight, action_shape=shape),
    "Sequential": lambda rngs, *children: mp.Sequential([build(child, rngs) for child in children]),
    "Residual": lambda rngs, child: mp.Residual(build(child, rngs)),
    "Parallel": _named(mp.Parallel),
    "Merge": _named(mp.Merge),
    "Concat": _named(mp.Concat),
    "Map": _named(mp.Map),
    "PPOAdapter": lambda rngs, action, value: mp.PPOAdapter(action=build(action, rngs), value=build(value, rngs)),
    "PopulationGraph": _graph,
    # Kinds that are wrong on purpose, for tests of the suite.
    "ResetsOneStepLate": lambda rngs, inside, hidden: mutant_modules.ResetsOneStepLate(inside, hidden, rngs),
    "MixesEnvironments": lambda rngs, inside, hidden: mutant_modules.MixesEnvironments(inside, hidden, rngs),
}
"""Functions of an ``Rngs`` and a description's other items that make the module, by kind."""

_TRAINED = {"Dense", "LiftedDense", "LSTM", "GRU", "RNN", "LayerNorm", "Conv", "ResetsOneStepLate", "MixesEnvironments"}
_BOTTLENECKS = {"VariationalBottleneck", "AR1VariationalBottleneck"}
_SAMPLING = {kind for kind in KINDS if kind.endswith("Sampler")}
_EMITTING = _SAMPLING | {"Normalizer", "Dropout"}
_CARRYING = _SAMPLING | _BOTTLENECKS | {"LSTM", "GRU", "RNN", "Dropout", "ResetsOneStepLate"}
