"""Functions of tensors whose operations are recorded in the first call, and repeated as straight code in later ones.

Most of a small gradient step's time on a CPU is not arithmetic but Python around it: modules, containers, trees, and
autograd's graph, all gone through anew for every minibatch. The operations below autograd are the same ones each time,
those of the gradient included. A dispatch mode sees them; what depends on shapes alone is kept as a constant, what is
computed twice or never used is left out, and the rest is written down as a function of one line an operation.

Numbers in a tensor may enter through operations only. A function that reads one (``bool(x)``), or makes shapes of one,
is called as it is.
"""

from __future__ import annotations

import collections
import dataclasses
import logging
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import optree
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multippo.trees import tree_leaves, tree_map, tree_structure

_log = logging.getLogger(__name__)

_aten: Any = torch.ops.aten
_FROM_SHAPES = {_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.new_zeros, _aten.new_ones, _aten.new_full}
"""Operators that look at no number of their arguments."""
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


def _turned_mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a @ b`` of few columns, as MKL is quick at it: of 1,280 rows for weights of 3 × 64 in a fourth of the time."""
    return torch.mm(b.t(), a.t()).t().contiguous()


def _turned_addmm(bias: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``bias + a @ b``, likewise."""
    return torch.addmm(bias[:, None], b.t(), a.t()).t().contiguous()


_LARGEST_CONSTANT = 2**16
"""Numbers in a result that is kept rather than computed again, as zeros in the shape of a rollout's images are not."""

_LARGE_LAYER = 2**14
"""Numbers in a layer from which other ways, which round differently, are quicker than the operations recorded."""

_MOST = 4
"""Recordings of a function; one whose arguments keep changing their shapes is called as it is from then on."""


class Unfit(BaseException):
    """The function can't be recorded. Not an ``Exception``, which a module on the way might catch."""


@dataclasses.dataclass(frozen=True)
class Value:
    """Number of a tensor on the tape, in its place among an operation's arguments."""

    number: int


class Operation(NamedTuple):
    """An operation on the tape; ``results`` are numbers of tensors, -1 for what is none."""

    function: Any
    args: Any
    kwargs: Any
    results: list[int]
    is_list: bool


class Tape(TorchDispatchMode):
    """Operations in order, and every tensor they touched, held so that no later one gets its address.

    Attributes:
        tensors: All tensors; those that the function is given come first.
        operations: The operations.
        constants: Numbers of tensors that were there before, and are not given.
        mutated: Storages that are written to.
    """

    def __init__(self, given: list[torch.Tensor]) -> None:
        super().__init__()
        self.tensors: list[torch.Tensor] = []
        self.operations: list[Operation] = []
        self.constants: set[int] = set()
        self.mutated: set[int] = set()
        self._numbers: dict[int, int] = {}
        self._storages: set[int] = set()
        for tensor in given:
            self._add(tensor)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here; to make sure of that, torch would load its compiler first

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation, and writes it down."""
        if torch.Tag.data_dependent_output in func.tags or torch.Tag.dynamic_output_shape in func.tags:
            raise Unfit(f"{func} depends on the numbers in a tensor")
        kwargs = kwargs or {}
        taken = tree_map(lambda x: Value(self.find(x)) if isinstance(x, torch.Tensor) else x, [args, kwargs])
        result = func(*args, **kwargs)
        if func._schema.is_mutable:
            for place, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    value = kwargs[argument.name] if argument.name in kwargs else args[place]
                    self.mutated.update(map(_storage, tree_leaves(value)))
        if isinstance(result, bool | int | float):  # of an operator made of others, in inference mode
            raise Unfit(f"{func} reads a number in a tensor")
        is_list = isinstance(result, list | tuple)
        results = [self._add(x) if isinstance(x, torch.Tensor) else -1 for x in (result if is_list else [result])]
        self.operations.append(Operation(func, taken[0], taken[1], results, is_list))
        return result

    def find(self, tensor: torch.Tensor) -> int:
        """Number of a tensor that is an argument.

        Raises:
            Unfit: If the tensor is an unknown view of one on the tape.
        """
        if id(tensor) not in self._numbers:
            if _storage(tensor) in self._storages:
                raise Unfit("the tape has lost sight of a tensor")
            self.constants.add(self._add(tensor))
        return self._numbers[id(tensor)]

    def is_mutated(self, number: int) -> bool:
        """True if anything writes to a tensor's memory."""
        return _storage(self.tensors[number]) in self.mutated

    def _add(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self._storages.add(_storage(tensor))
        return self._numbers[id(tensor)]


def _storage(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def _view(tensor: torch.Tensor) -> Any:
    """A key that two tensors share if they are the same numbers in the same order at the same place."""
    return _storage(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def numbers_in(tree: Any) -> list[int]:
    """Numbers of the tensors among an operation's arguments."""
    return [x.number for x in tree_leaves(tree) if isinstance(x, Value)]


def simplified(tape: Tape, num_given: int, outputs: set[int]) -> tuple[list[Operation], dict[int, int]]:
    """Operations that are left, and for each number of a tensor that is another one, the number of that one."""
    same: dict[int, int] = {}
    storages = collections.Counter(_storage(tensor) for tensor in tape.tensors[:num_given])
    # Two tensors that are given may be views of one memory now, and of two in a later call.
    shared = {storage for storage, count in storages.items() if count > 1}
    views = {_view(tape.tensors[number]): number for number in range(num_given)}
    made: dict[Any, list[int]] = {}
    kept: list[Operation] = []
    for operation in tape.operations:
        function, _, _, results, _ = operation
        args, kwargs = tree_map(
            lambda x: Value(same.get(x.number, x.number)) if isinstance(x, Value) else x,
            [operation.args, operation.kwargs],
        )
        taken, kind = numbers_in([args, kwargs]), function.overloadpacket
        operation = operation._replace(args=args, kwargs=kwargs)
        if function._schema.is_mutable or -1 in results:
            kept.append(operation)
            continue
        if set(results) <= set(taken):  # the argument itself, as of a cast to its own type
            continue
        # Of views, those that are there already, be it after several turns, are left out.
        own = (tape.tensors[number] for number in results)
        seen = [
            number if _storage(tensor) in shared else views.setdefault(_view(tensor), number)
            for tensor, number in zip(own, results, strict=True)
        ]
        if seen != results and len(results) == 1:
            same[results[0]] = same.get(seen[0], seen[0])
            continue
        if any(tape.is_mutated(number) for number in (*taken, *results)):
            kept.append(operation)
            continue
        is_small = all(tape.tensors[number].numel() <= _LARGEST_CONSTANT for number in results)
        constant = is_small and (
            kind in _FROM_SHAPES or all(number in tape.constants for number in taken) or _is_zero(operation, tape)
        )
        random = torch.Tag.nondeterministic_seeded in function.tags
        if constant and not random:
            tape.constants.update(results)
            continue
        operation = _shortened(operation, kept, tape)
        taken = numbers_in([operation.args, operation.kwargs])
        if _changes_nothing(operation, tape) and not outputs & set(results):
            same[results[0]] = taken[-1]
            continue
        key = function, _frozen(args), _frozen(kwargs)
        if not random and key in made:
            same.update(zip(results, made[key], strict=True))
            continue
        made[key] = results
        kept.append(_with_layer(operation, kept, tape))
    return kept, same


def _with_layer(operation: Operation, before: list[Operation], tape: Tape) -> Operation:
    """A tanh as one kernel of oneDNN with the dense layer right before it, where that is large; else as it is.

    The layer's own operation stays, and is left out later if nothing else uses it.
    """
    result = tape.tensors[operation.results[0]]
    fits = result.dtype == torch.float32 and result.device.type == "cpu" and result.numel() >= _LARGE_LAYER
    if operation.function is not _aten.tanh.default or not fits or not torch.backends.mkldnn.is_available():
        return operation
    layer = before[-1] if before else operation
    if layer.results != numbers_in(operation.args) or layer.kwargs or None in layer.args:
        return operation
    if layer.function is _aten.linear.default:
        x, weight, bias = layer.args
    elif layer.function is _aten.addmm.default:
        bias, x, turned = layer.args
        weight = next(
            (op.args[0] for op in before if op.function is _aten.t.default and turned.number in op.results), None
        )
    else:
        return operation
    if weight is None or tape.tensors[bias.number].shape != result.shape[-1:]:
        return operation
    args = [x, weight, bias, "tanh", [], ""]
    return operation._replace(function=torch.ops.mkldnn._linear_pointwise.default, args=args)


def _shortened(operation: Operation, before: list[Operation], tape: Tape) -> Operation:
    """The operation, or a quicker one of the same result: of a choice between equals, a view, a test for finiteness."""
    function, args = operation[:2]
    if function is _aten.select_backward.default and args[1][args[2]] == 1:
        return operation._replace(function=_aten.view.default, args=args[:2])
    made = {op.results[0]: op for op in before[-8:] if len(op.results) == 1}

    def maker(value: Any, function: Any) -> Any:
        op = made.get(value.number) if isinstance(value, Value) else None
        return list(op.args) if op is not None and op.function is function else [None, None]

    if function is _aten.where.self and maker(args[0], _aten.eq.Tensor) == [args[2], args[1]]:
        return operation._replace(args=[args[0], args[2], args[2]])
    if function is _aten.mul.Tensor:
        x, again = maker(args[0], _aten.eq.Tensor)
        size, bound = maker(args[1], _aten.ne.Scalar)
        is_test = x == again and bound == float("inf") and maker(size, _aten.abs.default) == [x]
        if isinstance(x, Value) and is_test and not tape.is_mutated(x.number):
            return operation._replace(function=_aten.isfinite.default, args=[x])
    return operation


def _is_zero(operation: Operation, tape: Tape) -> bool:
    """True of the difference between a tensor of integers and itself."""
    function, args, kwargs, results, _ = operation
    same = function is _aten.sub.Tensor and not kwargs and args[0] == args[1]
    return same and not tape.tensors[results[0]].is_floating_point()


def _changes_nothing(operation: Operation, tape: Tape) -> bool:
    """True of a product with 1, a quotient by 1, the first power, a copy, and a choice between a tensor and itself."""
    function, args, kwargs, results, _ = operation
    if function.overloadpacket in (_aten.mul, _aten.div) or function is _aten.pow.Tensor_Scalar:
        if kwargs or isinstance(args[1], Value) or args[1] != 1:
            return False
    elif function is _aten.where.self:
        if args[1] != args[2]:
            return False
        args = args[1:]
    elif function.overloadpacket not in (_aten.clone, _aten.to, _aten._to_copy):
        return False
    before, after = (tape.tensors[number] for number in (args[0].number, results[0]))
    place, other = ((x.dtype, x.shape, x.stride(), x.device) for x in (before, after))
    return place == other


def _frozen(tree: Any) -> Any:
    return tuple((type(leaf), leaf) for leaf in tree_leaves(tree)), tree_structure(tree)


def needed(operations: list[Operation], tape: Tape, outputs: set[int], given: range) -> list[Operation]:
    """Operations whose results are used, or that write to a tensor that is used."""
    numbers = set(outputs)
    storages = {_storage(tape.tensors[number]) for number in (*outputs, *given)}
    found: list[Operation] = []
    for operation in reversed(operations):
        taken = numbers_in([operation.args, operation.kwargs])
        if operation.function._schema.is_mutable:
            is_needed = any(tape.is_mutated(n) and _storage(tape.tensors[n]) in storages for n in taken)
        else:
            is_needed = not numbers.isdisjoint(operation.results)
        if is_needed:
            found.append(operation)
            numbers.update(taken)
            storages.update(_storage(tape.tensors[number]) for number in taken)
    return found[::-1]


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
            if left.device.type == "cpu" and left.numel() >= _LARGE_LAYER and not operation.kwargs:
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
