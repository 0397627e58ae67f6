"""Fewer operations, and quicker ones, of the same results as those on a tape."""

from __future__ import annotations

import collections
from typing import Any

import torch

from multippo.backends.torch.tape import Operation, Tape, Value, numbers_in, storage
from multippo.trees import tree_leaves, tree_map, tree_structure

_aten: Any = torch.ops.aten
_FROM_SHAPES = {_aten.zeros_like, _aten.ones_like, _aten.full_like, _aten.new_zeros, _aten.new_ones, _aten.new_full}
"""Operators that look at no number of their arguments."""
_LARGEST_CONSTANT = 2**16
"""Numbers in a result that is kept rather than computed again, as zeros in the shape of a rollout's images are not."""

LARGE_LAYER = 2**14
"""Numbers in a layer from which other ways, which round differently, are quicker than the operations recorded."""


def _view(tensor: torch.Tensor) -> Any:
    """A key that two tensors share if they are the same numbers in the same order at the same place."""
    return storage(tensor), tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype


def simplified(tape: Tape, num_given: int, outputs: set[int]) -> tuple[list[Operation], dict[int, int]]:
    """Operations that are left, and for each number of a tensor that is another one, the number of that one."""
    same: dict[int, int] = {}
    storages = collections.Counter(storage(tensor) for tensor in tape.tensors[:num_given])
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
            number if storage(tensor) in shared else views.setdefault(_view(tensor), number)
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
    fits = result.dtype == torch.float32 and result.device.type == "cpu" and result.numel() >= LARGE_LAYER
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
    storages = {storage(tape.tensors[number]) for number in (*outputs, *given)}
    found: list[Operation] = []
    for operation in reversed(operations):
        taken = numbers_in([operation.args, operation.kwargs])
        if operation.function._schema.is_mutable:
            is_needed = any(tape.is_mutated(n) and storage(tape.tensors[n]) in storages for n in taken)
        else:
            is_needed = not numbers.isdisjoint(operation.results)
        if is_needed:
            found.append(operation)
            numbers.update(taken)
            storages.update(storage(tape.tensors[number]) for number in taken)
    return found[::-1]
