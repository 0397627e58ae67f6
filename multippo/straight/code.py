"""Emission of recorded operations as source: plain NumPy calls that write into arrays allocated once."""

from __future__ import annotations

import contextvars
import functools
import math
from collections.abc import Container, Iterable, Mapping, Sequence, Set
from typing import Any, NamedTuple

import numpy as np

from multippo.straight.tracing import VIEWS, Traced, inputs_of

_FEW = 3
"""Number of entries of an axis up to which a reduction is written out."""

_MOST_REPEATED, _MOST_REPEATED_AHEAD = 2**12, 2**18
"""Numbers of an array up to which rows or columns are repeated, so that NumPy need not broadcast them: in every step,
and once for all steps."""


class Place(NamedTuple):
    """An array in the code.

    Attributes:
        name: Name in the code.
        array: The array itself if ``fixed``, else an example.
        fixed: True if the name stands for one and the same memory for good.
    """

    name: str
    array: np.ndarray
    fixed: bool


class Module:
    """Names that functions of straight code share: arrays and functions of NumPy."""

    def __init__(self) -> None:
        self.namespace: dict[str, Any] = {"add": np.add, "copyto": np.copyto, "dot": np.dot}
        # NumPy's warnings are off in this context, which is entered in a tenth of the time that np.errstate takes.
        self._quiet = contextvars.copy_context()
        self._quiet.run(np.seterr, all="ignore")
        self.source: list[str] = []
        self._count = 0

    def hold(self, value: Any, prefix: str = "k") -> str:
        """Gives a value a name."""
        self._count += 1
        name = f"{prefix}{self._count}"
        self.namespace[name] = value
        return name

    def allocate(self, shape: tuple[int, ...], dtype: Any) -> Place:
        """A new array."""
        array = np.zeros(shape, dtype)
        return Place(self.hold(array, "v"), array, True)

    def define(self, name: str, parameters: Sequence[str], lines: Sequence[str], result: str = "None") -> Any:
        """A function of the code; None if it would do nothing."""
        if not lines and result == "None":
            return None
        head = f"def {name}({', '.join(parameters)}):"
        source = "\n    ".join([head, *lines, f"return {result}"]) + "\n"
        self.source.append(source)
        exec(compile(source, "<straight>", "exec"), self.namespace)
        return functools.partial(self._quiet.run, self.namespace[name])


class Block:
    """Code of a part of a trace.

    Args:
        module: Names to share.
        given: Arrays that are there already, by their position in the trace.
        ahead: Block that is run before, once for many runs of this one.
        fixed: Positions of nodes that are left to it.
    """

    def __init__(
        self, module: Module, given: Mapping[int, Place], ahead: Block | None = None, fixed: Set[int] = frozenset()
    ) -> None:
        self.module, self.lines = module, list[str]()
        self._places, self._ahead, self._fixed = dict(given), ahead, fixed
        self._repeated: dict[tuple[str, tuple[int, ...]], str] = {}

    def place(self, node: Traced) -> Place:
        """The array of a node, whose operations are added to the code if they are not there yet."""
        for one in cone([node], self._places.keys() | self._fixed):
            self._places[one.index] = self._emit(one)
        if node.index not in self._places and self._ahead:
            self._places[node.index] = self._ahead.kept(node)
        return self._places[node.index]

    def kept(self, node: Traced, apart_from: Iterable[np.ndarray] = ()) -> Place:
        """As ``place``, in memory of its own that stays the same, and that shares nothing with other arrays."""
        place = self.place(node)
        if place.fixed and not any(np.shares_memory(place.array, other) for other in apart_from):
            return place
        copy = self.module.allocate(node.shape, node.dtype)
        self.lines.append(f"{copy.name}[...] = {place.name}")
        return copy

    def _emit(self, node: Traced) -> Place:
        if node.op in VIEWS:
            return self._view(node)
        method = getattr(self, f"_{node.op}", None)
        made = method(node) if method else self._ufunc(node) if isinstance(node.function, np.ufunc) else None
        return self._call(node) if made is None else made

    def _expression(self, arg: Any) -> str:
        if isinstance(arg, Traced):
            return self.place(arg).name
        if isinstance(arg, tuple | list):
            return f"({''.join(self._expression(item) + ', ' for item in arg)})"
        if arg is None or isinstance(arg, bool | int | str) or (isinstance(arg, float) and math.isfinite(arg)):
            return repr(arg)
        return self.module.hold(arg)

    def _out(self, node: Traced, line: str) -> Place:
        """New array for a node's value, which a line of code, with the array's name for ``{}``, fills."""
        place = self.module.allocate(node.shape, node.dtype)
        self.lines.append(line.format(place.name))
        return place

    def _call(self, node: Traced) -> Place:
        """The function itself, with a new array in every call."""
        function = functools.partial(node.function, **node.options) if node.options else node.function
        name = self.module.hold(None, "w")
        arguments = ", ".join(map(self._expression, node.args))
        self.lines.append(f"{name} = {self.module.hold(function, 'f')}({arguments})")
        return Place(name, node.value, False)

    def _ufunc(self, node: Traced) -> Place:
        types = {arg.dtype for arg in node.args if hasattr(arg, "dtype")}
        if node.op == "matmul":
            arguments = ", ".join(map(self._expression, node.args))
            if all(x.ndim == 2 for x in node.args) and len(types) == 1:
                return self._out(node, f"dot({arguments}, {{}})")
        else:
            arguments = ", ".join(self._operand(_typed(arg, types), node.shape) for arg in node.args)
        # By position, which is the quickest, where NumPy allows it.
        out = "out={}" if node.function in (np.maximum, np.minimum) else "{}"
        return self._out(node, f"{self._named(node.function)}({arguments}, {out})")

    def _operand(self, arg: Any, shape: tuple[int, ...]) -> str:
        """An argument of an elementwise function, in the result's shape where that takes less time."""
        name = self._expression(arg)
        if not isinstance(arg, Traced) or arg.shape == ():
            return name
        block = self._ahead if self._ahead and arg.index in self._fixed else self
        most = _MOST_REPEATED if block is self else _MOST_REPEATED_AHEAD
        steps = zip(arg.shape, self.place(arg).array.strides, strict=True)
        if (arg.shape == shape and all(n == 1 or step for n, step in steps)) or math.prod(shape) > most:
            return name
        if (name, shape) not in block._repeated:
            block._repeated[name, shape] = copy = block.module.allocate(shape, arg.dtype).name
            block.lines.append(f"{copy}[...] = {name}")
        return block._repeated[name, shape]

    def _named(self, function: Any) -> str:
        name = f"np_{function.__name__}"
        self.module.namespace[name] = function
        return name

    def _reduce(self, node: Traced) -> Place:
        x, name, axis, keepdims, dtype = node.args
        source = self.place(x)
        if source.fixed and isinstance(axis, int) and 1 < x.shape[axis] <= _FEW and node.dtype == x.dtype:
            return self._reduce_few(node, source.array, axis, keepdims, self._named(getattr(np, name)))
        arguments = f"{self._expression(x)}, {axis!r}, {self._expression(dtype)}, {{}}, {keepdims}"
        return self._out(node, f"{self._named(getattr(np, name))}.reduce({arguments})")

    def _reduce_few(self, node: Traced, x: np.ndarray, axis: int, keepdims: bool, function: str) -> Place:
        """A reduction of two or three numbers, from the first to the last, for which NumPy's own takes longer."""
        lead = (slice(None),) * axis
        first, *rest = (self.module.hold(x[(*lead, i)]) for i in range(x.shape[axis]))
        place = self.module.allocate(node.shape, node.dtype)
        # Without the axis, since NumPy goes through a vector in half the time that a narrow matrix takes.
        out = self.module.hold(place.array[(*lead, 0)]) if keepdims else place.name
        for part in rest:
            self.lines.append(f"{function}({first}, {part}, out={out})")
            first = out
        return place

    def _accumulate(self, node: Traced) -> Place:
        x, axis = node.args
        source, lead = self.place(x), (slice(None),) * (axis % x.ndim)
        if source.fixed and x.shape[axis] <= _FEW:
            place, before = self.module.allocate(node.shape, node.dtype), ""
            for i in range(x.shape[axis]):
                part, out = (self.module.hold(array[(*lead, i)]) for array in (source.array, place.array))
                self.lines.append(f"add({before}, {part}, {out})" if before else f"{out}[...] = {part}")
                before = out
            return place
        return self._out(node, f"{self._named(np.add)}.accumulate({self._expression(x)}, {axis}, None, {{}})")

    def _argmax(self, node: Traced) -> Place | None:
        if node.options["keepdims"]:
            return None
        return self._out(node, f"{self._expression(node.args[0])}.argmax({node.options['axis']}, {{}})")

    def _where(self, node: Traced) -> Place | None:
        condition, x, y = node.args
        if condition.dtype != np.bool_:
            return None
        condition, x, y = map(self._expression, node.args)
        place = self._out(node, f"{{}}[...] = {y}")
        self.lines.append(f"copyto({place.name}, {x}, where={condition})")
        return place

    def _astype(self, node: Traced) -> Place:
        return self._out(node, f"{{}}[...] = {self._expression(node.args[0])}")

    def _concat(self, node: Traced) -> Place | None:
        if set(node.options) - {"axis"}:
            return None
        function = self._named(np.concatenate)
        return self._out(node, f"{function}({self._expression(node.args[0])}, {node.options.get('axis', 0)}, {{}})")

    def _take_along_axis(self, node: Traced) -> Place | None:
        x, index = node.args
        last = node.options["axis"] in (-1, x.ndim - 1)
        place = self.place(x) if isinstance(x, Traced) else None
        single = isinstance(index, Traced) and index.shape == (*x.shape[:-1], 1)
        if place is None or not (last and single and place.fixed and place.array.flags.c_contiguous):
            return None
        # One index into the flat array for each row.
        rows = np.arange(math.prod(index.shape), dtype=np.int64).reshape(index.shape) * x.shape[-1]
        places = self.module.allocate(index.shape, np.int64)
        self.lines.append(f"{self._named(np.add)}({self._expression(index)}, {self.module.hold(rows)}, {places.name})")
        flat = self.module.hold(place.array.reshape(-1))
        return self._out(node, f"{flat}.take({places.name}, None, {{}}, 'clip')")

    def _view(self, node: Traced) -> Place:
        """A view of the first argument, made once if that stays where it is."""
        source = self.place(node.args[0])
        parts = node.args[1:]
        if node.op == "getitem":
            if not all(part is None or part is Ellipsis or isinstance(part, int | slice) for part in parts):
                return self._call(node)
            parts = parts if node.ndim else (*parts, Ellipsis)  # an array rather than a number
            view = source.array[parts]
        else:
            view = node.function(source.array, *parts, **node.options)
        if not source.fixed:
            name = self.module.hold(None, "w")
            call = f"{source.name}[{self._expression(parts)}]"
            if node.op != "getitem":
                function = functools.partial(node.function, **node.options)
                call = f"{self.module.hold(function, 'f')}({', '.join(map(self._expression, (node.args[0], *parts)))})"
            if node.op == "reshape":
                call = f"{source.name}.reshape({self._expression(parts[0])})"
            self.lines.append(f"{name} = {call}")
            return Place(name, view, False)
        if np.shares_memory(view, source.array) or not view.size:
            return Place(self.module.hold(view, "v"), view, True)
        # A reshape of what does not lie in order.
        place = self.module.allocate(node.shape, node.dtype)
        self.lines.append(f"{self.module.hold(place.array.reshape(source.array.shape))}[...] = {source.name}")
        return place


def _typed(arg: Any, types: set[Any]) -> Any:
    """A number as an array of the type that it is taken in beside arrays, which NumPy reads in half the time."""
    dtype = next(iter(types)) if len(types) == 1 else np.dtype(object)
    fits = isinstance(arg, float) and dtype.kind == "f"
    fits = fits or (isinstance(arg, int) and not isinstance(arg, bool) and dtype.kind in "fiu")
    return np.array(arg, dtype) if fits else arg


def cone(nodes: Iterable[Traced], known: Container[int] = ()) -> list[Traced]:
    """The nodes from which some are computed, themselves included, in order, as far as they are not known."""
    found: dict[int, Traced] = {}
    ahead = list(nodes)
    while ahead:
        node = ahead.pop()
        if node.index not in found and node.index not in known:
            found[node.index] = node
            ahead += inputs_of(node)
    return [found[index] for index in sorted(found)]
