"""Recording of a network's step as a trace, by its twin on the engine of recorded networks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import optree

from multippo.backends.numpy.modules import named_variables
from multippo.networks.core.random_state import RandomState
from multippo.networks.core.twins import twin
from multippo.networks.core.unrolling import reset_where
from multippo.networks.types import PPONetworkOutput
from multippo.straight.engine import TracingEngine
from multippo.straight.tracing import Trace, Traced, UntraceableError, inputs_of
from multippo.trees import tree_leaves, tree_map, tree_structure


class Step(NamedTuple):
    """A step of the network as a trace.

    Attributes:
        nodes: The operations.
        weights: Inputs by portable name.
        obs: Leaves of the observation.
        carry: Leaves of the carry, without random states that draw ahead.
        noise: Tapes of one step, one for each of these random states.
        result: Actions, other outputs and snapshots, a tree of nodes.
        after: Leaves of the next carry.
        reset: Leaves of the next carry where an episode starts.
        fixed: Positions of nodes that depend on weights alone.
        start: ``[B]`` bool, True where an episode starts with the step; None if the carry is reset after steps alone.
    """

    nodes: list[Traced]
    weights: dict[str, Traced]
    obs: list[Traced]
    carry: list[Traced]
    noise: list[Traced]
    result: tuple[Any, Any, Any]
    after: list[Traced]
    reset: list[Traced]
    fixed: set[int]
    start: Traced | None


class Recording:
    """A network's twin, whose step is recorded.

    Args:
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        state: Example of a carry, without noise drawn ahead.
        obs: Example of an observation, a tree of the engine's or NumPy's arrays.
        taped: True if noise is drawn ahead of the step, False if the step draws it.
        see: Function of the observation that returns what the network gets.
        act: Function of the network's actions that returns those of the step.
        dtype: Floating-point type; by default the network's own.
        plain_words: Type of random words whose rounds are recorded one by one, by which other frameworks can draw; the
            carry is then reset before the step, too, where ``Step.start`` says so.

    Raises:
        UntraceableError: If the carry is not of the twin's structure.
        TypeError: If the network has no twin.
    """

    def __init__(
        self,
        network: Any,
        state: Any,
        obs: Any,
        taped: bool = True,
        see: Callable[[Any], Any] = lambda obs: obs,
        act: Callable[[Any], Any] = lambda actions: actions,
        dtype: Any = None,
        plain_words: Any = None,
    ) -> None:
        self._to_numpy, self._see, self._act, self._starts = network.engine.to_numpy, see, act, plain_words is not None
        self.twin = twin(network, TracingEngine(dtype or self._to_numpy(network.engine.zeros(())).dtype, plain_words))
        self.types = tree_map(lambda x: x.dtype, self.twin.initialize_state(len(tree_leaves(obs)[0])))
        self._variables: dict[str, Any] = dict(named_variables(self.twin))
        to_numpy = lambda x: x if isinstance(x, np.ndarray) else self._to_numpy(x)  # noqa: E731
        self._example = self.of_twin(state), tree_map(to_numpy, obs)
        self._extras: Any = None
        if taped:
            with np.errstate(all="ignore"):
                self._extras = self.twin(self._example[0], see(self._example[1])).rollout_extras
        self._start = self.drawn(self._example[0], 1) if taped else self._example[0]
        self.taped = [isinstance(x, RandomState) and x.tape is not None for x in entries(self._start)]

    def of_twin(self, state: Any) -> Any:
        """A carry of the engine in NumPy's arrays, random words in NumPy's type."""
        if tree_structure(state) != tree_structure(self.types):
            raise UntraceableError("the carry is of another structure than the twin's")
        return tree_map(lambda x, dtype: self._to_numpy(x).astype(dtype), state, self.types)

    def drawn(self, state: Any, steps: int) -> Any:
        """A carry of the twin with the noise of some steps."""
        return self.twin.draw_ahead(state, self._extras, steps)

    def parts(self, state: Any) -> tuple[list[Any], list[RandomState]]:
        """Leaves of a carry, and the random states that draw ahead."""
        pairs = list(zip(entries(state), self.taped, strict=True))
        plain = [leaf for entry, taped in pairs if not taped for leaf in tree_leaves(entry)]
        return plain, [entry for entry, taped in pairs if taped]

    def record(self, steps: int) -> Step:
        """A trace of the network, with the rows of several steps.

        Raises:
            UntraceableError: If the network can't be recorded.
        """
        trace = Trace()
        many = lambda kind, x: trace.input(kind, np.concatenate([x] * steps))  # noqa: E731
        weights = {name: trace.input("weight", held.value) for name, held in self._variables.items()}
        taped = iter(self.taped)

        def given(entry: Any) -> Any:
            if not next(taped):
                return tree_map(lambda x: many("carry", x), entry)
            key, count, tape = (many(*pair) for pair in zip(("key", "count", "noise"), entry, strict=False))
            # The tape's first step is the present one.
            return RandomState(key, count, tape, count)

        state: Any = optree.tree_map(given, self._start, is_leaf=_is_random)
        obs = tree_map(lambda x: many("obs", x), self._example[1])
        start = trace.input("start", np.zeros(len(tree_leaves(obs)[0]), bool)) if self._starts else None
        values = {name: held.value for name, held in self._variables.items()}
        try:
            for name, node in weights.items():
                self._variables[name].value = node
            begun = state if start is None else reset_where(self.twin, start, state)
            out = self.twin(begun, self._see(obs))
            reset = self.twin.reset_state(out.next_state)
        finally:
            for name, value in values.items():
                self._variables[name].value = value
        if not isinstance(out.output, PPONetworkOutput):
            raise UntraceableError("the output is not a PPONetworkOutput")
        if tree_structure(out.next_state) != tree_structure(state) or tree_structure(reset) != tree_structure(state):
            raise UntraceableError("the next carry is of another structure than the carry")
        (carry, random), (after, stepped), (reset, restarted) = map(self.parts, (state, out.next_state, reset))
        for own, new, again in zip(random, stepped, restarted, strict=True):
            if any(x.key is not own.key or x.count is not own.count + 1 for x in (new, again)):
                raise UntraceableError("a random state does not count its steps one by one")
        node = lambda x: x if isinstance(x, Traced) else trace.input("constant", np.asarray(x))  # noqa: E731
        result = self._act(out.output.actions), out.output._replace(actions=()), out.rollout_extras
        result, after, reset = (tree_map(node, tree) for tree in (result, after, reset))
        fixed: set[int] = set()
        for one in trace.nodes:
            above = inputs_of(one)
            if one.op in ("weight", "constant") or (above and all(x.index in fixed for x in above)):
                fixed.add(one.index)
        noise = [one.tape for one in random]
        return Step(trace.nodes, weights, tree_leaves(obs), carry, noise, result, after, reset, fixed, start)


def entries(state: Any) -> list[Any]:
    """Leaves of a carry, random states as one."""
    return optree.tree_leaves(state, is_leaf=_is_random)


def _is_random(node: Any) -> bool:
    return isinstance(node, RandomState)
