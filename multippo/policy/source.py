"""Source of a policy: a network's step, recorded, as Python code that needs NumPy alone.

The step is recorded twice, with two numbers of rows. What differs between the records is the size of the batch.
"""

from __future__ import annotations

import inspect
import keyword
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import optree
from gymnasium import spaces

from multippo.envs.actions import make_action_map
from multippo.envs.observations import make_observation_map
from multippo.networks.core.random_state import RandomState
from multippo.straight.code import cone
from multippo.straight.engine import windows
from multippo.straight.recording import Recording, Step, entries
from multippo.straight.tracing import Traced, UntraceableError, inputs_of, xp
from multippo.trees import tree_leaves, tree_map, tree_structure, tree_unflatten

_ROWS = 5, 7
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
_REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}
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
    make_observation_map(observation_space)
    leaves = space_tree(observation_space)
    example = tree_map(lambda space: np.zeros((1, *space.shape), _raw_type(space)), leaves)
    act = lambda actions: make_action_map(action_space, len(tree_leaves(actions)[0]), xp)(actions)  # noqa: E731
    see = lambda obs: tree_map(_seen, leaves, obs)  # noqa: E731
    recording = Recording(network, network.initialize_state(1), example, False, see, act, dtype)
    one, two = (recording.record(rows) for rows in _ROWS)
    if [node.op for node in one.nodes] != [node.op for node in two.nodes]:
        raise UntraceableError("the network goes another way with another number of rows")
    writer = _Writer(one, two)
    source = writer.source(recording, leaves)
    _check(source, one)
    return source


def space_tree(space: spaces.Space[Any]) -> Any:
    """The spaces of an observation's leaves, in a tree as the observation is one."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(space_tree, space.spaces))
    return space


def _raw_type(space: Any) -> np.dtype[Any]:
    return np.dtype(np.float32 if isinstance(space, spaces.MultiBinary) else space.dtype)


def _choices(space: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """First value and number of values of each choice; None for a space without choices."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.start]), np.array([space.n])
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.ravel(), space.nvec.ravel()
    return None


def _seen(space: Any, x: Any) -> Any:
    """A leaf of the observation as the network gets it: see ``envs.observations``."""
    if (choices := _choices(space)) is None:
        return x
    starts, sizes = choices
    values = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
    index = xp.reshape(x, (x.shape[0], len(sizes)))
    if len(sizes) > 1:
        index = xp.take(index, np.repeat(np.arange(len(sizes)), sizes), axis=1)
    return xp.astype(index == values.astype(space.dtype), np.float32)


class _Writer:
    """Writer of a network's two records as code."""

    def __init__(self, one: Step, two: Step) -> None:
        self._one, self._two = one, two
        self._weights: dict[str, np.ndarray] = {}
        self._names: dict[int, str] = {node.index: identifier(name) for name, node in one.weights.items()}
        self._helpers: dict[str, None] = {}

    def source(self, recording: Recording, leaves: Any) -> Source:
        one = self._one
        actions = tree_leaves(one.result[0])
        carry = self._needed(actions)
        accessors = optree.tree_accessors(recording.types)
        names = _short([[str(_entry(entry)) for entry in accessors[k]] for k in carry])
        held = dict(zip(names, carry, strict=True))
        noise = any("threefry" in node.op for node in cone([*actions, *(one.after[k] for k in carry)]))

        accessors = optree.tree_accessors(leaves)
        seen = _distinct([identifier(".".join(["observation", *map(str, a.path)])) for a in accessors])
        given = {node.index: name for name, node in zip(seen, one.obs, strict=True)}
        given |= {one.carry[k].index: f'carry["{name}"]' for name, k in held.items()}
        lines, found = self._lines([*actions, *(one.after[k] for k in carry)], given)
        result = _tree_text(tree_unflatten(tree_structure(one.result[0]), found[: len(actions)]))
        nodes = cone([*actions, *(one.after[k] for k in carry)], one.fixed)
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
        start += _indented(_dict_lines("return ", self._first(recording, held)))
        act = self._act(leaves, accessors, seen)
        parts = ["\n".join(part) + "\n" for part in (start, reset, step, act)]
        helpers = [_HELPERS[name].lstrip("\n") for name in self._helpers]
        body = "\n\n".join([_ROWS_OF.lstrip("\n"), *helpers, *parts])
        head = [f'{name} = W["{name}"]  # {_shape_text(x.shape)} {x.dtype}' for name, x in self._weights.items()]
        return Source(head, body, self._weights, held, noise)

    def _needed(self, actions: list[Traced]) -> list[int]:
        """Positions of the carry's leaves from which actions follow, in this step or in a later one."""
        one, needed = self._one, set[int]()
        while True:
            ahead = [*actions, *(one.after[k] for k in needed)]
            above = {node.index for node in cone(ahead)}
            known = {node.index for node in one.after}
            found = {k for k, node in enumerate(one.carry) if node.index in above}
            for k in needed:
                inside = cone([one.reset[k]], known)
                below = {x.index for x in (one.reset[k], *(x for node in inside for x in inputs_of(node)))}
                found |= {j for j, node in enumerate(one.after) if node.index in below}
            if found <= needed:
                return sorted(needed)
            needed |= found

    def _first(self, recording: Recording, held: dict[str, int]) -> dict[str, str]:
        """Code of the first carry by name; random states begin with keys of their own."""
        start = recording.twin.initialize_state(1)
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

    def _act(self, leaves: Any, accessors: list[Any], seen: Sequence[str]) -> list[str]:
        """Code of ``act``, for one observation or a batch."""
        lines = ["def act(observation, carry=None, seed=0):", f'    """{_ACT}"""']
        for name, accessor, space in zip(seen, accessors, tree_leaves(leaves), strict=True):
            arguments = f"{accessor.codify('observation')}, {space.shape}, np.{_raw_type(space)}"
            if (choices := _choices(space)) is not None:
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
        lines.append(f"    single = np.ndim({first}) == {len(space.shape)}")
        return [*lines, f"    return ({alone} if single else action), carry"]

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
            parts = [self._operand(a, b, texts, True) for a, b in both]
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
            if dtype is None and name in _REDUCTIONS and (node.dtype == node.args[0].dtype or name != "add"):
                return f"{text(0, _ATOM)}.{_REDUCTIONS[name]}({axis}{keep})", _ATOM
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
            parts = [self._operand(a, b, texts, True)[0] for a, b in both]
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
        if value.shape == other.shape:
            if not np.array_equal(value, other, equal_nan=value.dtype.kind == "f"):
                raise UntraceableError("an array of numbers depends on the number of rows")
            return self._weight(name, value)
        axis = next(k for k, pair in enumerate(zip(value.shape, other.shape, strict=True)) if pair[0] != pair[1])
        row = value.take([0], axis)
        if not np.array_equal(np.broadcast_to(row, value.shape), value):
            raise UntraceableError("an array of numbers depends on the number of rows")
        text = self._weight(name, row)
        return text if broadcasts else f"np.repeat({text}, {_size(value.shape[axis], other.shape[axis])}, axis={axis})"

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


def _entry(entry: Any) -> Any:
    return getattr(entry, "field", None) or entry.entry


def identifier(path: str) -> str:
    """A Python name for a dotted path, without the names of containers' lists."""
    words = [word for word in path.split(".") if word not in ("layers", "components")]
    name = re.sub(r"\W", "_", "_".join(words))
    name = f"layer_{name}" if not name or name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def _literal(node: Any) -> str | None:
    """The number of which an array that is no result of an operation consists; None if it has several."""
    value = node.value if isinstance(node, Traced) and node.op == "constant" else node
    if not isinstance(value, np.ndarray) or not value.size or np.any(value != value.flat[0]):
        return None
    return repr(value.flat[0].item())


def _short(paths: list[list[str]]) -> list[str]:
    """Ends of paths as names, as short as tells them apart."""
    sizes = range(1, max(map(len, paths), default=0) + 1)
    ends = ([identifier(".".join(path[-size:])) for path in paths] for size in sizes)
    return next((names for names in ends if len(set(names)) == len(names)), [])


def _distinct(names: list[str]) -> list[str]:
    return [name if names.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(names)]


def _size(one: int, two: int) -> str:
    """A number of the code; one that grows with the rows is a multiple of the batch."""
    if one == two:
        return repr(one)
    times, rest = divmod(one, _ROWS[0])
    if rest or times * _ROWS[1] != two:
        raise UntraceableError("a size depends on the number of rows")
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
    items = [f'"{name}": {text}' for name, text in parts.items()]
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
