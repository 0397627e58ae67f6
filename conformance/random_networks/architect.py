"""Descriptions of random networks, made of random choices."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from typing import Any

from .choices import Choices
from .composition import Composition, Description

Made = tuple[Description, Any]
"""A description, and the output shape of its module."""

_NAMES = ("b", "a", "keys", "a.b", "0")
"""Names of children: out of alphabetical order, one with a dot, one a dict's method, one a number."""
_DEPTH = 4
"""Largest number of levels of nesting, as measured by ``composition.depth``."""
_ACTIVATIONS = (None, "tanh", "relu", "swish", "gelu", "sigmoid")
_WEIGHTS = (0.0, 0.1)


@dataclasses.dataclass(frozen=True)
class _Sampled:
    """Output of a sampler in a shape, which only a Flattener can follow: so many numbers."""

    numbers: int


def compose(choices: Choices, wrong: str | None = None) -> Composition:
    """Composes a network of any modules of the library, nested up to four deep, its inputs and ends of episodes.

    Depth is that of ``composition.depth``, which leaves out modules that only join another to its place.

    Args:
        choices: Source of the choices.
        wrong: A kind that is wrong on purpose; the network then has one such module, and may be nested deeper.
    """
    inputs = _shapes(choices)
    if wrong is not None:
        network = _broken(choices, inputs, wrong)
    elif choices.number(0, 3) < 3:
        network = _modules(choices, inputs, _DEPTH)[0]
    else:
        network = _adapters(choices, inputs)
    num_steps, num_envs = choices.number(1, 8), choices.number(1, 5)
    script = tuple("".join(choices.pick(".T") for _ in range(num_steps)) for _ in range(num_envs))
    return Composition(network, inputs, script, choices.number(0, 99))


def _shapes(choices: Choices, levels: int = 2) -> Any:
    """Features, rarely an image, or a dict of either."""
    kind = choices.number(0, 5 if levels else 3)
    if kind < 3:
        return (choices.number(1, 4),)
    if kind == 3:
        return (choices.number(2, 4), choices.number(2, 3), choices.number(1, 2))
    return {name: _shapes(choices, levels - 1) for name in choices.several(_NAMES, 3)}


def _modules(choices: Choices, shape: Any, depth: int) -> Made:
    """Any module that takes inputs of a shape."""
    return choices.part(_module, shape, depth)


def _module(choices: Choices, shape: Any, depth: int) -> Made:
    return choices.pick(_options(shape, depth))(choices, shape, depth)


def _options(shape: Any, depth: int) -> list[Callable[[Choices, Any, int], Made]]:
    options: list[Callable[[Choices, Any, int], Made]] = [_flatteners]
    if not _holds_samples(shape):
        options += [_delays, _normalizers, _scales] if _are_told_apart(shape) else [_delays, _scales]
    if isinstance(shape, dict):
        options.append(_filters)
    elif not isinstance(shape, _Sampled):
        options.append(_lifts)
        options += [_convolutions, _moves] if len(shape) == 3 else [*_OF_FEATURES]
    if depth > 1:
        # Containers are offered several times, so that most networks are deep.
        often = 6 if depth == _DEPTH else 2
        options += often * [_sequences, _parallels, _merges]
        if isinstance(shape, dict):
            options += often * [_maps, _concats, _graphs]
        elif _is_features(shape):
            options += often * [_sequences, _residuals, _graphs]
    return options


def _holds_samples(shape: Any) -> bool:
    if isinstance(shape, dict):
        return any(_holds_samples(part) for part in shape.values())
    return isinstance(shape, _Sampled)


def _are_told_apart(shape: Any) -> bool:
    """False if two leaves go by one name, which a Normalizer refuses, as in ``{"a": {"b": ...}, "a.b": ...}``."""
    names = list(_names(shape))
    return len(set(names)) == len(names)


def _names(shape: Any, prefix: str = "") -> Iterator[str]:
    if not isinstance(shape, dict):
        yield prefix
        return
    for key, part in shape.items():
        yield from _names(part, f"{prefix}.{key}")


def _numbers(shape: Any) -> int:
    if isinstance(shape, dict):
        return sum(_numbers(part) for part in shape.values())
    return shape.numbers if isinstance(shape, _Sampled) else math.prod(shape)


def _is_features(shape: Any) -> bool:
    return isinstance(shape, tuple) and len(shape) == 1


# -- layers of any input


def _flatteners(choices: Choices, shape: Any, depth: int) -> Made:
    if isinstance(shape, dict) and choices.flag():
        return ("Flattener", 1), {name: (_numbers(part),) for name, part in shape.items()}
    return ("Flattener", 0), (_numbers(shape),)


def _delays(choices: Choices, shape: Any, depth: int) -> Made:
    return ("Delay", shape, choices.number(0, 9), choices.pick([0.0, 0.5])), shape


def _normalizers(choices: Choices, shape: Any, depth: int) -> Made:
    return ("Normalizer", shape), shape


def _scales(choices: Choices, shape: Any, depth: int) -> Made:
    return ("Scale", choices.pick([0.5, -1.5])), shape


def _moves(choices: Choices, shape: Any, depth: int) -> Made:
    source, destination = choices.number(0, 2), choices.number(0, 5) - 3
    sizes = list(shape)
    sizes.insert(destination % 3, sizes.pop(source))
    return ("MoveAxis", source, destination), tuple(sizes)


def _lifts(choices: Choices, shape: Any, depth: int) -> Made:
    return ("Lift",), shape


# -- layers of features, or of an image


def _denses(choices: Choices, shape: Any, depth: int) -> Made:
    size = choices.number(1, 4)
    if choices.number(0, 4) == 4:
        return ("LiftedDense", shape[0], size), (size,)
    return ("Dense", shape[0], size, choices.pick(_ACTIVATIONS)), (size,)


def _recurrent(choices: Choices, shape: Any, depth: int) -> Made:
    kind, size, initial = choices.pick(["LSTM", "GRU", "RNN"]), choices.number(1, 4), choices.flag()
    if kind != "RNN":
        return (kind, shape[0], size, initial), (size,)
    tau = choices.pick([None, 1.5, 4.0])
    trained = tau is not None and choices.flag()
    return ("RNN", shape[0], size, choices.pick(_ACTIVATIONS), tau, trained, initial), (size,)


def _norms(choices: Choices, shape: Any, depth: int) -> Made:
    return choices.pick([("LayerNorm", shape[0]), ("Dropout", 0.3)]), shape


def _splitters(choices: Choices, shape: Any, depth: int) -> Made:
    names = choices.several(_NAMES, min(3, shape[0]))
    left = shape[0] - len(names)
    sizes: dict[str, int] = {}
    for name in names:
        extra = choices.number(0, left)
        sizes[name], left = 1 + extra, left - extra
    return ("Splitter", *sizes.items()), {name: (size,) for name, size in sizes.items()}


def _codes(choices: Choices, shape: Any, depth: int) -> Made:
    latent, weight = choices.number(1, 3), choices.pick(_WEIGHTS)
    code: Description = ("VariationalBottleneck", latent, weight)
    if choices.flag():
        options = (choices.pick(_WEIGHTS), choices.flag(), choices.pick([0.0, 0.9]))
        code = ("AR1VariationalBottleneck", latent, weight, *options)
    return ("Sequential", _head(shape, 2 * latent), code), (latent,)


def _samplers(choices: Choices, shape: Any, depth: int) -> Made:
    """Sampler that takes features to an action."""
    kind = choices.pick(["NormalTanh", "Normal", "fixed Normal", "Categorical", "MultiCategorical", "Bernoulli"])
    weight, action = choices.pick(_WEIGHTS), choices.pick([(1,), (2,), (2, 1)])
    size = math.prod(action)
    sampler, inputs, numbers = {
        "NormalTanh": (("NormalTanhSampler", weight, action), 2 * size, size),
        "Normal": (("NormalSampler", weight, action, True), 2 * size, size),
        "fixed Normal": (("NormalSampler", weight, action, False), size, size),
        "Categorical": (("CategoricalSampler", weight), 3, 1),
        "MultiCategorical": (("MultiCategoricalSampler", weight, (2, 3)), 5, 2),
        "Bernoulli": (("BernoulliSampler", weight, action), size, size),
    }[kind]
    return ("Sequential", _head(shape, inputs), sampler), _Sampled(numbers + 2)


def _convolutions(choices: Choices, shape: Any, depth: int) -> Made:
    channels, padding, stride = choices.number(1, 3), choices.pick(["valid", "same"]), choices.pick(_STRIDES)
    kernel = tuple(choices.number(1, min(3, side)) for side in shape[:2])
    if padding == "same":
        sides = [-(-side // step) for side, step in zip(shape, stride, strict=False)]
    else:
        sides = [(side - k) // step + 1 for side, k, step in zip(shape, kernel, stride, strict=False)]
    return ("Conv", shape[2], channels, kernel, stride, padding), (*sides, channels)


_STRIDES = ((1, 1), (2, 1), (2, 2))
_OF_FEATURES = (_denses, _recurrent, _recurrent, _norms, _splitters, _codes, _samplers)


def _filters(choices: Choices, shape: Any, depth: int) -> Made:
    first = choices.pick(list(shape))
    path, part = (first,), shape[first]
    while isinstance(part, dict) and choices.flag():
        key = choices.pick(list(part))
        path, part = (*path, key), part[key]
    if choices.flag():
        return ("Filter", {"kept": path, "whole": first}), {"kept": part, "whole": shape[first]}
    return ("Filter", path), part


# -- containers


def _sequences(choices: Choices, shape: Any, depth: int) -> Made:
    layers: list[Description] = []
    while not layers or (len(layers) < 4 and choices.number(0, 2)):
        layer, shape = _modules(choices, shape, depth - 1)
        layers.append(layer)
    return ("Sequential", *layers), shape


def _features(choices: Choices, shape: Any, depth: int) -> Made:
    """Module that puts out features, with a Flattener behind where need be."""
    layer, out = _modules(choices, shape, depth)
    if _is_features(out):
        return layer, out
    return ("Sequential", layer, ("Flattener", 0)), (_numbers(out),)


def _head(shape: Any, size: int) -> Description:
    return ("Dense", shape[0], size, None)


def _sized(choices: Choices, shape: Any, depth: int, size: int) -> Description:
    """Module that puts out ``size`` features."""
    layer, out = _features(choices, shape, depth)
    return layer if out == (size,) else ("Sequential", layer, _head(out, size))


def _residuals(choices: Choices, shape: Any, depth: int) -> Made:
    return ("Residual", _sized(choices, shape, depth - 1, shape[0])), shape


def _parallels(choices: Choices, shape: Any, depth: int) -> Made:
    made = {name: _modules(choices, shape, depth - 1) for name in choices.several(_NAMES, 3)}
    return ("Parallel", *_children(made)), _outputs(made)


def _merges(choices: Choices, shape: Any, depth: int) -> Made:
    made = {name: _modules(choices, shape, depth - 1) for name in choices.several(_NAMES, 2)}
    children = [(name, ("Parallel", (f"of {name}", child))) for name, child in _children(made)]
    return ("Merge", *children), {f"of {name}": out for name, out in _outputs(made).items()}


def _maps(choices: Choices, shape: Any, depth: int) -> Made:
    made = {name: _modules(choices, shape[name], depth - 1) for name in choices.several(tuple(shape), 3)}
    return ("Map", *_children(made)), _outputs(made)


def _concats(choices: Choices, shape: Any, depth: int) -> Made:
    made = {name: _features(choices, shape[name], depth - 1) for name in choices.several(tuple(shape), 3)}
    return ("Concat", *_children(made)), (sum(out[0] for out in _outputs(made).values()),)


def _children(made: dict[str, Made]) -> list[tuple[str, Description]]:
    return [(name, child) for name, (child, _) in made.items()]


def _outputs(made: dict[str, Made]) -> dict[str, Any]:
    return {name: out for name, (_, out) in made.items()}


def _graphs(choices: Choices, shape: Any, depth: int) -> Made:
    """Graph whose populations each read an observation or an earlier one, with more connections, any with a delay."""
    flat: Description | None = None
    if isinstance(shape, dict):
        # Populations see features.
        flat, shape = ("Flattener", 1), {name: (_numbers(part),) for name, part in shape.items()}
        entries = choices.several(tuple(shape), 2)
    else:
        entries = ["x"]
    described: list[Description] = []
    sizes: dict[str, tuple[int, int]] = {}
    connections: list[Description] = []
    for entry in entries:
        name, size = f"p{len(sizes)}", shape[entry][0] if isinstance(shape, dict) else shape[0]
        population, sizes[name] = _populations(choices, name, size, entry, depth)
        described.append(population)
    for _ in range(choices.number(0, 2)):
        earlier, name = list(sizes), f"p{len(sizes)}"
        population, sizes[name] = _populations(choices, name, choices.number(1, 4), None, depth)
        source = choices.pick(earlier)
        described.append(population)
        connections.append(_connections(choices, source, name, choices.number(0, 4), sizes, depth))
    names = list(sizes)
    ends = {(source, target, delay) for source, target, delay, _ in connections}
    for _ in range(choices.number(0, 3)):
        source, target = choices.pick(names), choices.pick(names)
        # Connections without delay lead onwards only, as a loop needs a delay.
        delay = choices.number(0 if names.index(source) < names.index(target) else 1, 5)
        if (source, target, delay) not in ends:
            ends.add((source, target, delay))
            connections.append(_connections(choices, source, target, delay, sizes, depth))
    outputs: list[Description] = []
    shapes: dict[str, Any] = {}
    for name in choices.several(_NAMES, 2):
        source = choices.pick(names)
        head, out = _modules(choices, (sizes[source][1],), depth - 1) if choices.flag() else (None, None)
        shapes[name] = (sizes[source][1],) if head is None else out
        outputs.append((name, source, head))
    order = choices.pick(["described", "reversed"])
    graph: Description = ("PopulationGraph", tuple(described), tuple(connections), tuple(outputs), order)
    return graph if flat is None else ("Sequential", flat, graph), shapes


def _populations(choices: Choices, name: str, size: int, entry: str | None, depth: int) -> tuple[Description, Any]:
    if not choices.flag():
        return (name, (size, size), None, choices.pick(_ACTIVATIONS), entry), (size, size)
    compute, out = _features(choices, (size,), depth - 1)
    return (name, (size, out[0]), compute, choices.pick(_ACTIVATIONS), entry), (size, out[0])


def _connections(
    choices: Choices, source: str, target: str, delay: int, sizes: dict[str, tuple[int, int]], depth: int
) -> Description:
    start, end = sizes[source][1], sizes[target][0]
    transform: Any = "linear"
    if start == end and choices.flag():
        transform = None
    elif choices.flag():
        transform = _sized(choices, (start,), depth - 1, end)
    return (source, target, delay, transform)


def _adapters(choices: Choices, shape: Any) -> Description:
    """Network that acts: a trunk, and the two ports."""
    trunk, features = _features(choices, shape, _DEPTH - 1)
    actor, _ = _samplers(choices, features, 1)
    if choices.flag():
        actor = ("Parallel", ("hand", _samplers(choices, features, 1)[0]), ("arm", actor))
    critic = _sized(choices, features, 2, 1)
    return ("Sequential", trunk, ("PPOAdapter", actor, critic))


def _broken(choices: Choices, shape: Any, wrong: str) -> Description:
    """Network with a module that is wrong on purpose behind some module, and maybe before others."""
    before, features = _features(choices, shape, _DEPTH - 2)
    hidden = choices.number(1, 4)
    middle: Description = ("Sequential", before, (wrong, features[0], hidden))
    if choices.flag():
        middle = ("Parallel", ("b", middle), ("a", _modules(choices, shape, 2)[0]))
        return ("Sequential", middle, ("Filter", "b")) if choices.flag() else middle
    return ("Sequential", middle, _modules(choices, (hidden,), _DEPTH - 2)[0]) if choices.flag() else middle
