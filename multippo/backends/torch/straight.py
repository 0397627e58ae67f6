"""Straight code: the operations of one call of a function of tensors, in order, without the Python between them.

A network's module tree costs more time in Python than a small network's arithmetic takes on a processor. Operations
are recorded once, for arguments of given shapes. Those that depend on weights alone (a normaliser's factors, transposed
kernels) run in ``prepare``, the rest in each call of what it returns.
"""

from __future__ import annotations

import logging
import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import optree
import torch
from torch.utils._python_dispatch import TorchDispatchMode

_LOG = logging.getLogger("multippo")
_ATEN = torch.ops.aten
# Copies, which code without writes does not need; and operators that change nothing where type and shape stay.
_COPIES = {_ATEN.alias.default, _ATEN.detach.default, _ATEN.clone.default, _ATEN.lift_fresh.default}
_CASTS = {
    *(_ATEN._to_copy.default, _ATEN.to.dtype, _ATEN.to.dtype_layout, _ATEN.to.device),
    *(_ATEN.expand.default, _ATEN.view.default, _ATEN.reshape.default, _ATEN.broadcast_to.default),
}


class _Value(NamedTuple):
    """Name of a tensor in straight code: i… of an argument, c… of a constant, p… prepared, v… of a call."""

    name: str


class _Operation(NamedTuple):
    result: Any
    function: Callable[..., Any]
    args: Any
    kwargs: Any


class _Recorder(TorchDispatchMode):
    """Mode that writes down all operations on tensors.

    Args:
        inputs: Arguments of the function.
        weights: Tensors that may be others in a later call, by name.
    """

    def __init__(self, inputs: list[torch.Tensor], weights: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self.operations: list[_Operation] = []
        self.constants: dict[_Value, torch.Tensor | str] = {}
        self._names: dict[int, Any] = {id(tensor): name for name, tensor in weights.items()}
        self._known: dict[str, Any] = {}
        self._values = {id(tensor): _Value(f"i{position}") for position, tensor in enumerate(inputs)}
        self._alive: list[Any] = list(inputs)  # the identity of a tensor that is gone may be another one's

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing is compiled in here; to make sure of that, torch would load its compiler first

    def value(self, tensor: Any) -> _Value:
        """The value of a tensor; a constant for one that no operation has made."""
        if id(tensor) not in self._values:
            self._name(tensor, self._constant(self._names.get(id(tensor), tensor)))
        return self._values[id(tensor)]

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation and writes it down."""
        del types
        kwargs = kwargs or {}
        made = function(*args, **kwargs)
        taken = self._replaced(_with_tensors(function, args)), self._replaced(kwargs)
        if not any(isinstance(leaf, torch.Tensor) for leaf in optree.tree_leaves(made)):
            raise ValueError(f"the function reads a number by {function}")
        if function._schema.is_mutable:
            # The operator of that name that writes into a new tensor; a view of the old one is found by the check.
            packet, overload = function._schema.name.removesuffix("_").partition("::")[2], function._overloadname
            function = getattr(getattr(_ATEN, packet), overload)
        self._name(made, self._simplified(function, args, taken[0], made) or self._operation(function, *taken))
        return made

    def _replaced(self, tree: Any) -> Any:
        return optree.tree_map(lambda x: self.value(x) if isinstance(x, torch.Tensor) else x, tree, none_is_leaf=True)

    def _constant(self, content: torch.Tensor | str) -> _Value:
        value = _Value(f"c{len(self.constants)}")
        self.constants[value] = content
        return value

    def _name(self, made: Any, value: Any) -> None:
        self._alive.append(made)
        if isinstance(made, torch.Tensor):
            self._values[id(made)] = value
            return
        for place, part in enumerate(made):
            self._values[id(part)] = self._operation(operator.getitem, (value, place), {})

    def _simplified(self, function: Any, args: Any, taken: Any, made: Any) -> _Value | None:
        """The value of an operation that is one known already, or zero."""
        if function in _COPIES or (function in _CASTS and _kind(made) == _kind(args[0])):
            return taken[0]
        if function is _ATEN.where.self and taken[1] == taken[2] and _kind(made) == _kind(args[1]):
            return taken[1]
        if function is _ATEN.sub.Tensor and taken[0] == taken[1] and not made.is_floating_point():
            return self._constant(torch.zeros_like(made))
        return None

    def _operation(self, function: Any, args: Any, kwargs: Any) -> _Value:
        """The value of an operation, a known one's if it is the same."""
        key = f"{function} {args} {kwargs}"
        if key not in self._known:
            kind = "v" if any(value.name[0] in "iv" for value in _values((args, kwargs))) else "p"
            self._known[key] = _Value(f"{kind}{len(self.operations)}")
            self.operations.append(_Operation(self._known[key], function, args, kwargs))
        return self._known[key]


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
        self._programmes: dict[tuple[int, ...], Any] = {}
        leaves, self._given = optree.tree_flatten(args)
        self._inputs = [_Value(f"i{position}") for position in range(len(leaves))]
        # Each argument is a tensor of its own while the function is recorded.
        leaves = [leaf.view_as(leaf) for leaf in leaves]
        recorder = _Recorder(leaves, weights)
        self._operations: list[_Operation] | None = recorder.operations
        try:
            with recorder:
                results = self._flat(function, *leaves)
            self._results, self._constants = [recorder.value(result) for result in results], recorder.constants
            self._check(function, leaves, weights)
        except Exception as error:
            _LOG.debug("%s is called as it is, and not as straight code: %s", function, error)
            self._operations, self._constants = None, {}
            self._results = [_Value("") for _ in self._flat(function, *leaves)]
        self.sources = [self._inputs.index(r) if r in self._inputs else None for r in self._results]

    def _flat(self, function: Callable[..., Any], *leaves: Any) -> list[Any]:
        result, self.structure = optree.tree_flatten(function(*optree.tree_unflatten(self._given, leaves)))
        return result

    def _check(self, function: Callable[..., Any], leaves: list[Any], weights: Mapping[str, torch.Tensor]) -> None:
        """Raises a ValueError unless the code does the same as the function, with the rows in another order."""
        others = [leaf.flip(0) for leaf in leaves]
        ours, expected = self.prepare(function, weights)(*others), self._flat(function, *others)
        for one, other in zip(ours, expected, strict=True):
            if not torch.allclose(one, other, rtol=1e-4, atol=1e-5, equal_nan=True):
                raise ValueError("the recorded operations give other results than the function")

    def reads(self, results: Iterable[int]) -> set[int]:
        """Positions of the arguments' leaves that some leaves of the result depend on."""
        if self._operations is None:
            return set(range(len(self._inputs)))
        needed = self._needed(results)[1]
        return {position for position, value in enumerate(self._inputs) if value in needed}

    def _needed(self, results: Iterable[int]) -> tuple[list[_Operation], set[_Value]]:
        """Operations, in order, and all values that some leaves of the result depend on."""
        needed = {self._results[position] for position in results}
        operations: list[_Operation] = []
        for operation in reversed(self._operations or ()):
            if operation.result in needed:
                operations.append(operation)
                needed.update(_values((operation.args, operation.kwargs)))
        return operations[::-1], needed

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
        if self._operations is None:

            def call(*leaves: torch.Tensor) -> list[torch.Tensor]:
                found = self._flat(function, *leaves)
                return [found[position] for position in chosen]

            return call
        if chosen not in self._programmes:
            self._programmes[chosen] = self._write(chosen)
        first, make, held, more = self._programmes[chosen]
        values = {
            value: (weights[content] if isinstance(content, str) else content)
            for value, content in self._constants.items()
        }
        for operation in first:
            args, kwargs = (
                optree.tree_map(lambda x: values[x] if isinstance(x, _Value) else x, tree, is_leaf=_is_value)
                for tree in (operation.args, operation.kwargs)
            )
            values[operation.result] = operation.function(*args, **kwargs)
        return make(*(values[value] for value in held), *more)

    def _write(self, chosen: tuple[int, ...]) -> tuple[list[_Operation], Any, list[_Value], list[Any]]:
        """Python code of the operations that some leaves of the result depend on."""
        operations, needed = self._needed(chosen)
        first = [operation for operation in operations if operation.result.name[0] == "p"]
        steps = [operation for operation in operations if operation.result.name[0] == "v"]
        held = sorted(value for value in needed if value.name[0] in "cp")
        more: list[Any] = []

        def text(x: Any) -> str:
            if isinstance(x, _Value):
                return x.name
            if isinstance(x, list | tuple):
                return f"[{', '.join(map(text, x))}]"
            more.append(x)
            return f"k{len(more) - 1}"

        results = [self._results[position] for position in chosen]
        last = {value: place for place, op in enumerate(steps) for value in _values((op.args, op.kwargs))}
        lines: list[str] = []
        for place, operation in enumerate(steps):
            args = [*map(text, operation.args), *(f"{name}={text(x)}" for name, x in operation.kwargs.items())]
            function = text(getattr(operation.function, "_op", operation.function))
            lines.append(f"{operation.result.name} = {function}({', '.join(args)})")
            over = [v.name for v, at in last.items() if at == place and v.name[0] == "v" and v not in results]
            lines += [f"del {', '.join(over)}"] * bool(over)
        lines.append(f"return [{', '.join(value.name for value in results)}]")
        names = [*(value.name for value in held), *(f"k{number}" for number in range(len(more)))]
        inputs = ", ".join(value.name for value in self._inputs)
        body = "\n".join(f"        {line}" for line in lines)
        scope: dict[str, Any] = {}
        exec(f"def make({', '.join(names)}):\n    def step({inputs}):\n{body}\n    return step", scope)
        return first, scope["make"], held, more


def _kind(tensor: torch.Tensor) -> Any:
    return tensor.shape, tensor.dtype, tensor.device


def _with_tensors(function: Any, args: Any) -> Any:
    """Arguments with tensors for numbers in the places of tensors, which torch would convert in every call."""
    kinds = {arg.dtype for arg in args if isinstance(arg, torch.Tensor)}
    if len(kinds) != 1 or not (kind := kinds.pop()).is_floating_point:
        return args
    tensors = [str(argument.type) == "Tensor" for argument in function._schema.arguments]
    return tuple(
        torch.tensor(arg, dtype=kind) if wanted and isinstance(arg, int | float) else arg
        for arg, wanted in zip(args, tensors, strict=False)
    )


def _is_value(x: Any) -> bool:
    return isinstance(x, _Value)


def _values(tree: Any) -> list[_Value]:
    return [x for x in optree.tree_leaves(tree, is_leaf=_is_value) if isinstance(x, _Value)]
