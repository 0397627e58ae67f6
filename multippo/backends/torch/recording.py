"""Functions of tensors whose operations are recorded in the first call, and repeated as straight code in later ones.

Most of a small gradient step's time on a CPU is not arithmetic but Python around it: modules, containers, trees, and
autograd's graph, all gone through anew for every minibatch. The operations below autograd are the same ones each time,
those of the gradient included. A dispatch mode sees them; what depends on shapes alone is kept as a constant, what is
computed twice or never used is left out, and the rest is written down as a function of one line an operation.

Numbers in a tensor may enter through operations only. A function that reads one (``bool(x)``), or makes shapes of one,
is called as it is.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from typing import Any

import optree
import torch

from multippo.backends.torch.rewriting import LARGE_LAYER, needed, simplified
from multippo.backends.torch.tape import Operation, Tape, Unfit, Value, numbers_in

_log = logging.getLogger(__name__)

_aten: Any = torch.ops.aten
_FUNCTIONS = (
    "abs add all amax amin any argmax bitwise_and bitwise_not bitwise_or bitwise_xor bmm cat clamp cos div "
    "eq exp expm1 floor gather ge gt index_select isfinite le log log1p logical_and "
    "logical_not logical_or lt maximum mean minimum mm mul ne neg pow reciprocal remainder rsqrt scatter_add select "
    "sigmoid sign sin sqrt square stack sub sum t tanh transpose unsqueeze where"
)
_METHODS = "add_ expand logical_and_ masked_fill_ permute view"
_DIRECT: dict[Any, Callable[..., Any]] = {
    **{getattr(_aten, name): getattr(torch, name) for name in _FUNCTIONS.split()},
    **{getattr(_aten, name): getattr(torch.Tensor, name) for name in _METHODS.split()},
}
"""Python's functions of the same arguments, which reach the kernel in two thirds of the time."""


_MOST = 4
"""Recordings of a function; one whose arguments keep changing their shapes is called as it is from then on."""


def _turned_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of few columns, as MKL is quick at it: of 1,280 rows for weights of 3 × 64 in a fourth of the time."""
    return torch.mm(b.t(), a.t()).t().contiguous()


def _turned_addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``bias + a @ b``, likewise."""
    return torch.addmm(bias[:, None], b.t(), a.t()).t().contiguous()


class Writer:
    """Python code of operations."""

    def __init__(self, tape: Tape, same: dict[int, int]) -> None:
        self.names: dict[str, Any] = {"inf": float("inf"), "nan": float("nan")}
        self._tape, self._same, self._held = tape, same, dict[int, str]()

    def name(self, number: int) -> str:
        number = self._same.get(number, number)
        if number in self._tape.constants:
            return self.hold(self._tape.tensors[number])
        return f"v{number}"

    def hold(self, value: Any) -> str:
        """Name of an object that the code refers to."""
        if id(value) not in self._held:
            self._held[id(value)] = f"c{len(self._held)}"
            self.names[self._held[id(value)]] = value
        return self._held[id(value)]

    def text(self, value: Any) -> str:
        if isinstance(value, Value):
            return self.name(value.number)
        if isinstance(value, list | tuple):
            return f"[{', '.join(map(self.text, value))}]"
        return repr(value) if isinstance(value, bool | int | float | str | None) else self.hold(value)

    def _quickest(self, operation: Operation) -> Any:
        """A function of the operation's arguments."""
        kind, args = operation.function.overloadpacket, operation.args
        tensors = [self._tape.tensors[number] for number in (*numbers_in(args), *operation.results)]
        if kind in (_aten.mm, _aten.addmm):
            left, (rows, columns) = tensors[-3], tensors[-1].shape
            if left.device.type == "cpu" and left.numel() >= LARGE_LAYER and not operation.kwargs:
                if kind is _aten.mm and 2 * columns <= rows <= left.shape[1]:
                    return _turned_mm
                if kind is _aten.addmm and 1 < columns <= left.shape[1] // 4 and tensors[0].ndim == 1:
                    return _turned_addmm
        if kind is _aten._to_copy and list(operation.kwargs) == ["dtype"]:
            return torch.Tensor.to if tensors[0].dtype != tensors[1].dtype else operation.function
        return _DIRECT.get(kind, operation.function)

    def line(self, operation: Operation) -> str:
        _, args, kwargs, results, is_list = operation
        call = self.hold(self._quickest(operation))
        given = [*map(self.text, args), *(f"{name}={self.text(value)}" for name, value in kwargs.items())]
        names = ["_" if number < 0 else f"v{number}" for number in results]
        target = f"[{', '.join(names)}] = " if is_list else f"{names[0]} = "
        return f"{target if results else ''}{call}({', '.join(given)})"


def lines(operations: list[Operation], writer: Writer, kept: set[int]) -> list[str]:
    """Lines of code of operations; tensors that are not used again, and not ``kept``, are freed."""
    last = {n: place for place, op in enumerate(operations) for n in (*numbers_in([op.args, op.kwargs]), *op.results)}
    done: dict[int, list[str]] = {}
    for number, place in last.items():
        if number not in kept:
            done.setdefault(place, []).append(f"v{number} = ")
    found = list[str]()
    for place, operation in enumerate(operations):
        found.append(writer.line(operation))
        # What is not used again is freed, and its memory, warm as it is, taken for the next.
        found.extend([f"{''.join(done[place])}None"] if place in done else [])
    return found


def _compiled(tape: Tape, num_given: int, outputs: list[int]) -> Callable[..., list[torch.Tensor]]:
    """Function from the given tensors to the outputs."""
    operations, same = simplified(tape, num_given, set(outputs))
    outputs = [same.get(number, number) for number in outputs]
    operations = needed(operations, tape, set(outputs), range(num_given))
    writer = Writer(tape, same)
    body = lines(operations, writer, {*outputs, *tape.constants, -1})
    body.append(f"return [{', '.join(map(writer.name, outputs))}]")
    head = f"def run({', '.join(f'v{number}' for number in range(num_given))}):\n    "
    exec(head + "\n    ".join(body), writer.names)
    return torch.no_grad()(writer.names["run"])


class _Call:
    """A recording, and the arguments that it is for."""

    def __init__(self, structure: Any, leaves: list[Any], run: Callable[..., list[torch.Tensor]], result: Any) -> None:
        self.run, self.result, self._structure = run, result, structure
        self._places = _places(leaves)
        self._kinds = [_kind(leaf) for leaf in leaves]
        self._seen = [weakref.ref(leaf) for leaf in leaves]

    def fits(self, structure: Any, leaves: list[Any]) -> bool:
        """True for arguments of the same structure and shapes. What was seen in the last call is looked at no more."""
        if structure != self._structure or _places(leaves) != self._places:
            return False
        for place, (seen, leaf) in enumerate(zip(self._seen, leaves, strict=True)):
            if seen() is not leaf:
                if _kind(leaf) != self._kinds[place]:
                    return False
                self._seen[place] = weakref.ref(leaf)
        return True


def _kind(leaf: Any) -> Any:
    return (leaf.shape, leaf.stride(), leaf.dtype) if isinstance(leaf, torch.Tensor) else None


def _places(leaves: list[Any]) -> list[int]:
    """First place of each leaf: a tensor that is given twice has one number, and another call may give two."""
    names = list(map(id, leaves))
    first = dict(zip(reversed(names), range(len(names) - 1, -1, -1), strict=True))
    return [first[name] for name in names]


def recorded(function: Callable[..., Any]) -> Callable[..., Any]:
    """Function that repeats the operations of its first call for arguments of these shapes.

    Args:
        function: Function from trees of tensors to a tree of tensors. It may write to its arguments.
    """
    known: _Call | None = None
    left = _MOST

    def call(*args: Any) -> Any:
        nonlocal known, left
        tree: Any = args
        leaves, structure = optree.tree_flatten(tree)
        tensors = list(dict(zip(map(id, leaves), leaves, strict=True)).values())
        if known is not None and known.fits(structure, leaves):
            return optree.tree_unflatten(known.result, known.run(*tensors))
        if not left or not all(isinstance(leaf, torch.Tensor) for leaf in leaves):
            return function(*args)
        left -= 1
        tape, result = Tape(tensors), None
        try:
            with tape:
                result = function(*args)
            found, result_structure = optree.tree_flatten(result)
            numbers = [tape.find(x) for x in found]
            if any(tape.is_mutated(number) for number in tape.constants):
                raise Unfit("a tensor is written to that is not among the arguments")
        except Unfit as error:
            left = 0
            _log.debug("A step is not recorded: %s.", error)
            return function(*args) if result is None else result  # a second call would write to the arguments twice
        known = _Call(structure, leaves, _compiled(tape, len(tensors), numbers), result_structure)
        return result

    return call
