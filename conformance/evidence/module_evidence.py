"""Outputs, carries, gradients and writes of one module on one engine, each computed once."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

import multippo as mp
from multippo.networks.core.unrolling import step_unroll
from multippo.networks.types import needs_only_valid
from multippo.random import host
from multippo.trees import select, tree_leaves, tree_map

from ..specimens.scripted_environment import script_ends
from ..specimens.specimen import ModuleSpecimen, randomise
from .attribute_writes import plain_attributes, written_attributes
from .built_module import BuiltModule
from .engines import to_host
from .gradients import gradient_of, weighted_sum

_WARM_UP = 4

_NUDGE = 1e-6
"""Step for differences, which in double precision give slopes to about nine digits."""


class Unrolled(NamedTuple):
    """Result of an unroll over all steps, as NumPy arrays: ``[T, B, ...]``, and the carry ``[B, ...]`` at the end."""

    over_time: Any
    next_state: Any

    @property
    def emits(self) -> bool:
        """True if a snapshot was emitted."""
        return bool(tree_leaves(self.over_time["rollout_extras"]))


class ModuleEvidence(BuiltModule):
    """Evidence of one module on one engine at one precision; every property is computed at its first use.

    Compiling takes longest of all, so there are few programmes: a call without and an ``unroll`` without and with
    snapshots, and the update. The steps one by one are calls.

    Args:
        specimen: The module, and its inputs.
        backend: The engine.
        precision: "float32" or "float64".
        prepare: Function that writes numbers into the module; by default random ones.

    Attributes:
        python_writes: Paths of the attributes that a call or an unroll wrote to.
        doing: The last run, in words for reports of an exception.
    """

    specimen: ModuleSpecimen

    def __init__(
        self, specimen: ModuleSpecimen, backend: str, precision: str, prepare: Callable[[Any], None] | None = None
    ) -> None:
        random = functools.partial(randomise, seed=specimen.seed, zeroed=specimen.zeroed)
        super().__init__(specimen, backend, precision, random if prepare is None else prepare)
        keys = host.split(host.key(30), 3)
        self.xs = specimen.sample(keys[0])
        self._other_xs = (specimen.sample(keys[1]), specimen.sample(keys[2]))
        self.done = script_ends(script=specimen.script)
        self.num_steps, self.num_envs = self.done.shape
        self.python_writes: set[str] = set()
        self.doing = ""
        self._fresh: dict[int, Any] = {}
        self._gradients: dict[bool, dict[str, np.ndarray]] = {}

    # -- one step

    @functools.cached_property
    def _call(self) -> Any:
        return self._watched(lambda module, state, x, extras: self._taken_apart(module(state, x, extras)))

    def _watched(self, run: Callable[..., Any]) -> Callable[..., Any]:
        """Programme that runs the module, notes writes to attributes, and returns the module's arrays too."""
        engine = self.engine

        def programme(params: Any, variables: Any, *arguments: Any) -> tuple[Any, Any]:
            module = engine.merge(self.definition, params, variables)
            before = plain_attributes(module)
            out = run(module, *arguments)
            self.python_writes |= written_attributes(module, before)
            return out, tuple(engine.split(module))[1:]

        return self.compiled(programme)

    def _taken_apart(self, out: Any) -> tuple[Any, ...]:
        """Fields of a call's output."""
        return tuple(out)

    def call(self, state: Any, x: Any, extras: Any = None) -> mp.StatefulModuleOutput:
        """Takes one step, from NumPy trees to NumPy trees."""
        self.doing = "A call" if extras is None else "A call with rollout_extras"
        with self.at() as engine:
            split = engine.split(self.module)
            arguments = (self.put(tree) for tree in (state, x, extras))
            out, _ = self._call(split.params, split.variables, *arguments)
            return mp.StatefulModuleOutput(*to_host(engine, out))

    @property
    def phases(self) -> tuple[str, ...]:
        """Phases, of "rollout" and "replay", in which a call could write to something.

        Where nothing can be written in place, a replay by ``unroll`` shows what a call in replay writes.
        """
        return ("rollout",) if self.compiled(select) is not select else ("rollout", "replay")

    def written_by_call(self, phase: str) -> tuple[dict[str, Any], Any, Any]:
        """Arrays of the module after a call in "rollout" or "replay"; and the arguments before and after the call."""
        state, x = self.warm_state, self.at_step(0)
        extras = self.call(state, x).rollout_extras if phase == "replay" else None
        self.doing = "A call" if extras is None else "A call with rollout_extras"
        with self.at() as engine:
            mp.load_portable(self.module, self.arrays)
            split = engine.split(self.module)
            arguments = [self.put(tree) for tree in (state, x, extras)]
            before = to_host(engine, arguments)
            _, written = self._call(split.params, split.variables, *arguments)
            engine.update_module(self.module, *written)
            return self.arrays_then_restored(), before, to_host(engine, arguments)

    def at_step(self, t: int) -> Any:
        """Inputs ``[B, ...]`` of one step; after the last one the first again."""
        return tree_map(lambda x: x[t % self.num_steps], self.xs)

    # -- carries

    def fresh_state(self, batch_size: int | None = None) -> Any:
        """First carry."""
        rows = batch_size or self.num_envs
        if rows not in self._fresh:
            with self.at() as engine:
                self._fresh[rows] = to_host(engine, self.module.initialize_state(rows))
        return self._fresh[rows]

    @functools.cached_property
    def warm_state(self) -> Any:
        """Carry after a few steps."""
        return self.history(0)[-1]

    @functools.lru_cache(maxsize=2)  # noqa: B019 - evidence lives as long as the suite
    def history(self, which: int) -> list[Any]:
        """First carry, and those after each of a few steps of one of two other histories of inputs."""
        states = [self.fresh_state()]
        for t in range(_WARM_UP):
            x = tree_map(lambda x, t=t: x[t % self.num_steps], self._other_xs[which])
            states.append(self.call(states[-1], x).next_state)
        return states

    def reset(self, state: Any) -> Any:
        """Calls ``reset_state`` for all environments."""
        self.doing = "reset_state"
        with self.at() as engine:
            return to_host(engine, self.module.reset_state(self.put(state)))

    def written_by_reset(self) -> tuple[dict[str, Any], Any, Any]:
        """Arrays of the module after ``reset_state``; and the argument before and after the call."""
        state = self.warm_state
        self.doing = "reset_state"
        with self.at() as engine:
            argument = self.put(state)
            before = to_host(engine, argument)
            self.module.reset_state(argument)
            return self.arrays_then_restored(), before, to_host(engine, argument)

    # -- many steps

    @functools.cached_property
    def rollout(self) -> tuple[Unrolled, Unrolled]:
        """Result of ``unroll``, and of the steps one by one, as in a rollout: nothing stored yet."""
        return self.replayed(None), self.stepped

    @functools.cached_property
    def stepped(self) -> Unrolled:
        """Result of the steps one by one, with a reset after each where an episode ended."""
        state, steps = self.warm_state, list[Any]()
        for t in range(self.num_steps):
            out = self.call(state, self.at_step(t))
            loss = np.broadcast_to(out.regularization_loss, (self.num_envs,))
            steps.append({**out._asdict(), "regularization_loss": loss})
            state = steps[-1].pop("next_state")
            if tree_leaves(state) and np.any(self.done[t]):
                state = select(np, self.done[t], self.reset(state), state)
        return Unrolled(tree_map(lambda *leaves: np.stack(leaves), *steps), state)

    @functools.cached_property
    def replay(self) -> Unrolled:
        """Result of ``unroll`` with the snapshots of the steps one by one; the rollout again if there are none."""
        return self.replayed(self.extras) if self.stepped.emits else self.rollout[0]

    @property
    def extras(self) -> Any:
        """Snapshots that the steps one by one have emitted, ``[T, B, ...]``."""
        return self.stepped.over_time["rollout_extras"]

    def replayed(self, extras: Any, state: Any = None, arrays: dict[str, np.ndarray] | None = None) -> Unrolled:
        """Result of ``unroll`` with any snapshots, from any carry and under any weights."""
        start = self.warm_state if state is None else state
        self.doing = "unroll" if extras is None else "A replay by unroll"
        with self.at() as engine:
            if arrays is not None:
                mp.load_portable(self.module, arrays)
            split = engine.split(self.module)
            arguments = (self.put(tree) for tree in (start, self.xs, self.done, extras))
            fast, written = self._unroll(split.params, split.variables, *arguments)
            engine.update_module(self.module, *written)
            after = self.arrays_then_restored()
            if arrays is None:
                self.arrays_after["rollout" if extras is None else "replay"] = after
            return self._unrolled(fast)

    @functools.cached_property
    def _unroll(self) -> Any:
        return self._watched(lambda module, *arguments: tuple(module.unroll(*arguments)))

    def _unrolled(self, fields: Any) -> Unrolled:
        out = mp.StatefulModuleOutput(*to_host(self.engine, fields))
        loss = np.broadcast_to(out.regularization_loss, self.done.shape)
        over_time = {**out._asdict(), "regularization_loss": loss}
        del over_time["next_state"]
        return Unrolled(over_time, out.next_state)

    # -- gradients and statistics

    def gradient(self, *, step_by_step: bool) -> dict[str, np.ndarray]:
        """Gradient of a sum over the replayed outputs, by ``unroll`` or by the steps one by one."""
        arguments = (self.warm_state, self.xs, self.done, self.extras)
        self.doing = "Taking the gradient"
        if step_by_step not in self._gradients:
            with self.at():
                loss = functools.partial(replay_loss, step_by_step)
                self._gradients[step_by_step] = gradient_of(self.module, loss, *map(self.put, arguments))
        return self._gradients[step_by_step]

    def slopes(self) -> tuple[float, float]:
        """Slope of a sum over the replayed outputs in one direction: by the gradient, and by a central difference."""
        found, key = self.gradient(step_by_step=False), host.key(31)
        way = {name: host.normal(host.fold_in(key, i), g.shape) for i, (name, g) in enumerate(sorted(found.items()))}
        self.doing = "A replay by unroll"
        run = self.programme(functools.partial(replay_loss, False))
        values: list[float] = []
        for step in (-_NUDGE, _NUDGE):
            moved = {**self.arrays, **{name: self.arrays[name] + step * way[name] for name in way}}
            arguments = (self.warm_state, self.xs, self.done, self.extras)
            values.append(float(self.evaluate(run, *arguments, arrays=moved)))
        slope = sum(float(np.sum(found[name] * way[name])) for name in way)
        return slope, (values[1] - values[0]) / (2 * _NUDGE)

    def statistics_after(self, garbage: float | None = None, extras: Any = None) -> dict[str, np.ndarray]:
        """Arrays of the module after ``update_statistics``.

        Args:
            garbage: Number in all entries of every fifth step, which are then not valid; None: all are valid.
            extras: The snapshots; those of the rollout by default.
        """
        extras, valid = self.extras if extras is None else extras, None
        self.doing = "update_statistics"
        with self.at() as engine:
            if garbage is not None:
                valid = np.ones_like(self.done)
                valid[::5, 1::2] = False
                extras = tree_map(lambda x: select(np, valid, x, garbage) if x.dtype.kind == "f" else x, extras)
            split = engine.split(self.module)
            mask = None if valid is None else engine.asarray(valid)
            # A module without a mask gets the valid entries alone, whose number no compiled call can know.
            apart = valid is not None and needs_only_valid(self.module)
            update = self._update if apart else self._compiled_update
            variables = update(split.params, split.variables, self.put(extras), mask)
            engine.update_module(self.module, split.params, variables)
            return self.arrays_then_restored()

    def written_by_update(self) -> tuple[set[str], Any, Any]:
        """Paths of the attributes that ``update_statistics`` wrote to; and its snapshots before and after."""
        engine, written = self.engine, set[str]()

        def update(params: Any, variables: Any, extras: Any) -> tuple[()]:
            module = engine.merge(self.definition, params, variables)
            before = plain_attributes(module)
            module.update_statistics(extras)
            written.update(written_attributes(module, before))
            return ()

        extras = self.extras
        self.doing = "update_statistics"
        with self.at():
            split, argument = engine.split(self.module), self.put(extras)
            before = to_host(engine, argument)
            engine.shapes(update, split.params, split.variables, argument)
            self.arrays_then_restored()
            return written, before, to_host(engine, argument)

    def _update(self, params: Any, variables: Any, extras: Any, valid: Any) -> Any:
        never = self.engine.asarray(np.asarray(False))
        return self.engine.update_statistics(self.definition, params, variables, extras, valid, never)

    @functools.cached_property
    def _compiled_update(self) -> Any:
        return self.compiled(self._update)


def replay_loss(step_by_step: bool, module: Any, state: Any, xs: Any, done: Any, extras: Any) -> Any:
    """Scalar that depends on every number of a replay."""
    run = functools.partial(step_unroll, module) if step_by_step else module.unroll
    return total_of(module.engine, run(state, xs, done, extras), done.shape)


def total_of(engine: Any, out: Any, time_batch: tuple[int, int]) -> Any:
    """Scalar that depends on every output, on the carry and on the losses."""
    losses = engine.xp.sum(out.regularization_loss + engine.zeros(time_batch))
    return weighted_sum(engine, (out.output, out.next_state)) + losses
