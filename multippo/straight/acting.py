"""A network's acting in host environments as straight code.

A step computes what the environment or the next step needs: actions and the next carry. All else that a rollout holds
(values, likelihoods, entropies) is computed at the end, for many steps at once, from what the steps left.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
import optree

from multippo.backends.numpy.modules import named_variables
from multippo.networks.core.random_state import RandomState
from multippo.networks.core.twins import twin
from multippo.networks.types import PPONetworkOutput
from multippo.straight.code import Block, Module, Place, cone
from multippo.straight.engine import TracingEngine
from multippo.straight.tracing import Trace, Traced, UntraceableError, inputs_of
from multippo.trees import tree_leaves, tree_map, tree_structure, tree_unflatten

_MOST_BYTES = 2**22
"""Bound of the memory that what is computed at the end takes for a group of steps, so that it stays in a cache."""

_TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-10}
"""Differences by which rounding may explain that two arrays differ, by their numbers' bytes."""


class _Step(NamedTuple):
    """A step of the network as a trace.

    Attributes:
        nodes: The operations.
        weights: Inputs by portable name.
        obs: Leaves of the observation.
        carry: Leaves of the carry, without random states that draw ahead.
        noise: Tapes of one step, one for each of these random states.
        outputs: Leaves of actions, other outputs and snapshots, in this order.
        after: Leaves of the next carry.
        reset: Leaves of the next carry where an episode starts.
        fixed: Positions of nodes that depend on weights alone.
    """

    nodes: list[Traced]
    weights: dict[str, Traced]
    obs: list[Traced]
    carry: list[Traced]
    noise: list[Traced]
    outputs: list[Traced]
    after: list[Traced]
    reset: list[Traced]
    fixed: set[int]


class Straight:
    """Straight code of one network for B environments.

    Args:
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        state: Carry of the environments, without noise drawn ahead.
        obs: Observation, a tree of the engine's arrays.
        length: T, the number of steps of a rollout.
        like: Next carry, output and snapshots of the network's own step, or their shapes and types.

    Raises:
        UntraceableError: If the network can't be recorded, or puts out something else than it does on its engine.
        TypeError: If the network has no twin.
    """

    def __init__(self, network: Any, state: Any, obs: Any, length: int, like: Any) -> None:
        self._engine, self._length, self._batch = network.engine, length, tree_leaves(obs)[0].shape[0]
        self._leaves = self._engine.leaves(network)
        self._twin = twin(network, TracingEngine(self._engine.to_numpy(self._engine.zeros(())).dtype))
        self._types = tree_map(lambda x: x.dtype, self._twin.initialize_state(self._batch))
        self._variables: dict[str, Any] = dict(named_variables(self._twin))
        self._example = self._of_twin(state), tree_map(self._engine.to_numpy, obs)
        with np.errstate(all="ignore"):
            self._extras = self._twin(*self._example).rollout_extras
        taped = self._twin.draw_ahead(self._example[0], self._extras, 1)
        self._taped = [isinstance(x, RandomState) and x.tape is not None for x in _entries(taped)]
        one = self._recorded(1)
        self._take_types(like, one)
        self._module, self._prepare_lines = Module(), list[str]()
        self._weights = {name: self._module.allocate(node.shape, node.dtype) for name, node in one.weights.items()}
        self._compile(one)

    # -- recording

    def _of_twin(self, state: Any) -> Any:
        """A carry of the engine in NumPy's arrays, random words in NumPy's type."""
        if tree_structure(state) != tree_structure(self._types):
            raise UntraceableError("the carry is of another structure than the twin's")
        return tree_map(lambda x, dtype: self._engine.to_numpy(x).astype(dtype), state, self._types)

    def _parts(self, state: Any) -> tuple[list[Any], list[RandomState]]:
        """Leaves of a carry, and the random states that draw ahead."""
        pairs = list(zip(_entries(state), self._taped, strict=True))
        plain = [leaf for entry, taped in pairs if not taped for leaf in tree_leaves(entry)]
        return plain, [entry for entry, taped in pairs if taped]

    def _recorded(self, steps: int) -> _Step:
        """A trace of the network, with the rows of several steps."""
        trace = Trace()
        state, obs = self._example
        many = lambda kind, x: trace.input(kind, np.concatenate([x] * steps))  # noqa: E731
        weights = {name: trace.input("weight", held.value) for name, held in self._variables.items()}
        taped = iter(self._taped)

        def given(entry: Any) -> Any:
            if not next(taped):
                return tree_map(lambda x: many("carry", x), entry)
            key, count, tape = (many(*pair) for pair in zip(("key", "count", "noise"), entry, strict=False))
            # The tape's first step is the present one.
            return RandomState(key, count, tape, count)

        state: Any = optree.tree_map(given, self._twin.draw_ahead(state, self._extras, 1), is_leaf=_is_random)
        obs = tree_map(lambda x: many("obs", x), obs)
        values = {name: held.value for name, held in self._variables.items()}
        try:
            for name, node in weights.items():
                self._variables[name].value = node
            out = self._twin(state, obs)
            reset = self._twin.reset_state(out.next_state)
        finally:
            for name, value in values.items():
                self._variables[name].value = value
        if not isinstance(out.output, PPONetworkOutput):
            raise UntraceableError("the output is not a PPONetworkOutput")
        if tree_structure(out.next_state) != tree_structure(state) or tree_structure(reset) != tree_structure(state):
            raise UntraceableError("the next carry is of another structure than the carry")
        (carry, random), (after, stepped), (reset, restarted) = map(self._parts, (state, out.next_state, reset))
        for own, new, again in zip(random, stepped, restarted, strict=True):
            if any(x.key is not own.key or x.count is not own.count + 1 for x in (new, again)):
                raise UntraceableError("a random state does not count its steps one by one")
        self._output = out.output.actions, out.output._replace(actions=()), out.rollout_extras
        node = lambda x: x if isinstance(x, Traced) else trace.input("constant", np.asarray(x))  # noqa: E731
        outputs, after, reset = (list(map(node, x)) for x in (tree_leaves(self._output), after, reset))
        fixed: set[int] = set()
        for one in trace.nodes:
            above = inputs_of(one)
            if one.op in ("weight", "constant") or (above and all(x.index in fixed for x in above)):
                fixed.add(one.index)
        noise = [one.tape for one in random]
        return _Step(trace.nodes, weights, tree_leaves(obs), carry, noise, outputs, after, reset, fixed)

    def _take_types(self, like: Any, one: _Step) -> None:
        """Takes over the engine's types of carry and outputs, after comparing structures and shapes."""
        state, output, extras = like
        expected = output.actions, output._replace(actions=()), extras
        leaves = tree_leaves(expected)
        if tree_structure(expected) != tree_structure(self._output) or any(
            tuple(leaf.shape) != node.shape for leaf, node in zip(leaves, one.outputs, strict=True)
        ):
            raise UntraceableError("the output is of another structure or of other shapes than the engine's")
        self._num_actions, self._shapes = len(tree_leaves(output.actions)), [node.shape for node in one.outputs]
        self._actions_structure = tree_structure(output.actions)
        self._one_action = self._actions_structure == tree_structure(0)
        self._output_types, self._state_types = ([_dtype(x) for x in tree_leaves(t)] for t in (expected, state))
        self._structures = tree_structure(expected), tree_structure(state)

    # -- code

    def _compile(self, one: _Step) -> None:
        module = self._module
        carry = [module.allocate(node.shape, node.dtype) for node in one.carry]
        noise = [module.allocate(node.shape, node.dtype) for node in one.noise]
        names = [f"o{i}" for i in range(len(one.obs))]
        given = {node.index: Place(name, node.value, False) for name, node in zip(names, one.obs, strict=True)}
        given |= {node.index: place for node, place in zip(one.noise, noise, strict=True)}
        held = {node.index: place for node, place in zip(one.carry, carry, strict=True)}

        # What the environment or the next step needs, and what can wait.
        actions = one.outputs[: self._num_actions]
        outside = {node.index for node in (*one.obs, *one.noise, *one.carry)} | one.fixed
        needed = {node.index for node in cone((*actions, *one.after), outside)} | outside
        waiting = [i for i, node in enumerate(one.outputs) if node.index not in needed]
        later = cone((one.outputs[i] for i in waiting), needed)
        above = {node.index: node for lower in later for node in inputs_of(lower) if node.index in needed - one.fixed}
        left = list(above.values())
        seen = {node.index: k for k, node in enumerate(one.obs)}
        # Outputs that are in another array already: a leaf of the observation, or an output before.
        self._same: dict[int, tuple[bool, int]] = {}
        written: dict[int, int] = {}
        for i, node in enumerate(one.outputs):
            other = i >= self._num_actions
            if other and node.index in seen:
                self._same[i] = True, seen[node.index]
            elif other and node.index in written and self._output_types[written[node.index]] == self._output_types[i]:
                self._same[i] = False, written[node.index]
            else:
                written.setdefault(node.index, i)
        waiting = [i for i in waiting if i not in self._same]
        now = [i for i in range(len(one.outputs)) if i not in waiting and i not in self._same]

        block = self._block(one, {**given, **held}, (*actions, *one.after, *left, *(one.outputs[i] for i in now)))
        after = [
            place if node is own else block.kept(node, [x.array for x in carry])
            for node, own, place in zip(one.after, one.carry, carry, strict=True)
        ]
        tail = [f"y{i}[t] = {block.place(one.outputs[i]).name}" for i in now]
        # What steps leave for the rest: a leaf of the observation, an output, or an array for it alone.
        self._left: list[Any] = []
        for node in left:
            i = written.get(node.index)
            if node.index in seen:
                self._left.append((True, seen[node.index]))
            elif i is not None and self._output_types[i] == node.dtype:
                self._left.append((False, i))
            else:
                self._left.append(module.allocate((self._length, *node.shape), node.dtype).array)
                tail.append(f"{module.hold(self._left[-1])}[t] = {block.place(node).name}")
        self._step = module.define("step", ["t", *names], [*block.lines, *tail])

        values = len(tree_leaves(self._output[:1])) + len(tree_leaves(self._output[1].loglikelihoods))
        self._estimates = range(values, values + len(tree_leaves(self._output[1].value_estimates)))
        estimates = [one.outputs[i] for i in self._estimates]
        ahead = {node.index: place for node, place in zip(one.carry, after, strict=True)}
        block = self._block(one, {**given, **ahead}, estimates)
        result = "".join(f"{block.place(node).name}, " for node in estimates)
        self._value = module.define("value", names, block.lines, f"({result})")
        self._define_settling(one, carry, after)
        self._group = self._define_rest(one, waiting, later, left)
        self._prepare = module.define("prepare", [], self._prepare_lines)
        self._carry, self._noise = ([place.array for place in places] for places in (carry, noise))
        used = {node.index for node in cone((*one.outputs, *one.after))}
        self._needs_noise = any(node.index in used for node in one.noise)
        self._rows = np.arange(self._batch)

    def _define_settling(self, one: _Step, carry: list[Place], after: list[Place]) -> None:
        """Functions that take the carry from one step to the next."""
        rows = lambda mask, k: f"{mask}.reshape({(-1, *(1,) * (carry[k].array.ndim - 1))})"  # noqa: E731
        changed = [k for k, (own, new) in enumerate(zip(one.carry, one.after, strict=True)) if own is not new]
        move = "copyto({}, {}{})".format
        self._advance = self._module.define("advance", [], [move(carry[k].name, after[k].name, "") for k in changed])
        self._hold = self._module.define(
            "hold", ["valid"], [move(carry[k].name, after[k].name, f", where={rows('valid', k)}") for k in changed]
        )
        again = [k for k, (new, reset) in enumerate(zip(one.after, one.reset, strict=True)) if new is not reset]
        given = {node.index: place for node, place in zip(one.after, after, strict=True)}
        block = self._block(one, given, [one.reset[k] for k in again])
        lines = [move(carry[k].name, block.place(one.reset[k]).name, f", where={rows('done', k)}") for k in again]
        self._reset = self._module.define("reset", ["done"], [*block.lines, *lines])

    def _define_rest(self, one: _Step, waiting: list[int], later: list[Traced], left: list[Traced]) -> int:
        """Defines the function of what waits, for a group of steps; returns the number of steps in a group."""
        most = max(1, _MOST_BYTES // max(1, sum(node.value.nbytes for node in later)))
        steps = next(n for n in range(min(most, self._length), 0, -1) if self._length % n == 0)
        many = self._recorded(steps) if waiting else one
        if [node.op for node in many.nodes] != [node.op for node in one.nodes]:
            raise UntraceableError("the network goes another way with another number of rows")
        names = [f"s{k}" for k in range(len(left))]
        nodes = [many.nodes[node.index] for node in left]
        given = {node.index: Place(name, node.value, False) for name, node in zip(names, nodes, strict=True)}
        block = self._block(many, given, [many.outputs[i] for i in waiting])
        tail = [f"z{i}[j] = {block.place(many.outputs[i]).name}" for i in waiting]
        self._rest = self._module.define("rest", ["j", *names], [*block.lines, *tail])
        self._waiting = waiting
        return steps

    def _block(self, one: _Step, given: dict[int, Place], outputs: Iterable[Traced]) -> Block:
        """A block of code for some outputs; what follows from weights alone is left to ``prepare``."""
        outputs, places = list(outputs), dict(given)
        known = {node.index: self._weights[name] for name, node in one.weights.items()}
        for node in one.nodes:
            if node.op == "constant":
                known[node.index] = Place(self._module.hold(node.value), node.value, True)
        prepared = Block(self._module, known)
        inner = [node for node in cone(outputs, given) if node.index not in one.fixed]
        for node in itertools.chain(outputs, *map(inputs_of, inner)):
            if node.index in one.fixed and node.index not in places:
                places[node.index] = prepared.kept(node)
        self._prepare_lines += prepared.lines
        return Block(self._module, places)

    # -- a rollout

    def load(self, params: Any, variables: Any) -> None:
        """Takes the weights to act with, as ``engine.split`` returns them."""
        native = self._engine.native_arrays(params, variables)
        for name, place in self._weights.items():
            leaf = self._leaves[name]
            np.copyto(place.array, leaf.to_portable(native[leaf.native_path]), "unsafe")
        if self._prepare is not None:
            self._prepare()

    def begin(self, state: Any, may_skip: bool, sequence: int) -> None:
        """Starts a rollout.

        Args:
            state: Carry, in the engine's arrays, without noise drawn ahead.
            may_skip: True if steps may not be valid, which do not move the carry.
            sequence: Steps between two carries that are kept.
        """
        state = self._of_twin(state)
        plain, random = self._parts(state)
        for held, leaf in zip(self._carry, plain, strict=True):
            held[...] = leaf
        self._random = [(np.array(one.key), np.array(one.count)) for one in random]
        self._taken = np.zeros(self._batch, np.int64) if may_skip else None
        self._sequence, number = sequence, self._length // sequence
        self._starts = [np.empty((number, *held.shape), held.dtype) for held in self._carry]
        self._counts = np.repeat(np.arange(0, self._length, sequence)[:, None], self._batch, axis=1)
        # One step more, for the value of a final observation after the last.
        ahead = self._twin.draw_ahead(state, self._extras, self._length + 1) if self._needs_noise else state
        tapes = [one.tape for one in self._parts(ahead)[1] if self._needs_noise]
        self._tapes = [np.ascontiguousarray(np.moveaxis(tape, 1, 0))[:, :, None] for tape in tapes]
        self._filled: list[Any] = []
        for i, (shape, dtype) in enumerate(zip(self._shapes, self._output_types, strict=True)):
            self._filled.append(None if i in self._same else np.zeros((self._length, *shape), dtype))
            self._module.namespace[f"y{i}"] = self._filled[i]
        self._acted = self._filled[: self._num_actions]

    def _draw(self, t: int, ahead: int) -> None:
        """Puts the noise of step ``t``, or of one ``ahead``, in its place."""
        for noise, tape in zip(self._noise, self._tapes, strict=False):
            noise[...] = tape[t + ahead] if self._taken is None else tape[self._taken + ahead, self._rows]

    def no_values(self) -> list[np.ndarray]:
        """Zeros for the leaves of all value estimates, ``[T, B]``."""
        return [np.zeros((self._length, *self._shapes[i]), self._output_types[i]) for i in self._estimates]

    def act(self, t: int, obs: list[np.ndarray]) -> Any:
        """Takes step ``t``; returns the actions."""
        if t % self._sequence == 0:
            for kept, held in zip(self._starts, self._carry, strict=True):
                kept[t // self._sequence] = held
            if self._taken is not None:
                self._counts[t // self._sequence] = self._taken
        self._draw(t, 0)
        self._step(t, *obs)
        if self._one_action:
            return self._acted[0][t]
        return tree_unflatten(self._actions_structure, [filled[t] for filled in self._acted])

    def value(self, t: int, obs: list[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Leaves of the value estimates of other observations, under the carry after step ``t``."""
        self._draw(t, 1)
        return self._value(*obs)

    def settle(self, done: np.ndarray | None, valid: np.ndarray | None) -> None:
        """Carry of the next step: reset where an episode ended, held where the step was not valid.

        Args:
            done: ``[B]``; None if no episode ended.
            valid: ``[B]``; None if all steps were valid.
        """
        if self._advance is not None:
            self._advance() if valid is None else self._hold(valid)
        if valid is not None:
            done = None if done is None else done & valid
        if self._taken is not None:
            self._taken += 1 if valid is None else valid
        if done is not None and self._reset is not None:
            self._reset(done)

    def finish(self, obs: list[np.ndarray]) -> tuple[Any, Any, Any, Any]:
        """Computes what waited.

        Args:
            obs: Leaves of all observations, ``[T, B, ...]``.

        Returns:
            Output and snapshots, ``[T, B, ...]``, the carry after the last step, and the carries kept, all NumPy's.
        """
        groups = self._length // self._group
        for i in self._waiting:
            filled = self._filled[i]
            self._module.namespace[f"z{i}"] = filled.reshape((groups, self._group * self._batch, *filled.shape[2:]))
        leaves = [
            obs[self._same[i][1]] if i in self._same and self._same[i][0] else x for i, x in enumerate(self._filled)
        ]
        leaves = [leaves[self._same[i][1]] if x is None else x for i, x in enumerate(leaves)]
        left = [x if isinstance(x, np.ndarray) else (obs if x[0] else leaves)[x[1]] for x in self._left]
        left = [x.reshape((groups, self._group * self._batch, *x.shape[2:])) for x in left]
        for j in range(groups if self._waiting else 0):
            self._rest(j, *(x[j] for x in left))
        actions, output, extras = tree_unflatten(self._structures[0], leaves)
        taken = np.full(self._batch, self._length) if self._taken is None else self._taken
        last = self._joined(self._carry, [(key, count + taken) for key, count in self._random])
        every = (len(self._counts), self._batch)
        counts = [(np.broadcast_to(key, (*every, 2)), count + self._counts) for key, count in self._random]
        return output._replace(actions=actions), extras, last, self._joined(self._starts, counts)

    def check(self, state: Any, obs: list[np.ndarray], like: Any) -> None:
        """Compares a step with the network's own.

        Args:
            state: Carry before the step.
            obs: Leaves of the observation.
            like: Next carry, output and snapshots of the network's own step.

        Raises:
            UntraceableError: If they differ by more than rounding.
        """
        self.begin(state, False, self._length)
        self.act(0, obs)
        self.settle(None, None)
        output, extras, _, _ = self.finish([np.repeat(leaf[None], self._length, axis=0) for leaf in obs])
        found = [*(leaf[0] for leaf in tree_leaves((output, extras))), *self._carry]
        after, *expected = tree_map(self._engine.to_numpy, like)
        for one, other in zip(found, [*tree_leaves(expected), *self._parts(after)[0]], strict=True):
            tolerance = _TOLERANCE[other.dtype.itemsize] if other.dtype.kind == "f" else 0.0
            scale = tolerance * max(1.0, float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other))))
            if not np.allclose(one, other, tolerance, scale if tolerance else 0.0, equal_nan=True):
                raise UntraceableError(f"straight code computes {one.ravel()[:4]}, the network {other.ravel()[:4]}")

    def _joined(self, plain: list[np.ndarray], random: list[tuple[Any, Any]]) -> Any:
        """A carry of leaves and random states, in the engine's types."""
        rest, drawn, leaves = iter(plain), iter(random), list[Any]()
        for entry, taped in zip(_entries(self._types), self._taped, strict=True):
            leaves += next(drawn) if taped else itertools.islice(rest, len(tree_leaves(entry)))
        typed = [np.array(x, dtype) for x, dtype in zip(leaves, self._state_types, strict=True)]
        return tree_unflatten(self._structures[1], typed)


def _is_random(node: Any) -> bool:
    return isinstance(node, RandomState)


def _entries(state: Any) -> list[Any]:
    """Leaves of a carry, random states as one."""
    return optree.tree_leaves(state, is_leaf=_is_random)


def _dtype(leaf: Any) -> np.dtype[Any]:
    return np.dtype(str(leaf.dtype).rpartition(".")[2])
