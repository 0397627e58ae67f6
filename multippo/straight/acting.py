"""A network's acting in host environments as straight code."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from multippo.straight.recording import Recording, entries
from multippo.straight.rollout_code import RolloutCode
from multippo.straight.tracing import UntraceableError
from multippo.trees import tree_leaves, tree_map, tree_structure, tree_unflatten

_TOLERANCE = {2: 1e-2, 4: 1e-5, 8: 1e-10}
"""Differences by which rounding may explain that two arrays differ, by their numbers' bytes."""


_DRAWN = 4096
"""Number of random numbers that are drawn at once, for several rollouts if one needs fewer."""


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
        self._recording = Recording(network, state, obs)
        one = self._recording.record(1)
        after, output, extras = like
        expected = output.actions, output._replace(actions=()), extras
        shapes = [tuple(leaf.shape) for leaf in tree_leaves(expected)]
        if (structure := tree_structure(expected)) != tree_structure(one.result) or shapes != [
            node.shape for node in tree_leaves(one.result)
        ]:
            raise UntraceableError("the output is of another structure or of other shapes than the engine's")
        self._structures, self._actions = (structure, tree_structure(after)), tree_structure(output.actions)
        self._one_action = self._actions == tree_structure(0)
        self._output_types, self._state_types = (
            [np.dtype(str(leaf.dtype).rpartition(".")[2]) for leaf in tree_leaves(tree)] for tree in (expected, after)
        )
        self._code = RolloutCode(self._recording, one, length, self._output_types)
        # Keys and counts that the tapes begin with, and their number of steps.
        self._drawn, self._num_drawn = list[Any](), 0

    def load(self, params: Any, variables: Any) -> None:
        """Takes the weights to act with, as ``engine.split`` returns them."""
        native = self._engine.native_arrays(params, variables)
        for name, array in self._code.weights.items():
            leaf = self._leaves[name]
            np.copyto(array, leaf.to_portable(native[leaf.native_path]), "unsafe")
        if self._code.prepare is not None:
            self._code.prepare()

    def begin(self, state: Any, sequence: int) -> None:
        """Starts a rollout.

        Args:
            state: Carry, in the engine's arrays, without noise drawn ahead.
            sequence: Steps between two carries that are kept.
        """
        state, code = self._recording.of_twin(state), self._code
        plain, random = self._recording.parts(state)
        for held, leaf in zip(code.carry, plain, strict=True):
            held[...] = leaf
        self._random = [(np.array(one.key), np.array(one.count)) for one in random]
        self._sequence, number = sequence, self._length // sequence
        self._starts = [np.empty((number, *held.shape), held.dtype) for held in code.carry]
        self._counts = np.empty((number, self._batch), np.int64)
        ahead = [now - then for (_, now), (_, then) in zip(self._random, self._drawn, strict=False)]
        same = [np.array_equal(own, key) for (own, _), (key, _) in zip(self._random, self._drawn, strict=False)]
        fits = [(x < self._num_drawn - self._length).all() and (x == ahead[0]).all() for x in ahead]
        if code.noise_size and not (ahead and all(same) and all(fits)):
            self._drawn, ahead = self._random, [np.zeros(self._batch)]
            # One step more, for the value of a final observation after the last.
            self._num_drawn = 1 + self._length * max(1, _DRAWN // (self._length * code.noise_size))
            for k, one in enumerate(self._recording.parts(self._recording.drawn(state, self._num_drawn))[1]):
                code.name_array(f"n{k}", np.moveaxis(one.tape, 1, 0).reshape(-1, 1, *one.tape.shape[2:]))
        # Steps of the tapes that came before this rollout's.
        self._first = ahead[0].astype(np.int64) if code.noise_size else np.zeros(self._batch, np.int64)
        code.at[:] = self._first * self._batch + np.arange(self._batch)
        self._filled: list[Any] = []
        for i, (node, dtype) in enumerate(zip(code.outputs, self._output_types, strict=True)):
            self._filled.append(None if i in code.same else np.zeros((self._length, *node.shape), dtype))
            code.name_array(f"y{i}", self._filled[i])
        self._acted = self._filled[: code.num_actions]

    def act(self, t: int, obs: Sequence[np.ndarray]) -> Any:
        """Takes step ``t``; returns the actions."""
        if t % self._sequence == 0:
            for kept, held in zip(self._starts, self._code.carry, strict=True):
                kept[t // self._sequence] = held
            self._counts[t // self._sequence] = self._taken()
        self._code.step(t, *obs)
        if self._one_action:
            return self._acted[0][t]
        return tree_unflatten(self._actions, [filled[t] for filled in self._acted])

    def _taken(self) -> np.ndarray:
        """Number of valid steps of each environment so far."""
        return self._code.at // self._batch - self._first

    def value(self, obs: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Leaves of the value estimates of other observations, under the carry after the step just taken."""
        return self._code.value(*obs)

    def settle(self, done: np.ndarray | None, valid: np.ndarray | None) -> None:
        """Carry of the next step: reset where an episode ended, held where the step was not valid.

        Args:
            done: ``[B]``; None if no episode ended.
            valid: ``[B]``; None if all steps were valid.
        """
        code = self._code
        code.advance() if valid is None else code.hold(valid)
        if done is not None and code.reset is not None:
            code.reset(done if valid is None else done & valid)

    def finish(self, obs: list[np.ndarray]) -> tuple[Any, Any, Any, Any]:
        """Computes what waited.

        Args:
            obs: Leaves of all observations, ``[T, B, ...]``.

        Returns:
            Output and snapshots, ``[T, B, ...]``, the carry after the last step, and the carries kept, all NumPy's.
        """
        code, filled, groups = self._code, self._filled, self._length // self._code.group
        grouped = lambda x: x.reshape((groups, code.group * self._batch, *x.shape[2:]))  # noqa: E731
        stored = lambda place: (obs if place[0] else filled)[place[1]]  # noqa: E731
        if code.waiting:
            for i in code.waiting:
                code.name_array(f"z{i}", grouped(filled[i]))
            left = [grouped(x if isinstance(x, np.ndarray) else stored(x)) for x in code.left]
            for j in range(groups):
                code.rest(j, *(x[j] for x in left))
        leaves = [stored(code.same[i]) if i in code.same else x for i, x in enumerate(filled)]
        actions, output, extras = tree_unflatten(self._structures[0], leaves)
        last = self._joined(code.carry, [(key, count + self._taken()) for key, count in self._random])
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
        self.begin(state, self._length)
        self.act(0, obs)
        self.settle(None, None)
        output, extras, _, _ = self.finish([np.repeat(leaf[None], self._length, axis=0) for leaf in obs])
        found = [*(leaf[0] for leaf in tree_leaves((output, extras))), *self._code.carry]
        after, *expected = tree_map(self._engine.to_numpy, like)
        for one, other in zip(found, [*tree_leaves(expected), *self._recording.parts(after)[0]], strict=True):
            tolerance = _TOLERANCE[other.dtype.itemsize] if other.dtype.kind == "f" else 0.0
            scale = tolerance * max(1.0, float(np.max(np.abs(other), initial=0.0, where=np.isfinite(other))))
            if not np.allclose(one, other, tolerance, scale if tolerance else 0.0, equal_nan=True):
                raise UntraceableError(f"straight code computes {one.ravel()[:4]}, the network {other.ravel()[:4]}")

    def _joined(self, plain: list[np.ndarray], random: list[tuple[Any, Any]]) -> Any:
        """A carry of leaves and random states, in the engine's types."""
        rest, drawn, leaves = iter(plain), iter(random), list[Any]()
        for entry, taped in zip(entries(self._recording.types), self._recording.taped, strict=True):
            leaves += next(drawn) if taped else itertools.islice(rest, len(tree_leaves(entry)))
        typed = [np.array(x, dtype) for x, dtype in zip(leaves, self._state_types, strict=True)]
        return tree_unflatten(self._structures[1], typed)
