"""Weights that a network computes with, but that training would not reach: those that functions know."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator, Iterator
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np

from multippo.networks.captures import captures_of
from multippo.networks.core.error_paths import path_of
from multippo.networks.types import StatefulModule
from multippo.networks.variables import Param
from multippo.trees import tree_leaves

__all__ = ["captured_weights", "refuse_captured"]

_LIBRARIES = ("multippo", "flax", "jax", "torch", "numpy", "builtins", "abc", "typing")
"""Whose classes know no layers in their methods."""


def refuse_captured(network: Any, network_state: Any, x: Any) -> None:
    """Refuses a network that computes with weights which only a function knows; see ``captured_weights``.

    Raises:
        TypeError: If there is one; the error names the attribute, the variable and its class.
    """
    for said in captured_weights(network, network_state, x):
        raise TypeError(said)


def captured_weights(network: Any, network_state: Any, x: Any) -> list[str]:
    """What is wrong with the functions that the modules of a network hold, in words.

    For each module and Param that a function may know, the weights are changed for a moment, and the network called: if
    something else comes out, it computes with them. It must not if no module of the network holds them. Where training
    runs on copies of the modules, as on JAX, it must not even if one does: a function goes on with the old ones. What
    the user has frozen on torch is left alone.

    Args:
        network: A bound module, which can be called with the next two.
        network_state: Its carry.
        x: Its input.
    """
    suspects = _suspects(network)
    if not suspects:
        return []
    own = _weights(network, network)
    # Heads that begin with zeros would hide what is in front of them.
    with _changed(own, seed=1):
        return _used(network, network_state, x, suspects, {id(weight.holder) for weight in own})


def _used(network: Any, network_state: Any, x: Any, suspects: list[tuple[str, str, Any]], held: set[int]) -> list[str]:
    """What is wrong with those of some suspects whose weights decide about what comes out."""
    engine = network.engine
    split = engine.split(network)

    def network_of_now() -> Any:
        return engine.merge(split.definition, split.params, split.variables)

    def outputs() -> list[np.ndarray]:
        with engine.no_grad():
            out = network_of_now()(engine.writable(network_state), x)
        return [np.array(engine.to_numpy(leaf)) for leaf in tree_leaves((out.output, out.next_state))]

    copies, expected, found = network_of_now() is not network, None, dict[str, None]()
    for where, variable, item in suspects:
        weights = [] if _is_frozen(item) else _weights(network, item)
        lost = [weight for weight in weights if id(weight.holder) not in held]
        if not (weights if copies else lost):
            continue
        if expected is None:
            expected = outputs()
            if not _same(outputs(), expected):  # it draws in ways of its own, and nothing can be told
                return []
        with _changed(weights if copies else lost):
            try:
                got = outputs()
            except Exception:  # which did not come before: what comes out is something else
                got = []
        if _same(got, expected):
            continue
        # A variable's class is the engine's, under a name of its own.
        kind = type(item).__name__.removeprefix("Torch").removeprefix("Numpy")
        what = f"{where} captures {variable!r} ({kind})"
        if lost:
            found[
                f"{what}, whose weights no module of this {type(network).__name__} holds: they are neither trained "
                "nor saved, since a framework finds what is in attributes alone. Assign it as an attribute: self.layer "
                f"= {variable if variable.isidentifier() else '...'}, and use self.layer in a method of that module. "
                "If they are to stay as they are, let the function know arrays, not modules and variables; on torch it "
                "is enough to call requires_grad_(False) of the module."
            ] = None
        else:
            found[
                f"{what} and computes with its weights: on the engine {engine.name} training runs on copies of the "
                "network's modules, and a function goes on with the weights that it knows, so they would not be "
                "trained. Use them in a method of the module, from its own self: def hidden(self, x): return "
                "self.layer((), x).output, called as self.hidden(x)."
            ] = None
    return list(found)


class _Weight(NamedTuple):
    holder: Any
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]


def _weights(network: Any, item: Any) -> list[_Weight]:
    """The trained arrays of a module, of a Param or of a native one; none of another framework's."""
    engine = item.engine if isinstance(item, StatefulModule) else network.engine
    # A native module of another framework is one that this engine can't look into.
    is_ours = any(base.__name__ == "Module" and base in type(network).__mro__ for base in type(item).__mro__)
    if isinstance(item, StatefulModule) or is_ours:
        leaves = engine.leaves(item).values()
        return [_Weight(leaf.holder, leaf.read, leaf.write) for leaf in leaves if leaf.trained]
    if isinstance(item, Param):
        return [_Weight(item, lambda: np.array(engine.to_numpy(item[...])), lambda value: _put(engine, item, value))]
    if hasattr(item, "requires_grad") and hasattr(item, "detach"):
        plain = item.detach()  # the same memory
        return [_Weight(item, lambda: np.array(engine.to_numpy(plain)), lambda value: _put(engine, plain, value))]
    return []


def _put(engine: Any, array: Any, value: np.ndarray) -> None:
    with engine.no_grad():
        array[...] = engine.asarray(value)


@contextlib.contextmanager
def _changed(weights: list[_Weight], seed: int = 0) -> Generator[None]:
    before, draw = [weight.read() for weight in weights], np.random.default_rng(seed)
    try:
        for weight, value in zip(weights, before, strict=True):
            weight.write((value + draw.normal(size=value.shape)).astype(value.dtype))
        yield
    finally:
        for weight, value in zip(weights, before, strict=True):
            weight.write(value)


def _same(got: list[np.ndarray], expected: list[np.ndarray]) -> bool:
    return len(got) == len(expected) and all(
        np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(got, expected, strict=True)
    )


def _suspects(network: Any) -> list[tuple[str, str, Any]]:
    """Place, name and module or variable, for all that functions in a network may know; most of it does no harm."""
    found, seen, ahead = list[tuple[str, str, Any]](), {id(network)}, [network]
    while ahead:
        module = ahead.pop(0)
        for name, function in _functions(module):
            where = f"{path_of(network, module) or type(module).__name__}.{name}"
            found += [(where, variable, item) for variable, item in function]
        for _, child in network.engine.children(module):
            if id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)
    return found


def _functions(module: Any) -> Iterator[tuple[str, Iterator[tuple[str, Any]]]]:
    """What the functions that a module holds may know, and the methods of a user's class."""
    for name, value in vars(module).items():
        # A framework's hooks look on, and may know whatever they like.
        if not (name.startswith("_") and "hooks" in name):
            yield name, captures_of(value)
    for cls in type(module).__mro__:
        if cls.__module__.partition(".")[0] in _LIBRARIES or "engine" in vars(cls):
            continue
        for name, method in vars(cls).items():
            method = method.fget if isinstance(method, property) else getattr(method, "__func__", method)
            if isinstance(method, FunctionType) and name != "__init__":
                yield name, captures_of(method)
            elif not name.startswith("__"):
                yield name, captures_of(method, name)  # of the class, where no framework looks


def _is_frozen(item: Any) -> bool:
    """Whether the user has told torch that it is not to be trained, as an encoder that comes trained."""
    parameters: Any = getattr(item, "parameters", None)
    if parameters is None:
        return getattr(item, "requires_grad", True) is False
    return not any(parameter.requires_grad for parameter in parameters())
