"""Evidence of a user's own module for ``check_module``: the suite's, from fewer programmes, and further evidence."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

import multippo as mp
from multippo.networks.core.unrolling import step_unroll
from multippo.networks.types import StatefulModule, StatefulModuleOutput
from multippo.trees import tree_leaves, tree_map, tree_structure

from ..specimens.specimen import ModuleSpecimen
from .attribute_writes import named_parts, plain_attributes, written_attributes
from .deviations import Deviation, compare, worst_of
from .engines import to_host
from .module_evidence import ModuleEvidence, Unrolled, total_of

_LIBRARY = "multippo.networks."

Inspect = Callable[[Any], str | None]
"""Function from the result of a call to the name of its fault, or None."""


class ModuleProbe(ModuleEvidence):
    """Evidence of one module, and of the modules in it that are a user's own.

    The library's modules are known to keep the rules; a programme is left out where no other module could break them.

    Args:
        specimen: The module and its inputs.
        backend: The engine.
        precision: "float32" or "float64".
        prepare: Function that writes numbers into the module.
        inspect: Function that names the fault in a call's result, which is then raised as a ``ValueError``.
    """

    def __init__(
        self, specimen: ModuleSpecimen, backend: str, precision: str, prepare: Callable[[Any], None], inspect: Inspect
    ) -> None:
        self.inspect = inspect
        super().__init__(specimen, backend, precision, prepare)
        self.own = [part for part in named_parts(self.module) if not neutral(part[1]).__module__.startswith(_LIBRARY)]

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles a function for a few runs."""
        return self.engine.draft(function)

    def _taken_apart(self, out: Any) -> tuple[Any, ...]:
        if problem := self.inspect(out):
            raise ProtocolError(problem)
        return tuple(out)

    def overridden_by_own(self, method: str) -> bool:
        """True if one of the user's modules has its own version of a method of StatefulModule."""
        return any(getattr(type(part), method) is not getattr(StatefulModule, method) for _, part in self.own)

    # -- many steps

    @functools.cached_property
    def rollout(self) -> tuple[Unrolled, Unrolled]:
        """Result of ``unroll`` without snapshots, run where a module's own could go wrong; and of single steps."""
        if self.stepped.emits and not self.overridden_by_own("unroll"):
            return self.stepped, self.stepped
        return self.replayed(None), self.stepped

    @functools.cached_property
    def replay(self) -> Unrolled:
        """Result of ``unroll`` with the snapshots of the steps one by one."""
        if self.learnt is not None:
            return self.learnt[0]
        return self.replayed(self.extras) if self.stepped.emits else self.rollout[0]

    def starts_anew(self) -> Deviation:
        """Distance of a second first carry from the first one."""
        first = self.fresh_state()
        self._fresh.clear()
        return compare(self.fresh_state(), first, axes=("env",))

    def traced_anew(self) -> Deviation:
        """Distance of the first step from itself after the call was traced once more."""
        state, x = self.warm_state, self.at_step(0)
        first = self.call(state, x)
        del self._call
        again = self.call(state, x)
        return compare((again.output, again.next_state), (first.output, first.next_state), axes=("env",))

    def untracked_arrays(self) -> dict[str, np.ndarray]:
        """Arrays of the frameworks' own modules that have no portable name, such as buffers."""
        split, leaves = self.engine.split(self.module), self.engine.leaves(self.module)
        tracked = {leaf.native_path for leaf in leaves.values()}
        held = self.engine.native_arrays(*split[1:])
        return {str(name): np.array(array) for name, array in held.items() if name not in tracked}

    def written_uncompiled(self) -> set[str]:
        """Attributes that a call writes to, of a module whose call can't be compiled."""
        with self.at() as engine:
            before = plain_attributes(self.module)
            with contextlib.suppress(Exception), engine.no_grad():
                self.module(self.module.initialize_state(self.num_envs), self.put(self.at_step(0)))
            return written_attributes(self.module, before)

    # -- gradients

    @functools.cached_property
    def learnt(self) -> tuple[Unrolled, Unrolled, dict[str, np.ndarray], dict[str, np.ndarray]] | None:
        """Replay by ``unroll`` and by steps, and the gradient of each; None where every ``unroll`` is the library's.

        Gradients are by every parameter, and by the inputs and the first carry.
        """
        if not self.overridden_by_own("unroll") or "train" not in self.engine.capabilities:
            return None
        state, extras = self.warm_state, self.extras
        self.doing = "Taking the gradient of a replay by unroll"
        with self.at() as engine:
            nudged: Any = Nudged(self.module, (state, self.xs))
            split = engine.split(nudged)

            def loss(step_by_step: bool, params: Any, variables: Any, *arguments: Any) -> Any:
                module = engine.merge(split.definition, params, variables)
                before = plain_attributes(module)
                out = module.over_time(step_by_step, *arguments)
                self.python_writes |= {name.removeprefix("inner.") for name in written_attributes(module, before)}
                return total_of(engine, out, self.done.shape), (tuple(out), tuple(engine.split(module))[1:])

            def run(params: Any, *arguments: Any) -> Any:
                gradients = (engine.value_and_grad(functools.partial(loss, by_step)) for by_step in (False, True))
                ((_, fast), of_fast), ((_, slow), of_slow) = (gradient(params, *arguments) for gradient in gradients)
                return fast, slow[0], of_fast, of_slow

            arguments = [self.put(tree) for tree in (state, self.xs, self.done, extras)]
            (fast, written), slow, *gradients = self.compiled(run)(split.params, split.variables, *arguments)
            engine.update_module(nudged, *written)
            self.arrays_after["replay"] = self.arrays_then_restored()
            by_name = [self._by_name(nudged, gradient, split.variables) for gradient in gradients]
            return self._unrolled(fast), self._unrolled(slow), by_name[0], by_name[1]

    def _by_name(self, nudged: Any, gradient: Any, variables: Any) -> dict[str, np.ndarray]:
        held = self.engine.native_arrays(gradient, variables)
        return {
            name: np.array(held[leaf.native_path])
            for name, leaf in self.engine.leaves(nudged).items()
            if leaf.trained and leaf.native_path in held
        }

    # -- noise drawn ahead

    def drawn_ahead(self) -> Deviation:
        """Distance of the next steps from those without ``draw_ahead``."""
        state, extras = self.warm_state, tree_map(lambda x: x[0], self.extras)
        plain = self._steps_from(state)
        tried: list[Any] = []
        found = [Deviation(0.0)]
        for replay in (False, True):
            self.doing = "draw_ahead"
            with self.at() as engine:
                arguments = (self.put(state), self.put(extras), _AHEAD, replay)
                drawn = to_host(engine, self.module.draw_ahead(*arguments))
            if any(_equal(drawn, other) for other in (state, *tried)):
                continue
            tried.append(drawn)
            try:
                steps = self._steps_from(drawn)
            except Exception:
                self.doing = "A call after draw_ahead"
                raise
            found.append(compare(steps, plain, axes=("step", "env")))
        return worst_of(found)

    def _steps_from(self, state: Any) -> Any:
        outs: list[Any] = []
        for t in range(_AHEAD):
            out = self.call(state, self.at_step(t))
            state = out.next_state
            outs.append((out.output, np.broadcast_to(out.regularization_loss, (self.num_envs,))))
        return tree_map(lambda *leaves: np.stack(leaves), *outs)


_AHEAD = 3
"""Steps for which noise is drawn ahead."""


class ProtocolError(ValueError):
    """Fault that ``inspect`` found in the result of a call."""


class Nudged(StatefulModule):
    """Module whose inputs and first carry have a gradient, as a parameter of value 0 is added to each real number.

    Args:
        inner: The module.
        tree: The carry and the inputs, as NumPy arrays.
    """

    def __init__(self, inner: Any, tree: Any) -> None:
        self.inner = inner
        real = [leaf for leaf in tree_leaves(tree) if leaf.dtype.kind == "f"]
        self.count = len(real)
        for number, leaf in enumerate(real):
            setattr(self, f"nudge_{number}", mp.Param(np.zeros(leaf.shape)))

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        """Calls the inner module."""
        return self.inner(state, x, rollout_extras)

    def over_time(self, step_by_step: bool, state: Any, xs: Any, done: Any, extras: Any) -> StatefulModuleOutput:
        """Takes many steps, by ``unroll`` or one by one."""
        nudges = iter([getattr(self, f"nudge_{number}")[...] for number in range(self.count)])
        is_real = lambda leaf: self.xp.isdtype(leaf.dtype, "real floating")  # noqa: E731
        state, xs = tree_map(lambda leaf: leaf + next(nudges) if is_real(leaf) else leaf, (state, xs))
        run = functools.partial(step_unroll, self.inner) if step_by_step else self.inner.unroll
        return run(state, xs, done, extras)


def neutral(module: Any) -> type:
    """Class of a module as it was written, without an engine."""
    return type(module).__mro__[1]


def _equal(a: Any, b: Any) -> bool:
    return tree_structure(a) == tree_structure(b) and compare(a, b, axes=()).worst == 0


def still_statistics(module: Any, unmoved: set[str], is_real: Callable[[str], bool]) -> Iterator[tuple[str, str]]:
    """Yields modules with statistics of their own of which an update moved none: path, and name of one statistic.

    Args:
        module: The outermost module.
        unmoved: Portable names of the Variables that an update left as they were.
        is_real: True for Variables of real numbers, which random keys are not.
    """
    names = set(mp.to_portable(module))
    for path, part in named_parts(module):
        if type(part).update_statistics is StatefulModule.update_statistics:
            continue
        below = tuple(f"{name}." for name, _ in part.engine.children(part))
        leaves = {name: leaf for name, leaf in part.engine.leaves(part).items() if not name.startswith(below)}
        own = [f"{path}.{name}" if path else name for name, leaf in leaves.items() if not leaf.trained]
        own = [name for name in own if name in names and is_real(name)]
        if own and all(name in unmoved for name in own):
            yield path, own[0]
