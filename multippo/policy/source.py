"""Source of a policy: a network's step, recorded, as Python code that needs NumPy alone."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import optree
from gymnasium import spaces

from multippo.networks.core.random_state import RandomState
from multippo.policy.record import REDUCTIONS, Record, choices_of, identifier, raw_type, record, repeated, times_batch
from multippo.straight.code import cone
from multippo.straight.engine import windows
from multippo.straight.recording import Step, entries
from multippo.straight.tracing import Traced, UntraceableError, inputs_of
from multippo.trees import tree_leaves, tree_structure, tree_unflatten

_LINE = 100
_INFIX = {  # operators, and how closely they bind
    "multiply": ("*", 7),
    "divide": ("/", 7),
    "floor_divide": ("//", 7),
    "remainder": ("%", 7),
    "add": ("+", 6),
    "subtract": ("-", 6),
    "left_shift": ("<<", 5),
    "right_shift": (">>", 5),
    "bitwise_and": ("&", 4),
    "bitwise_xor": ("^", 3),
    "bitwise_or": ("|", 2),
    "less": ("<", 1),
    "less_equal": ("<=", 1),
    "greater": (">", 1),
    "greater_equal": (">=", 1),
    "equal": ("==", 1),
    "not_equal": ("!=", 1),
}
_ATOM = 9
_SILENT = {"exp", "expm1", "log", "log1p", "log2", "logaddexp", "divide", "power", "sqrt", "cosh", "sinh", "tan"}
"""Operations of which NumPy warns where their result is infinite or not a number."""

_ROWS_OF = '''
def rows(x, shape, dtype, low=None, high=None):
    """An observation as a batch of one; a batch as it is."""
    x = np.asarray(x)
    if x.dtype != dtype:
        x = x.astype(dtype, casting="same_kind")
    if low is not None and (np.any(x < low) or np.any(x > high)):
        raise ValueError(f"the observation {x} is not between {low} and {high}")
    if x.shape == shape:
        return x[None]
    if x.shape[1:] == shape:
        return x
    raise ValueError(f"the observation has shape {x.shape}; expected {shape}, or (batch, *{shape})")
'''
_THREEFRY = '''
@np.errstate(over="ignore")
def threefry(k0, k1, x0, x1):
    """The generator of the noise, Threefry-2x32 (Salmon et al., 2011): two words of 32 random bits."""
    keys = (k0, k1, k0 ^ k1 ^ np.uint32(0x1BD11BDA))
    x0, x1 = x0 + k0, x1 + k1
    for group in range(5):
        for distance in ((13, 15, 26, 6), (17, 29, 16, 24))[group % 2]:
            x0 = x0 + x1
            x1 = (x1 << np.uint32(distance) | x1 >> np.uint32(32 - distance)) ^ x0
        x0, x1 = x0 + keys[(group + 1) % 3], x1 + keys[(group + 2) % 3] + np.uint32(group + 1)
    return np.stack(np.broadcast_arrays(x0, x1))


def random_keys(seed, place, batch):
    """Keys [batch, 2] of the noise at one place of the network."""
    key = np.array([seed >> 32, seed & 0xFFFFFFFF], np.uint32)
    for count in (0, place, np.arange(batch, dtype=np.uint32)):
        key = threefry(key[0], key[1], np.uint32(0), np.uint32(count))
    return np.ascontiguousarray(key.T)
'''
_ERF = '''
def erf(x):
    """The error function."""
    return np.vectorize(math.erf, otypes=[np.float64])(x)
'''
_HELPERS = {"threefry": _THREEFRY, "erf": _ERF, "windows": "\n" + inspect.getsource(windows)}


class Source(NamedTuple):
    """Source of a policy.

    Attributes:
        head: Lines that name the weights, which are read from ``W``.
        body: Functions ``start``, ``reset``, ``step`` and ``act``.
        weights: Arrays by name.
        carry: Positions of the carry's leaves that the policy needs, by name.
        noise: True if the policy draws.
    """

    head: list[str]
    body: str
    weights: dict[str, np.ndarray]
    carry: dict[str, int]
    noise: bool

    def functions(self) -> dict[str, Any]:
        """The functions, made from the body."""
        namespace: dict[str, Any] = {"np": np, "math": math, "Any": Any, **self.weights}
        exec(compile(self.body, "<policy>", "exec"), namespace)
        return namespace


def write(
    network: Any, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], dtype: Any = None
) -> Source:
    """Source of the policy of a network in its present mode.

    Args:
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        observation_space: Space of one observation, as the environment gives it.
        action_space: Space of one action.
        dtype: Floating-point type; by default the network's own.

    Raises:
        UntraceableError: If the network can't be recorded, or its source computes something else.
        TypeError: If the network has no twin.
        ValueError: If a space is not supported.
    """
    recorded = record(network, observation_space, action_space, dtype)
    source = _Writer(recorded).source()
    _check(source, recorded.one)
    return source


class _Writer:
    """Writer of a network's two records as code."""

    def __init__(self, recorded: Record) -> None:
        self._record, self._one, self._two = recorded, recorded.one, recorded.two
        self._weights: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {node.index: identifier(name) for name, node in self._one.weights.items()}
        self._helpers: dict[str, None] = {}

    def source(self) -> Source:
        one, held, seen = self._one, self._record.carry, self._record.observation
        actions, names = tree_leaves(one.result[0]), list(held)
        noise = any("threefry" in node.op for node in cone(self._record.targets))

        given = {node.index: name for name, node in zip(seen, one.obs, strict=True)}
        given |= {one.carry[k].index: f'carry["{name}"]' for name, k in held.items()}
        lines, found = self._lines(self._record.targets, given)
        result = _tree_text(tree_unflatten(tree_structure(one.result[0]), found[: len(actions)]))
        nodes = cone(self._record.targets, one.fixed)
        step = [f"def step(carry, {', '.join(seen)}):", '    """A step of a batch: action and next carry."""']
        if any(node.op in _SILENT for node in nodes):
            step.insert(0, '@np.errstate(all="ignore")')
        step += _with_batch([*lines, *self._returned(result, names, found[len(actions) :])], f"len({seen[0]})")

        given = {one.after[k].index: f'carry["{name}"]' for name, k in held.items()}
        again = {name: k for name, k in held.items() if one.reset[k] is not one.after[k]}
        targets = [one.reset[k] for k in again.values() if _literal(one.reset[k]) is None]
        lines, found = self._lines(targets, given)
        texts = dict(zip((node.index for node in targets), found, strict=True))
        kept = {name: f'carry["{name}"]' for name in names}
        for name, k in again.items():
            text = _literal(one.reset[k]) or texts[one.reset[k].index]
            mask = "done" if one.after[k].ndim == 1 else f"done.reshape({(-1, *(1,) * (one.after[k].ndim - 1))})"
            kept[name] = f'np.where({mask}, {text}, carry["{name}"])'
        reset = ["def reset(carry, done):", '    """The carry where some episodes (True in done) begin again."""']
        if again:
            body = ["done = np.asarray(done, bool).reshape(-1)", *lines, *_dict_lines("return ", kept)]
            reset += _with_batch(body, "np.size(done)")
        else:
            reset.append("    return carry")

        start = ["def start(batch=1, seed=0):", '    """The carry at the start of an episode."""']
        start += _indented(_dict_lines("return ", self._first(held)))
        act = self._act(self._record.spaces, seen)
        parts = ["\n".join(part) + "\n" for part in (start, reset, step, act)]
        helpers = [_HELPERS[name].lstrip("\n") for name in self._helpers]
        body = "\n\n".join([_ROWS_OF.lstrip("\n"), *helpers, *parts])
        head = [f'{name} = W["{name}"]  # {_shape_text(x.shape)} {x.dtype}' for name, x in self._weights.items()]
        return Source(head, body, self._weights, held, noise)

    def _first(self, held: dict[str, int]) -> dict[str, str]:
        """Code of the first carry by name; random states begin with keys of their own."""
        start = self._record.twin.initialize_state(1)
        texts: list[Any] = []
        place = 0
        for entry in entries(start):
            if isinstance(entry, RandomState):
                texts += [f"random_keys(seed, {place}, batch)", "np.zeros(batch, np.uint32)"]
                place += 1
            else:
                texts += [np.asarray(leaf) for leaf in tree_leaves(entry)]
        found: dict[str, str] = {}
        for name, k in held.items():
            text = texts[k]
            if isinstance(text, str):
                self._helpers["threefry"] = None
            elif not text.any():
                text = f"np.zeros({_shape_text(text.shape[1:], ['batch'])}, np.{text.dtype})"
            else:
                text = f"np.repeat({self._weight(f'start_{name}', text)}, batch, axis=0)"
            found[name] = text
        return found

    def _act(self, leaves: Any, seen: Sequence[str]) -> list[str]:
        """Code of ``act``, for one observation or a batch."""
        lines, accessors = (
            ["def act(observation, carry=None, seed=0):", f'    """{_ACT}"""'],
            optree.tree_accessors(leaves),
        )
        for name, accessor, space in zip(seen, accessors, tree_leaves(leaves), strict=True):
            arguments = f"{accessor.codify('observation')}, {space.shape}, np.{raw_type(space)}"
            if (choices := choices_of(space)) is not None:
                low, high = choices[0], choices[0] + choices[1] - 1
                low, high = (x.reshape(space.shape).tolist() for x in (low, high))
                arguments += f", {low}, {high}"
            lines.append(f"    batch_{name} = rows({arguments})")
        lines += ["    if carry is None:", f"        carry = start(len(batch_{seen[0]}), seed)"]
        first, space = accessors[0].codify("observation"), tree_leaves(leaves)[0]
        lines.append(f"    action, carry = step(carry, {', '.join(f'batch_{name}' for name in seen)})")
        result = self._one.result[0]
        paths = [accessor.codify("action") + "[0]" for accessor in optree.tree_accessors(result)]
        alone = _tree_text(tree_unflatten(tree_structure(result), paths))
        return [*lines, f"    return ({alone} if np.ndim({first}) == {len(space.shape)} else action), carry"]

    # -- expressions

    def _lines(self, targets: list[Traced], given: dict[int, str]) -> tuple[list[str], list[str]]:
        """Lines that compute some nodes, and an expression for each of them."""
        texts = {index: (text, _ATOM) for index, text in given.items()}
        nodes = [node for node in cone(targets, texts) if node.index not in self._one.fixed]
        uses: dict[int, int] = {}
        for one in [*targets, *(x for node in nodes for x in inputs_of(node))]:
            uses[one.index] = uses.get(one.index, 0) + 1
        lines: list[str] = []
        for node in nodes:
            text, binding = self._expression(node, self._two.nodes[node.index], texts)
            if uses[node.index] > 1 or len(text) > _LINE - 30:
                name = f"x{len(lines)}"
                shape = [_size(*pair) for pair in zip(node.shape, self._two.nodes[node.index].shape, strict=True)]
                lines.append(f"{name} = {text}  # {_shape_text(shape)}")
                text, binding = name, _ATOM
            texts[node.index] = text, binding
        return lines, [self._operand(node, self._two.nodes[node.index], texts, False)[0] for node in targets]

    def _operand(self, node: Any, other: Any, texts: dict[int, tuple[str, int]], broadcasts: bool) -> tuple[str, int]:
        """An argument as text, and how closely its operator binds; ``other`` is that of the second record."""
        if isinstance(node, Traced):
            if node.index in texts:
                return texts[node.index]
            return self._constant(node.value, other.value, broadcasts, self._name(node)), _ATOM
        if isinstance(node, np.ndarray):
            return self._constant(node, other, broadcasts, "constant"), _ATOM
        if isinstance(node, tuple | list):
            pairs = zip(node, other, strict=True)
            return _shape_text([self._operand(a, b, texts, False)[0] for a, b in pairs]), _ATOM
        if isinstance(node, slice):
            ends = ((node.start, other.start), (node.stop, other.stop))
            text = ":".join("" if a is None else _size(a, b) for a, b in ends)
            return text + ("" if node.step is None else f":{node.step}"), _ATOM
        if node is Ellipsis:
            return "...", _ATOM
        if isinstance(node, float | np.floating):
            return (repr(float(node)) if math.isfinite(node) else f'float("{float(node)}")'), _ATOM
        if isinstance(node, int | np.integer) and not isinstance(node, bool):
            return _size(int(node), int(other)), _ATOM
        if isinstance(node, np.dtype | type):
            return f"np.{np.dtype(node).name}".replace("np.bool", "np.bool_"), _ATOM
        if node is None or isinstance(node, bool | str):
            return repr(node), _ATOM
        raise UntraceableError(f"no code can be written for {node!r}")

    def _expression(self, node: Traced, other: Traced, texts: dict[int, tuple[str, int]]) -> tuple[str, int]:
        """The code of a node."""
        both = list(zip(node.args, other.args, strict=True))
        text = lambda k, least=0: self._bound(self._operand(both[k][0], both[k][1], texts, False), least)  # noqa: E731
        op = node.op
        if isinstance(node.function, np.ufunc):
            parts = [_number(node, k) or self._operand(*pair, texts, True) for k, pair in enumerate(both)]
            if op == "matmul":
                products = all(x.ndim == 2 for x in node.args) and node.args[0].dtype == node.args[1].dtype
                return f"np.{'dot' if products else 'matmul'}({parts[0][0]}, {parts[1][0]})", _ATOM
            if op in _INFIX:
                sign, binding = _INFIX[op]
                least = binding + (binding == 1)
                return f"{self._bound(parts[0], least)} {sign} {self._bound(parts[1], binding + 1)}", binding
            return f"np.{op}({', '.join(part for part, _ in parts)})", _ATOM
        if op == "reduce":
            _, name, axis, keepdims, dtype = node.args
            keep = ", keepdims=True" if keepdims else ""
            if dtype is None and name in REDUCTIONS and (node.dtype == node.args[0].dtype or name != "add"):
                return f"{text(0, _ATOM)}.{REDUCTIONS[name]}({axis}{keep})", _ATOM
            typed = "" if dtype is None else f", dtype=np.{np.dtype(dtype).name}"
            return f"np.{name}.reduce({text(0)}, {axis}{typed}{keep})", _ATOM
        if op == "getitem":
            parts = [text(k) for k in range(1, len(both))]
            return f"{text(0, _ATOM)}[{', '.join(parts)}]", _ATOM
        if op == "astype":
            return f"{text(0, _ATOM)}.astype({text(1)})", _ATOM
        if op == "reshape":
            return f"{text(0, _ATOM)}.reshape({text(1)})", _ATOM
        if op == "argmax" and not node.options["keepdims"]:
            return f"{text(0, _ATOM)}.argmax({node.options['axis']})", _ATOM
        if op == "threefry":
            self._helpers[op] = None
            words = [_literal(arg) or self._operand(arg, arg2, texts, True)[0] for arg, arg2 in both]
            return f"threefry({', '.join(words)})", _ATOM
        if op == "accumulate":
            return f"np.add.accumulate({text(0)}, {text(1)})", _ATOM
        if op == "where":
            parts = [(_number(node, k) or self._operand(*pair, texts, True))[0] for k, pair in enumerate(both)]
            return f"np.where({', '.join(parts)})", _ATOM
        parts = [text(k) for k in range(len(both))]
        parts += [
            f"{name}={self._operand(value, other.options[name], texts, False)[0]}"
            for name, value in node.options.items()
            if not (name == "keepdims" and value is False)
        ]
        name = {"concat": "concatenate", "permute_dims": "transpose"}.get(op, op)
        if op in _HELPERS:
            self._helpers[op] = None
        elif not callable(getattr(np, name, None)):
            raise UntraceableError(f"no code can be written for the operation {op!r}")
        return f"{name if op in _HELPERS else f'np.{name}'}({', '.join(parts)})", _ATOM

    @staticmethod
    def _bound(operand: tuple[str, int], least: int) -> str:
        text, binding = operand
        return text if binding >= least else f"({text})"

    def _constant(self, value: np.ndarray, other: np.ndarray, broadcasts: bool, name: str) -> str:
        """An array of the code; one that grows with the batch is a row, repeated."""
        row, axis = repeated(value, other)
        text = self._weight(name, row)
        if axis is None or broadcasts:
            return text
        return f"np.repeat({text}, {_size(value.shape[axis], other.shape[axis])}, axis={axis})"

    def _weight(self, name: str, value: np.ndarray) -> str:
        """Name of an array of the code; equal ones have one."""
        for known, array in self._weights.items():
            if array.dtype == value.dtype and np.array_equal(array, value) and known.startswith(name):
                return known
        names = [name, *(f"{name}_{k}" for k in range(2, 10_000))]
        name = next(one for one in names if one not in self._weights)
        self._weights[name] = np.array(value)
        return name

    def _name(self, node: Traced) -> str:
        """Name of an array that follows from weights: that of its layer."""
        if node.index in self._names:
            return self._names[node.index]
        above = [self._names[one.index] for one in cone([node]) if one.index in self._names]
        words = [name.split("_") for name in above] or [["constant"]]
        size = next((k for k, column in enumerate(zip(*words, strict=False)) if len(set(column)) > 1), None)
        kind = ("number", "vector", "matrix")[min(node.ndim, 2)]
        return "_".join([*words[0][: len(words[0]) - 1 if size is None else size], kind])

    def _returned(self, result: str, names: Iterable[str], found: list[str]) -> list[str]:
        return [f"action = {result}", *_dict_lines("return action, ", dict(zip(names, found, strict=True)))]


_ACT = "Action, and carry of the next step; carry=None at the start of an episode, with the noise of a seed."


def _literal(node: Any) -> str | None:
    """The finite number of which an array that is not an operation's result consists; None if it has several."""
    value = node.value if isinstance(node, Traced) and node.op == "constant" else node
    if not isinstance(value, np.ndarray) or not value.size or np.any(value != value.flat[0]):
        return None
    if not np.isfinite(value.flat[0]):
        return None
    return repr(value.flat[0].item())


def _number(node: Traced, k: int) -> tuple[str, int] | None:
    """An array of one number among an operation's arguments as that number, in its type; None for other arguments."""
    arg, text = node.args[k], _literal(node.args[k])
    others = [x for j, x in enumerate(node.args) if j != k and hasattr(x, "dtype")]
    same = others and np.broadcast_shapes(*(x.shape for x in others)) == node.shape
    if text is None or not same or node.op == "matmul":
        return None
    plain = any(x.dtype == arg.dtype and _literal(x) is None for x in others)
    return (text if plain else f"np.{arg.dtype}({text})"), _ATOM


def _size(one: int, two: int) -> str:
    """A number of the code; one that grows with the rows is a multiple of the batch."""
    if one == two:
        return repr(one)
    times = times_batch(one, two)
    return "batch" if times == 1 else f"{times} * batch"


def _shape_text(shape: Sequence[Any], lead: Sequence[str] = ()) -> str:
    sizes = [*lead, *map(str, shape)]
    return f"({', '.join(sizes)}{',' if len(sizes) == 1 else ''})"


def _tree_text(tree: Any) -> str:
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{key!r}: {_tree_text(part)}" for key, part in tree.items()) + "}"
    if isinstance(tree, tuple | list):
        return "(" + "".join(f"{_tree_text(part)}, " for part in tree) + ")"
    return tree


def _dict_lines(head: str, parts: dict[str, str]) -> list[str]:
    """A line with a dict, or several lines where it would be too long."""
    changed = {name: text for name, text in parts.items() if text != f'carry["{name}"]'}
    items = ["**carry"] * (len(changed) < len(parts)) + [f'"{name}": {text}' for name, text in changed.items()]
    line = head + "{" + ", ".join(items) + "}"
    return [line] if len(line) <= _LINE else [head + "{", *(f"    {item}," for item in items), "}"]


def _indented(lines: Iterable[str]) -> list[str]:
    return [f"    {line}" for line in lines]


def _with_batch(lines: list[str], size: str) -> list[str]:
    """Lines of a function; the size of the batch comes first where they need it."""
    needs = any(re.search(r"\bbatch\b", line.partition("  # ")[0]) for line in lines)
    return _indented([*([f"batch = {size}"] if needs else []), *lines])


def _check(source: Source, one: Step) -> None:
    """Raises an UntraceableError unless a step of the source computes what was recorded."""
    carry = {name: one.carry[k].value for name, k in source.carry.items()}
    try:
        actions, after = source.functions()["step"](carry, *(node.value for node in one.obs))
    except (ArithmeticError, AttributeError, LookupError, NameError, SyntaxError, TypeError, ValueError) as error:
        raise UntraceableError(f"its source does not run: {error!r}") from error
    expected = [*tree_leaves(one.result[0]), *(one.after[k] for k in source.carry.values())]
    for found, node in zip([*tree_leaves(actions), *after.values()], expected, strict=True):
        if found.dtype != node.dtype or not np.allclose(found, node.value, 1e-5, 1e-5, equal_nan=True):
            raise UntraceableError(f"its source computes {found.ravel()[:4]}, and not {node.value.ravel()[:4]}")
