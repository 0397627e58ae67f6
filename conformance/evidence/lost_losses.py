"""Losses of modules inside a user's own container that do not reach the outside.

A number is added to the loss of one module inside, on a copy of the whole that shares its parameters; if the loss of
the whole stays the same, that module's is lost.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from multippo.networks.types import StatefulModule, StatefulModuleOutput

from .engines import to_host
from .module_probe import ModuleProbe, neutral


@dataclasses.dataclass(eq=False)
class _Watch:
    """State that all watched modules share.

    Attributes:
        added: Numbers ``[N]`` added to the losses of the modules.
        losses: Losses of the modules that were called, before the addition.
    """

    added: Any = None
    losses: dict[int, Any] = dataclasses.field(default_factory=dict[int, Any])


@dataclasses.dataclass(eq=False)
class _Place:
    watch: _Watch
    number: int


def lost_losses(probe: ModuleProbe) -> list[str]:
    """Paths of the modules directly below a user's own ones whose loss is not part of the whole's.

    Args:
        probe: Probe of the whole.
    """
    paths: dict[int, str] = {}
    for path, part in probe.own:
        for name, child in part.engine.children(part):
            if isinstance(child, StatefulModule):
                paths.setdefault(id(child), f"{path}.{name}" if path else name)
    if not paths:
        return []
    watch, numbers = _Watch(), {which: number for number, which in enumerate(paths)}
    probe.doing = "A call"
    state, x = probe.fresh_state(), probe.at_step(0)
    with probe.at() as engine:
        copied = _copy(probe.module, {which: _Place(watch, number) for which, number in numbers.items()})
        definition, params, variables = engine.split(copied)

        def total(params: Any, variables: Any, state: Any, x: Any, added: Any) -> Any:
            watch.added, watch.losses = added, {}
            out = engine.merge(definition, params, variables)(state, x, None)
            rows = engine.zeros((probe.num_envs,))
            inner = {number: engine.xp.sum(loss + rows) for number, loss in watch.losses.items()}
            return engine.xp.sum(out.regularization_loss + rows), inner

        run = probe.compiled(total)

        def losses(added: np.ndarray) -> Any:
            put = [probe.put(tree) for tree in (state, x, added)]
            return to_host(engine, run(params, variables, *put))

        whole, inner = losses(np.zeros(len(paths)))
        return [
            path
            for number, path in enumerate(paths.values())
            if np.any(inner.get(number, 0.0)) and losses(np.eye(len(paths))[number])[0] == whole
        ]


def _copy(module: Any, places: dict[int, _Place]) -> Any:
    """Copy of a network in which some modules, by their identity, are watched."""
    engine, copies = module.engine, dict[int, Any]()

    def copy(node: Any) -> Any:
        if id(node) not in copies:  # a module in two places stays one module
            place = places.get(id(node))
            copies[id(node)] = engine.copy_module(node, copy, None if place is None else _watching(neutral(node)))
            if place is not None:
                copies[id(node)].place_of_watch = place
        return copies[id(node)]

    return copy(module)


@functools.cache
def _watching(cls: Any) -> type:
    """Subclass of a bound class that notes its loss, and adds to it."""

    def call(self: Any, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        out = cls.__call__(self, state, x, rollout_extras)
        watch, number = self.place_of_watch.watch, self.place_of_watch.number
        watch.losses[number] = watch.losses.get(number, 0.0) + out.regularization_loss
        return out._replace(regularization_loss=out.regularization_loss + watch.added[number])

    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    return type(cls)(cls.__name__, (cls,), {**names, "__call__": call})
