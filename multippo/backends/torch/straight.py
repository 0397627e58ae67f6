"""Straight code: what a network computes in a step of the environment, without the Python between its operations.

A network's module tree costs more time in Python than a small network's arithmetic takes on a processor. Operations
are recorded once, for arguments of given shapes (see ``recording``). Those that depend on weights alone (a normaliser's
factors) run in ``prepare``, the rest in each call of what it returns.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import optree
import torch

from multippo.backends.torch.recording import Writer, lines
from multippo.backends.torch.rewriting import needed, simplified
from multippo.backends.torch.tape import Operation, Tape, Unfit, numbers_in

_LOG = logging.getLogger("multippo")


class StraightCode:
    """A function as straight code, for arguments of one structure and their shapes; to be used in inference mode.

    A function is called as it is if its code does not do the same: if it looks at numbers to decide what to do, or
    draws some.

    Args:
        function: Function of trees of tensors, without effects.
        args: Arguments to record the operations with.
        weights: Tensors by name that the function reads beside its arguments; each ``prepare`` may get other ones.

    Attributes:
        structure: Structure of the result, of ``optree``.
        sources: For each leaf of the result the position of the argument leaf that it is, or None.
    """

    def __init__(self, function: Callable[..., Any], args: Any, weights: Mapping[str, torch.Tensor]) -> None:
        self._names, self._makers = tuple(weights), dict[tuple[int, ...], Callable[..., Any]]()
        leaves, self._given = optree.tree_flatten(args)
        leaves = [leaf.clone() for leaf in leaves]  # two arguments in one place of memory would be taken for one
        self._inputs = range(len(weights), len(weights) + len(leaves))
        self._tape: Tape | None = Tape([*weights.values(), *leaves])
        try:
            with self._tape:
                results = self._flat(function, *leaves)
            self._read([self._tape.find(result) for result in results])
            self._check(function, leaves, weights)
        except (Unfit, Exception) as error:
            _LOG.debug("%s is called as it is, and not as straight code: %s", function, error)
            self._tape, self._results = None, [-1 for _ in self._flat(function, *leaves)]
        self.sources = [number - self._inputs[0] if number in self._inputs else None for number in self._results]

    def _flat(self, function: Callable[..., Any], *leaves: Any) -> list[Any]:
        result, self.structure = optree.tree_flatten(function(*optree.tree_unflatten(self._given, leaves)))
        return result

    def _read(self, results: list[int]) -> None:
        """Takes over the operations of the tape, those on weights alone and the others."""
        assert self._tape is not None
        if any(map(self._tape.is_mutated, (*range(self._inputs.stop), *self._tape.constants))):
            raise Unfit("it writes to a tensor that it has not made")
        operations, self._same = simplified(self._tape, self._inputs.stop, set(results))
        self._results = [self._same.get(number, number) for number in results]
        self._first, self._steps = list[Operation](), list[Operation]()
        self._fixed = {*range(self._inputs[0]), *self._tape.constants}
        for operation in operations:
            taken = {*numbers_in(operation.args), *numbers_in(operation.kwargs)}
            fixed = taken <= self._fixed and not any(map(self._tape.is_mutated, (*taken, *operation.results)))
            (self._first if fixed else self._steps).append(operation)
            self._fixed.update(operation.results if fixed else ())

    def _check(self, function: Callable[..., Any], leaves: list[Any], weights: Mapping[str, torch.Tensor]) -> None:
        """Raises a ValueError unless the code does the same as the function, with the rows in another order."""
        others = [leaf.flip(0) for leaf in leaves]
        ours, expected = self.prepare(function, weights)(*others), self._flat(function, *others)
        for one, other in zip(ours, expected, strict=True):
            if not torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise ValueError("the recorded operations give other results than the function")

    def _needed(self, results: Iterable[int]) -> tuple[list[Operation], list[Operation]]:
        assert self._tape is not None
        numbers = {self._results[position] for position in results}
        steps = needed(self._steps, self._tape, numbers, range(0))
        taken = {number for step in steps for number in (*numbers_in(step.args), *numbers_in(step.kwargs))}
        return needed(self._first, self._tape, numbers | taken, range(0)), steps

    def reads(self, results: Iterable[int]) -> set[int]:
        """Positions of the arguments' leaves that some leaves of the result depend on."""
        if self._tape is None:
            return set(range(len(self._inputs)))
        results = list(results)
        taken = {self._results[position] for position in results}
        for step in self._needed(results)[1]:
            taken.update((*numbers_in(step.args), *numbers_in(step.kwargs)))
        return {number - self._inputs[0] for number in taken if number in self._inputs}

    def prepare(
        self,
        function: Callable[..., Any],
        weights: Mapping[str, torch.Tensor],
        results: Iterable[int] | None = None,
    ) -> Callable[..., list[torch.Tensor]]:
        """The function of leaves, with present weights.

        Args:
            function: The function, or one of a network of the same structure.
            weights: Tensors under the names at recording.
            results: Positions of the leaves that are computed, all by default.

        Returns:
            Function from the arguments' leaves to the results' leaves. Those of arguments that the results do not
            depend on (see ``reads``) may be anything.
        """
        chosen = tuple(range(len(self._results)) if results is None else results)
        if self._tape is None:

            def call(*leaves: torch.Tensor) -> list[torch.Tensor]:
                found = self._flat(function, *leaves)
                return [found[position] for position in chosen]

            return call
        if chosen not in self._makers:
            self._makers[chosen] = self._maker(chosen)
        return self._makers[chosen](*(weights[name] for name in self._names))

    def _maker(self, chosen: tuple[int, ...]) -> Callable[..., Any]:
        """Function of the weights that returns the function of the arguments' leaves."""
        assert self._tape is not None
        outputs = [self._results[position] for position in chosen]
        first, steps = self._needed(chosen)
        writer = Writer(self._tape, self._same)
        once = lines(first, writer, {*self._fixed, -1})
        each = lines(steps, writer, {*self._fixed, *outputs, -1})
        each.append(f"return [{', '.join(map(writer.name, outputs))}]")
        given, inputs = (", ".join(f"v{n}" for n in numbers) for numbers in (range(self._inputs[0]), self._inputs))
        body = [*once, f"def run({inputs}):", *(f"    {line}" for line in each), "return run"]
        exec(f"def make({given}):\n    " + "\n    ".join(body), writer.names)
        return writer.names["make"]
