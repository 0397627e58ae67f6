"""The operations of a function of tensors, as torch's dispatcher sees them."""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from multippo.trees import tree_leaves, tree_map


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
                    self.mutated.update(map(storage, tree_leaves(value)))
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
            if storage(tensor) in self._storages:
                raise Unfit("the tape has lost sight of a tensor")
            self.constants.add(self._add(tensor))
        return self._numbers[id(tensor)]

    def is_mutated(self, number: int) -> bool:
        """True if anything writes to a tensor's memory."""
        return storage(self.tensors[number]) in self.mutated

    def _add(self, tensor: torch.Tensor) -> int:
        if id(tensor) not in self._numbers:
            self._numbers[id(tensor)] = len(self.tensors)
            self.tensors.append(tensor)
            self._storages.add(storage(tensor))
        return self._numbers[id(tensor)]


def storage(tensor: torch.Tensor) -> int:
    """Name of a tensor's memory."""
    return tensor.untyped_storage()._cdata  # pyright: ignore[reportPrivateUsage]


def numbers_in(tree: Any) -> list[int]:
    """Numbers of the tensors among an operation's arguments."""
    return [x.number for x in tree_leaves(tree) if isinstance(x, Value)]
