"""Straight code of a recorded network for rollouts: what a step needs, and what can wait for the end.

A step computes what the environment or the next step needs: actions and the next carry. All else that a rollout holds
(values, likelihoods, entropies) is computed at the end, for many steps at once, from what the steps left.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from multippo.straight.code import Block, Module, Place, cone
from multippo.straight.recording import Recording, Step
from multippo.straight.tracing import Traced, UntraceableError, inputs_of
from multippo.trees import tree_leaves

_MOST_BYTES = 2**22
"""Bound of the memory that what is computed at the end takes for a group of steps, so that it stays in a cache."""


class RolloutCode:
    """Functions of straight code, and the arrays they share. A function that would do nothing is None.

    Args:
        recording: Recording of the network.
        one: Its step.
        length: T, the number of steps of a rollout.
        types: Types of the outputs' leaves in the rollout.

    Attributes:
        weights: Arrays by portable name.
        carry: Arrays of the carry's leaves.
        noise_size: Number of random numbers of a step, 0 if nothing depends on them. Their tapes ``n0``, ``n1``... have
            a row for each step and environment.
        at: Row of each environment's present step in the tapes.
        outputs: Leaves of actions, other outputs and snapshots.
        num_actions: Number of the actions' leaves, which are the first.
        waiting: Positions of outputs that ``rest`` computes.
        same: Places, see ``place_in``, of outputs that are elsewhere too.
        left: Places of what ``rest`` needs, or arrays that steps leave for it alone.
        group: Number of steps that ``rest`` takes at once.
        prepare: Computes what depends on weights alone.
        step: Takes step ``t``, given the leaves of the observation.
        value: Value estimates of other observations after a step.
        advance: Carry of the next step, and its row in the tapes.
        hold: The same where steps are ``valid``.
        reset: Carry at the start of an episode, where ``done``.
        rest: Computes what waited, for group ``j``.
    """

    def __init__(self, recording: Recording, one: Step, length: int, types: list[Any]) -> None:
        self._module, self._prepare_lines = Module(), list[str]()
        module, self.outputs = self._module, tree_leaves(one.result)
        self.name_array = module.namespace.__setitem__
        self._weights = {name: module.allocate(node.shape, node.dtype) for name, node in one.weights.items()}
        carry = [module.allocate(node.shape, node.dtype) for node in one.carry]
        noise = [module.allocate(node.shape, node.dtype) for node in one.noise]
        names = [f"o{i}" for i in range(len(one.obs))]
        given = {node.index: Place(name, node.value, False) for name, node in zip(names, one.obs, strict=True)}
        given |= {node.index: place for node, place in zip(one.noise, noise, strict=True)}
        used = {node.index for node in cone((*self.outputs, *one.after))}
        self.noise_size = sum(x.size for x in one.noise) if any(x.index in used for x in one.noise) else 0
        self.at = module.namespace["at"] = np.arange(len(one.obs[0].value))
        rows = f"[{len(self.at)}:]"  # from the next step on
        draw = [f"n{k}{{}}.take(at, 0, {place.name}, 'clip')" for k, place in enumerate(noise) if self.noise_size]
        held = {node.index: place for node, place in zip(one.carry, carry, strict=True)}

        self._ahead = self._preparing(one)

        # What the environment or the next step needs, and what can wait.
        outputs, self.num_actions = self.outputs, len(tree_leaves(one.result[0]))
        needed_now = (*outputs[: self.num_actions], *one.after)
        outside = {node.index for node in (*one.obs, *one.noise, *one.carry)} | one.fixed
        needed = {node.index for node in cone(needed_now, outside)} | outside
        waiting = [i for i, node in enumerate(outputs) if node.index not in needed]
        later = cone((outputs[i] for i in waiting), needed)
        above = {node.index: node for lower in later for node in inputs_of(lower) if node.index in needed - one.fixed}

        # Leaves of the observation (True, k) and outputs (False, i) in which the numbers of all steps will be.
        stored = {node.index: (True, k) for k, node in enumerate(one.obs)}
        self.same: dict[int, tuple[bool, int]] = {}

        def found(node: Traced, dtype: Any) -> tuple[bool, int] | None:
            place = stored.get(node.index)
            return place if place and (place[0] or types[place[1]] == dtype) else None

        for i, node in enumerate(outputs):
            if i >= self.num_actions and (place := found(node, types[i])):
                self.same[i] = place
            else:
                stored.setdefault(node.index, (False, i))
        self.waiting = [i for i in waiting if i not in self.same]
        now = [i for i in range(len(outputs)) if i not in self.waiting and i not in self.same]

        block = Block(module, {**given, **held}, self._ahead, one.fixed)
        after = [
            place if node is own else block.kept(node, [x.array for x in carry])
            for node, own, place in zip(one.after, one.carry, carry, strict=True)
        ]
        tail = [f"y{i}[t] = {block.place(outputs[i]).name}" for i in now]
        self.left: list[Any] = []
        for node in above.values():
            self.left.append(found(node, node.dtype) or np.zeros((length, *node.shape), node.dtype))
            if isinstance(self.left[-1], np.ndarray):
                tail.append(f"{module.hold(self.left[-1])}[t] = {block.place(node).name}")
        self.step = module.define("step", ["t", *names], [*(line.format("") for line in draw), *block.lines, *tail])

        values = len(tree_leaves((one.result[0], one.result[1].loglikelihoods)))
        estimates = range(values, values + len(tree_leaves(one.result[1].value_estimates)))
        ahead = {node.index: place for node, place in zip(one.carry, after, strict=True)}
        block = Block(module, {**given, **ahead}, self._ahead, one.fixed)
        result = "".join(f"{block.place(outputs[i]).name}, " for i in estimates)
        self.value = module.define("value", names, [*(line.format(rows) for line in draw), *block.lines], f"({result})")
        self._define_settling(one, carry, after)
        self.group = self._define_rest(recording, one, length, later, list(above.values()))
        self.prepare = module.define("prepare", [], self._prepare_lines)
        self.weights = {name: place.array for name, place in self._weights.items()}
        self.carry = [place.array for place in carry]

    def _define_settling(self, one: Step, carry: list[Place], after: list[Place]) -> None:
        """Defines the functions that take the carry from one step to the next."""
        rows = lambda mask, held: f"{mask}.reshape({(-1, *(1,) * (held.array.ndim - 1))})"  # noqa: E731
        move = "copyto({}, {}, where={})".format
        self._module.namespace["batch"] = np.array(len(self.at))
        moves = [(held, after[k]) for k, held in enumerate(carry) if one.carry[k] is not one.after[k]]
        plain = [f"{held.name}[...] = {new.name}" for held, new in moves]
        self.advance = self._module.define("advance", [], ["add(at, batch, at)", *plain])
        masked = [move(held.name, new.name, rows("valid", held)) for held, new in moves]
        self.hold = self._module.define("hold", ["valid"], ["add(at, batch, at, where=valid)", *masked])
        again = [k for k, (new, reset) in enumerate(zip(one.after, one.reset, strict=True)) if new is not reset]
        given = {node.index: place for node, place in zip(one.after, after, strict=True)}
        block = Block(self._module, given, self._ahead, one.fixed)
        lines = [move(carry[k].name, block.place(one.reset[k]).name, rows("done", carry[k])) for k in again]
        self.reset = self._module.define("reset", ["done"], [*block.lines, *lines])

    def _define_rest(
        self, recording: Recording, one: Step, length: int, later: list[Traced], left: list[Traced]
    ) -> int:
        """Defines the function of what waits, for a group of steps; returns the number of steps in a group."""
        most = max(1, _MOST_BYTES // max(1, sum(node.value.nbytes for node in later)))
        steps = next(n for n in range(min(most, length), 0, -1) if length % n == 0)
        many = recording.record(steps) if self.waiting else one
        if [node.op for node in many.nodes] != [node.op for node in one.nodes]:
            raise UntraceableError("the network goes another way with another number of rows")
        names, outputs = [f"s{k}" for k in range(len(left))], tree_leaves(many.result)
        nodes = [many.nodes[node.index] for node in left]
        given = {node.index: Place(name, node.value, False) for name, node in zip(names, nodes, strict=True)}
        block = Block(self._module, given, self._ahead if many is one else self._preparing(many), many.fixed)
        tail = [f"z{i}[j] = {block.place(outputs[i]).name}" for i in self.waiting]
        self.rest = self._module.define("rest", ["j", *names], [*block.lines, *tail])
        return steps

    def _preparing(self, one: Step) -> Block:
        """A block for what follows from weights alone, whose code becomes that of ``prepare``."""
        known = {node.index: self._weights[name] for name, node in one.weights.items()}
        for node in one.nodes:
            if node.op == "constant":
                known[node.index] = Place(self._module.hold(node.value), node.value, True)
        block = Block(self._module, known)
        block.lines = self._prepare_lines
        return block
