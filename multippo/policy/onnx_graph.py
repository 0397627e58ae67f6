"""Replay of a record as a graph of ONNX operators."""

# The packages come with the extra `export`.
# pyright: reportMissingImports=false

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

from multippo.policy.record import Record, times_batch
from multippo.policy.replay import WINDOW_AXES, Replay, window_places
from multippo.straight.tracing import Traced, UntraceableError
from multippo.trees import tree_leaves
from multippo.version import __version__

_OPSET = 18
_BATCH = "batch_size"
_UFUNCS = {
    "absolute": "Abs",
    "add": "Add",
    "arccos": "Acos",
    "arcsin": "Asin",
    "arctan": "Atan",
    "bitwise_and": "BitwiseAnd",
    "bitwise_or": "BitwiseOr",
    "bitwise_xor": "BitwiseXor",
    "ceil": "Ceil",
    "cos": "Cos",
    "cosh": "Cosh",
    "divide": "Div",
    "equal": "Equal",
    "exp": "Exp",
    "floor": "Floor",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "invert": "BitwiseNot",
    "isnan": "IsNaN",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "log": "Log",
    "logical_and": "And",
    "logical_not": "Not",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "matmul": "MatMul",
    "maximum": "Max",
    "minimum": "Min",
    "multiply": "Mul",
    "negative": "Neg",
    "power": "Pow",
    "reciprocal": "Reciprocal",
    "rint": "Round",
    "sign": "Sign",
    "sin": "Sin",
    "sinh": "Sinh",
    "sqrt": "Sqrt",
    "subtract": "Sub",
    "tan": "Tan",
    "tanh": "Tanh",
}
_OF_BOOLS = {
    "add": "Or",
    "bitwise_and": "And",
    "bitwise_or": "Or",
    "bitwise_xor": "Xor",
    "invert": "Not",
    "maximum": "Or",
    "minimum": "And",
    "multiply": "And",
}
_REDUCTIONS = {
    "add": "ReduceSum",
    "multiply": "ReduceProd",
    "maximum": "ReduceMax",
    "minimum": "ReduceMin",
    "logical_or": "ReduceMax",
    "logical_and": "ReduceMin",
}


def save_onnx(record: Record, path: Path, title: str) -> list[Any]:
    """Writes a policy's step as ONNX; returns what onnxruntime computes of the record's inputs."""
    OnnxReplay(record).save(path, title)
    observation, carry, start = record.example
    given = dict(zip(record.observation, tree_leaves(observation), strict=True)) | carry
    session = onnxruntime.InferenceSession(path)
    return list(session.run(None, given | {"start": start} if carry else given))


class _Multiple(int):
    """A multiple of the batch, in a shape."""


class OnnxReplay(Replay):
    """A policy's step as a graph; arrays are names in it."""

    def __init__(self, record: Record) -> None:
        super().__init__(record)
        self._nodes: list[Any] = []

    def save(self, path: Path, title: str) -> None:
        """Writes the graph, from observation, carry and ``start`` to action and next carry."""
        record, one = self._record, self._record.one
        carry = {name: one.carry[k] for name, k in record.carry.items()}
        inputs: dict[str, Any] = dict(zip(record.observation, one.obs, strict=True)) | carry
        if carry:
            inputs["start"] = one.start
        self.emit("Shape", record.observation[0], start=0, end=1, out=_BATCH)
        found = self.values({node.index: name for name, node in inputs.items()})
        names = [*record.action, *(f"next_{name}" for name in carry)]
        for name, value in zip(names, found, strict=True):
            self.emit("Identity", value, out=name)
        used = {name for node in self._nodes for name in node.input}
        graph = helper.make_graph(
            self._nodes,
            "policy",
            [_described(name, node) for name, node in inputs.items()],
            [_described(name, node) for name, node in zip(names, record.targets, strict=True)],
            [numpy_helper.from_array(value, name) for name, value in self.constants.values() if name in used],
        )
        model = helper.make_model(
            graph,
            opset_imports=[helper.make_opsetid("", _OPSET)],
            ir_version=10,
            producer_name="multippo",
            producer_version=__version__,
            doc_string=title,
        )
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)

    def emit(self, op: str, *inputs: Any, out: str | None = None, **attributes: Any) -> str:
        """Adds an operator; integers and their tuples become constants. Returns the name of its output."""
        names = [self.constant(np.asarray(x, np.int64)) if not isinstance(x, str) else x for x in inputs]
        out = out or f"x{len(self._nodes)}"
        self._nodes.append(helper.make_node(op, names, [out], **attributes))
        return out

    # -- the parts of a replay

    def size(self, one: int, two: int) -> Any:
        """A number, or a _Multiple of the batch."""
        return one if one == two else _Multiple(times_batch(one, two))

    def constant(self, value: np.ndarray) -> Any:
        """Name of an array of the graph."""
        key = (value.shape, value.dtype.str, value.tobytes())
        return self.constants.setdefault(key, (f"c{len(self.constants)}", np.array(value, order="C")))[0]

    def cast(self, array: Any, old: Any, new: Any) -> Any:
        """An array in another type."""
        return array if old == new else self.emit("Cast", array, to=helper.np_dtype_to_tensor_dtype(np.dtype(new)))

    def broadcast(self, array: Any, shape: tuple[Any, ...]) -> Any:
        """An array with its axes of size 1 repeated."""
        sizes = [self.emit("Mul", _BATCH, n) if isinstance(n, _Multiple) else self._integers([n]) for n in shape]
        return self.emit("Expand", array, self.emit("Concat", *sizes, axis=0) if sizes else self._integers([]))

    def ufunc(self, node: Traced, args: list[Any]) -> Any:
        """The result of an elementwise function or product."""
        op, x = node.function.__name__, args[0]
        kind = np.result_type(*(arg for arg in node.args if hasattr(arg, "dtype"))).kind
        if kind == "b" and op in _OF_BOOLS:
            return self.emit(_OF_BOOLS[op], *args)
        if op == "not_equal":
            return self.emit("Not", self.emit("Equal", *args))
        if op == "log1p":
            return self.emit("Log", self.emit("Add", x, self.constant(np.ones((), node.dtype))))
        if op == "expm1":
            return self.emit("Sub", self.emit("Exp", x), self.constant(np.ones((), node.dtype)))
        if op == "square":
            return self.emit("Mul", x, x)
        if op == "isfinite":
            return self.emit("Not", self.emit("Or", self.emit("IsNaN", x), self.emit("IsInf", x)))
        if op == "remainder" and node.dtype.kind == "i":
            return self.emit("Mod", *args)
        if op in ("left_shift", "right_shift") and isinstance(node.args[1], int):
            power = self.constant(np.asarray(2 ** node.args[1], node.dtype))
            return self.emit("Mul", x, power) if op == "left_shift" else self._floor_divide(x, power)
        if op == "floor_divide":
            quotient = self._floor_divide(*args) if node.dtype.kind == "i" else self.emit("Div", *args)
            return quotient if node.dtype.kind == "i" else self.emit("Floor", quotient)
        if op not in _UFUNCS:
            raise UntraceableError(f"ONNX has no operator for {op!r}")
        return self.emit(_UFUNCS[op], *args)

    def call(self, node: Traced, args: list[Any], shape: tuple[Any, ...]) -> Any:
        """The result of another operation, of a shape."""
        op, x, given = node.op, args[0], node.args[0]
        old = given.dtype if hasattr(given, "dtype") else None
        axis = node.options.get("axis")
        if op in ("reshape", "expand_dims", "squeeze"):
            return self._shaped(x, shape)
        if op == "astype":
            return self.cast(x, old, node.dtype)
        if op == "broadcast_to":
            return self.broadcast(x, shape)
        if op in ("moveaxis", "permute_dims"):
            sizes = node.function(np.empty(range(node.ndim)), *node.args[1:], **node.options).shape
            return self.emit("Transpose", x, perm=sizes)
        if op == "getitem":
            return self._item(x, args[1:], node, shape)
        if op == "reduce":
            of_bools = args[1].startswith("logical")
            x = self.cast(x, old, np.int32 if of_bools else node.dtype)
            axes = self._integers(np.atleast_1d(args[2]))
            y = self.emit(_REDUCTIONS[args[1]], x, axes, keepdims=int(args[3]))
            return self.cast(y, np.int32, np.bool_) if of_bools else y
        if op == "where":
            x, y = (self.cast(a, b.dtype, node.dtype) for a, b in zip(args[1:], node.args[1:], strict=True))
            if node.dtype != np.bool_:
                return self.emit("Where", args[0], x, y)
            return self.emit("Or", self.emit("And", args[0], x), self.emit("And", self.emit("Not", args[0]), y))
        if op == "argmax" and axis is not None:
            x = self.cast(x, old, np.int32) if old == np.bool_ else x
            return self.emit("ArgMax", x, axis=axis, keepdims=int(node.options["keepdims"]))
        if op == "accumulate":
            return self.emit("CumSum", x, self.constant(np.asarray(args[1], np.int64)))
        if op in ("concat", "stack"):
            parts = [self.cast(a, b.dtype, node.dtype) for a, b in zip(x, given, strict=True)]
            if op == "stack":
                parts = [self.emit("Unsqueeze", part, self._integers([axis])) for part in parts]
            return self.emit("Concat", *parts, axis=axis)
        if op == "take":
            return self.emit("Gather", x, args[1], axis=axis)
        if op == "take_along_axis" and given.ndim == node.ndim:
            return self.emit("GatherElements", x, args[1], axis=axis)
        if op == "erf":
            y = self.emit("Erf", self.cast(x, old, np.float32))  # onnxruntime has no other
            return self.cast(y, np.float32, node.dtype)
        if op == "pad":
            widths = np.array(args[1])
            return self.emit("Pad", x, self._integers(widths.T.ravel()), self.constant(np.zeros((), node.dtype)))
        if op == "windows":
            for place, places in window_places(node):
                x = self.emit("Gather", x, self.constant(places), axis=place)
            return self.emit("Transpose", x, perm=WINDOW_AXES)
        raise UntraceableError(f"ONNX has no operator for {op!r}")

    def _integers(self, values: Any) -> str:
        return self.constant(np.asarray(values, np.int64))

    def _shaped(self, x: Any, shape: tuple[Any, ...]) -> Any:
        return self.emit("Reshape", x, self._integers([-1 if isinstance(n, _Multiple) else n for n in shape]))

    def _floor_divide(self, x: Any, y: Any) -> Any:
        return self.emit("Div", self.emit("Sub", x, self.emit("Mod", x, y)), y)  # Div alone rounds to 0

    def _item(self, x: Any, parts: list[Any], node: Traced, shape: tuple[Any, ...]) -> Any:
        """An index of integers, slices and new axes, or a slice with one array in it."""
        number = node.args[0].ndim - sum(part is not None and part is not Ellipsis for part in parts)
        where = parts.index(Ellipsis) if Ellipsis in parts else len(parts)
        parts = [*parts[:where], *[slice(None)] * number, *parts[where + 1 :]]
        axis, arrays = 0, 0
        cuts = list[tuple[int, Any]]()
        for part in parts:
            if isinstance(part, str):
                x, arrays = self.emit("Gather", x, part, axis=axis), arrays + 1
            elif isinstance(part, slice | int) and part != slice(None):
                cuts.append((axis, part if isinstance(part, slice) else slice(part, part + 1 or None)))
            axis += part is not None
        if arrays > 1 or (arrays and None in parts):
            raise UntraceableError("ONNX has no operator for an index of several arrays")
        if cuts:
            starts, stops, steps = zip(*(_ends(cut) for _, cut in cuts), strict=True)
            x = self.emit("Slice", x, *map(self._integers, (starts, stops, [axis for axis, _ in cuts], steps)))
        return x if all(isinstance(part, slice) for part in parts) else self._shaped(x, shape)


def _ends(cut: slice) -> tuple[int, int, int]:
    step = cut.step or 1
    start = (0 if step > 0 else -1) if cut.start is None else cut.start
    return start, np.sign(step) * np.iinfo(np.int64).max if cut.stop is None else cut.stop, step


def _described(name: str, node: Traced) -> Any:
    return helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(node.dtype), ["batch", *node.shape[1:]])
