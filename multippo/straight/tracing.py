"""Recording of what a network computes: arrays that stand for their values, and the calls made on them.

A ``Traced`` array has a shape and a type, and knows the operation that made it. It can't be looked into, so a network
whose way depends on values (``if x > 0``) raises ``UntraceableError``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import array_api_compat.numpy as numpy_namespace
import numpy as np

VIEWS = frozenset(
    {"getitem", "reshape", "moveaxis", "permute_dims", "expand_dims", "squeeze", "broadcast_to", "windows"}
)
"""Operations that put out a view of their first argument where NumPy can."""


class UntraceableError(Exception):
    """Raised where a network can't be recorded."""


class Trace:
    """List of operations, in order; equal ones are recorded once."""

    def __init__(self) -> None:
        self.nodes: list[Traced] = []
        self._known: dict[Any, Traced] = {}

    def input(self, kind: str, value: np.ndarray) -> Traced:
        """An array given from outside, such as an observation; ``value`` is an example."""
        return self._added(Traced(self, kind, None, (), {}, np.asarray(value)))

    def call(self, op: str, function: Callable[..., Any], *args: Any, **options: Any) -> Traced:
        """The result of an operation.

        Args:
            op: Name of the operation.
            function: What computes it, from arrays.
            args: Arrays, traced or not, numbers, and lists of them.
            options: Further arguments, without traced arrays.
        """
        key = (op, tuple(map(_key, args)), tuple((name, _key(value)) for name, value in options.items()))
        if key not in self._known:
            with np.errstate(all="ignore"):
                value = np.asarray(function(*map(_concrete, args), **options))
            self._known[key] = self._added(Traced(self, op, function, args, options, value))
        return self._known[key]

    def _added(self, node: Traced) -> Traced:
        self.nodes.append(node)
        return node


class Traced:
    """An array that stands for its value.

    Attributes:
        trace: List that the operation is part of.
        index: Position in the list.
        op: Name of the operation, or the kind of an input.
        function: What computes it, from arrays; None for an input.
        args: Arguments of the operation.
        options: Further arguments.
        value: An example of the value.
    """

    __array_ufunc__ = None  # makes NumPy's arrays leave the operation to the methods below
    __slots__ = ("args", "function", "index", "op", "options", "trace", "value")

    def __init__(self, trace: Trace, op: str, function: Any, args: tuple[Any, ...], options: Any, value: Any) -> None:
        self.trace, self.index, self.op, self.function = trace, len(trace.nodes), op, function
        self.args, self.options, self.value = args, options, value

    shape = property(lambda self: self.value.shape)
    dtype = property(lambda self: self.value.dtype)
    ndim = property(lambda self: self.value.ndim)
    size = property(lambda self: self.value.size)
    device = property(lambda self: "cpu")
    T = property(lambda self: xp.permute_dims(self, tuple(reversed(range(self.ndim)))))

    def __getitem__(self, index: Any) -> Any:
        if index is Ellipsis:
            return self
        parts = index if isinstance(index, tuple) else (index,)
        if (
            self.op == "stack"
            and self.options.get("axis") == -1
            and parts[0] is Ellipsis
            and isinstance(parts[-1], int)
        ):
            return self.args[0][parts[-1]]
        return self.trace.call("getitem", lambda x, *parts: x[parts], self, *parts)

    def __len__(self) -> int:
        return self.shape[0]

    def astype(self, dtype: Any) -> Any:
        """``xp.astype``."""
        return xp.astype(self, dtype)

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise UntraceableError("the way through the network depends on the values of arrays")

    __bool__ = __int__ = __float__ = __index__ = __array__ = __setitem__ = item = tolist = _refuse

    __hash__ = object.__hash__


def _inputs_of(args: Any) -> list[Traced]:
    found: list[Traced] = []
    for arg in args:
        if isinstance(arg, Traced):
            found.append(arg)
        elif isinstance(arg, tuple | list):
            found += _inputs_of(arg)
    return found


def inputs_of(node: Traced) -> list[Traced]:
    """The traced arguments of a node's operation."""
    return _inputs_of(node.args)


def _concrete(arg: Any) -> Any:
    if isinstance(arg, Traced):
        return arg.value
    return type(arg)(map(_concrete, arg)) if isinstance(arg, tuple | list) else arg


def _key(arg: Any) -> Any:
    if isinstance(arg, Traced):
        return ("node", arg.index)
    if isinstance(arg, tuple | list):
        return (type(arg), *map(_key, arg))
    if isinstance(arg, np.ndarray):
        return (arg.shape, arg.dtype.str, arg.tobytes())
    if isinstance(arg, slice):
        return (slice, arg.start, arg.stop, arg.step)
    return (type(arg), arg)


# -- operations ----------------------------------------------------------------------------------------------------


def ufunc(name: str) -> Callable[..., Any]:
    """NumPy's elementwise function of a name, for traced and other arrays."""
    function = getattr(np, name)

    def call(*args: Any) -> Any:
        args = tuple(arg.item() if isinstance(arg, np.generic) else arg for arg in args)
        traced = _inputs_of(args)
        if not traced:
            with np.errstate(all="ignore"):
                return function(*args)
        return traced[0].trace.call(name, function, *args)

    return call


_add, _multiply, _subtract, _divide, _power = map(ufunc, ("add", "multiply", "subtract", "divide", "power"))
_sqrt, _maximum, _minimum = map(ufunc, ("sqrt", "maximum", "minimum"))


def _difference(x: Any, y: Any) -> Any:
    if x is y and isinstance(x, Traced) and x.dtype.kind in "iu":  # of floats it may be NaN
        return np.zeros(x.shape, x.dtype)
    return _subtract(x, y)


def _raised(x: Any, exponent: Any) -> Any:
    if isinstance(exponent, int | float) and exponent in (2, 0.5):
        return _multiply(x, x) if exponent == 2 else _sqrt(x)
    return _power(x, exponent)


_BINARY: dict[str, Callable[..., Any]] = {
    "add": _add,
    "sub": _difference,
    "mul": _multiply,
    "truediv": _divide,
    "floordiv": ufunc("floor_divide"),
    "mod": ufunc("remainder"),
    "pow": _raised,
    "matmul": ufunc("matmul"),
    "and": ufunc("bitwise_and"),
    "or": ufunc("bitwise_or"),
    "xor": ufunc("bitwise_xor"),
    "lshift": ufunc("left_shift"),
    "rshift": ufunc("right_shift"),
    "lt": ufunc("less"),
    "le": ufunc("less_equal"),
    "gt": ufunc("greater"),
    "ge": ufunc("greater_equal"),
    "eq": ufunc("equal"),
    "ne": ufunc("not_equal"),
}
_UNARY = {"neg": ufunc("negative"), "invert": ufunc("invert"), "abs": ufunc("absolute")}


def _operator(function: Callable[..., Any], turned: bool = False) -> Callable[..., Any]:
    if turned:
        return lambda self, other: function(other, self)
    return lambda self, *others: function(self, *others)


for _name, _function in {**_BINARY, **_UNARY}.items():
    setattr(Traced, f"__{_name}__", _operator(_function))
    if _name in _BINARY and _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(Traced, f"__r{_name}__", _operator(_function, turned=True))


def _reduction(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(x: Any, /, *, axis: Any = None, keepdims: bool = False, dtype: Any = None) -> Any:
        if not isinstance(x, Traced):
            return function(x, axis=axis, keepdims=keepdims, **({} if dtype is None else {"dtype": dtype}))
        axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
        axes = tuple(a % x.ndim for a in axes)
        return x.trace.call("reduce", _reduce, x, name, axes[0] if len(axes) == 1 else axes, keepdims, dtype)

    return call


def _reduce(x: Any, name: str, axis: Any, keepdims: bool, dtype: Any) -> Any:
    return getattr(np, name).reduce(x, axis=axis, dtype=dtype, keepdims=keepdims)


def _mean(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    total = xp.sum(x, axis=axis, keepdims=keepdims)
    return total / float(x.size // max(total.size, 1))


def _where(condition: Any, x: Any, y: Any, /) -> Any:
    if x is y:
        return x
    if isinstance(condition, Traced) and condition.op == "equal":
        a, b = condition.args
        # Where they are equal one is the other, so this is the second either way.
        if (a is y and b is x) or (a is x and b is y):
            return y
    return recorded("where", np.where, condition, x, y)


def _clip(x: Any, /, min: Any = None, max: Any = None) -> Any:
    x = x if min is None else _maximum(x, min)
    return x if max is None else _minimum(x, max)


def _astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    del device
    if not isinstance(x, Traced):
        return np.asarray(x).astype(dtype, copy=copy)
    return x if x.dtype == dtype else x.trace.call("astype", np.ndarray.astype, x, np.dtype(dtype))


def _take_along_axis(x: Any, indices: Any, /, *, axis: int = -1) -> Any:
    # What a tape of one step is read by.
    if isinstance(x, Traced) and x.shape[axis] == 1 and isinstance(indices, np.ndarray) and not indices.any():
        return x
    return recorded("take_along_axis", np.take_along_axis, x, indices, axis=axis)


def _argmax(x: Any, /, *, axis: Any = None, keepdims: bool = False) -> Any:
    if isinstance(x, Traced) and x.op == "astype" and x.args[0].dtype == np.bool_:
        x = x.args[0]  # the first True is the first 1
    # One number for all, such as the logarithm that makes probabilities of logits, moves no maximum.
    while isinstance(x, Traced) and x.op == "subtract" and _is_row(x.args[1], x.args[0], axis):
        x = x.args[0]
    return recorded("argmax", np.argmax, x, axis=axis, keepdims=keepdims)


def _is_row(one: Any, x: Any, axis: Any) -> bool:
    """True if an array has one number where ``x`` has an axis."""
    both = isinstance(one, Traced) and isinstance(x, Traced) and axis is not None and one.ndim == x.ndim
    return both and one.shape[axis] == 1 and one.size * x.shape[axis] == x.size


def _cumulative_sum(x: Any, /, *, axis: Any = None, **options: Any) -> Any:
    if isinstance(x, Traced) and x.dtype.kind == "f" and axis is not None and not options:
        return x.trace.call("accumulate", np.add.accumulate, x, axis)
    return recorded("cumulative_sum", numpy_namespace.cumulative_sum, x, axis=axis, **options)


def _shaped(name: str) -> Callable[..., Any]:
    function = getattr(numpy_namespace, name)

    def call(x: Any, /, *args: Any, **options: Any) -> Any:
        if not isinstance(x, Traced):
            return function(x, *args, **options)
        made = x.trace.call(name, function, x, *args, **options)
        return x if name in ("reshape", "broadcast_to") and made.shape == x.shape else made

    return call


def _like(name: str) -> Callable[..., Any]:
    function = getattr(np, name)

    def call(x: Any, /, *args: Any, dtype: Any = None, device: Any = None) -> Any:
        del device
        value = x.value if isinstance(x, Traced) else x
        made = function(value, *args, dtype=dtype)
        return np.ascontiguousarray(made) if made.ndim else made

    return call


def recorded(name: str, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """The result of a function, recorded if an argument is."""
    traced = _inputs_of(args)
    if not traced:
        with np.errstate(all="ignore"):
            return function(*args, **options)
    return traced[0].trace.call(name, function, *args, **options)


class Namespace:
    """The functions of the array API standard, for traced and other arrays."""

    def __getattr__(self, name: str) -> Any:
        """Any other function of the standard, or constant."""
        found = getattr(numpy_namespace, name)
        if isinstance(found, np.ufunc):
            found = ufunc(name)
        elif callable(found) and not isinstance(found, type):
            found = functools.partial(recorded, name, found)
        setattr(self, name, found)
        return found


xp: Any = Namespace()
for _name in ("reshape", "moveaxis", "permute_dims", "expand_dims", "squeeze", "broadcast_to"):
    setattr(xp, _name, _shaped(_name))
for _name in ("zeros_like", "ones_like", "full_like", "empty_like"):
    setattr(xp, _name, _like(_name))
for _name, _op in (
    ("sum", "add"),
    ("prod", "multiply"),
    ("max", "maximum"),
    ("min", "minimum"),
    ("any", "logical_or"),
    ("all", "logical_and"),
):
    setattr(xp, _name, _reduction(_op, getattr(numpy_namespace, _name)))
xp.mean, xp.where, xp.clip, xp.astype, xp.take_along_axis = _mean, _where, _clip, _astype, _take_along_axis
xp.argmax, xp.cumulative_sum = _argmax, _cumulative_sum
xp.asarray = lambda x, **options: x if isinstance(x, Traced) else numpy_namespace.asarray(x, **options)
xp.subtract, xp.pow = _difference, _raised
xp.isdtype = numpy_namespace.isdtype
