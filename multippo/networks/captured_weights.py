"""Weights that a network computes with, but that are not among its own: those captured by functions."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

from multippo.networks.captures import Capture, captures_of, is_tracked, names_read
from multippo.networks.locating import path_of
from multippo.networks.types import StatefulModule

__all__ = ["captured_weights", "refuse_captured"]

_LIBRARIES = ("multippo", "flax", "jax", "torch", "numpy", "builtins", "abc", "typing")
"""Whose classes capture nothing in their methods."""
_MAKING = ("__init__", "__new__")
_NO_WEIGHTS = {"shape", "dtype", "ndim", "size"}
"""What is read of a variable without its numbers."""


def refuse_captured(network: Any, in_training: bool = False) -> None:
    """Refuses a network of which a function captures weights that would be lost.

    Args:
        network: A bound module.
        in_training: As in ``captured_weights``.

    Raises:
        TypeError: If there is one; the error names the attribute, the variable and its class.
    """
    for said in captured_weights(network, in_training):
        raise TypeError(said)


def captured_weights(network: Any, in_training: bool) -> list[str]:
    """What is wrong with the functions that the modules of a network hold, in words.

    A function may capture what has no weights, or on torch none that ask for a gradient, and modules that the network
    holds as well. Where training runs on
    copies of the modules, as on JAX, it may not use the weights of these either: it would go on with the old ones.

    Args:
        network: A bound module.
        in_training: Whether to look for weights that are held but would not be trained, too.
    """
    found: dict[str, None] = {}  # one that is reached by two ways is told once
    held: set[int] | None = None
    copied: bool | None = None
    for where, capture in _captures(network):
        own = _holders(network, capture.item)
        if not own or _is_frozen(capture.item):
            continue
        held = _holders(network, network) if held is None else held
        what = f"{where} captures {capture.variable!r} ({_kind(capture.item)})"
        if not own <= held:
            found[
                f"{what}, whose weights no module of this {type(network).__name__} holds: they are neither trained "
                "nor saved, since a framework finds what is in attributes alone. Assign it as an attribute: self.layer "
                f"= {capture.variable if capture.variable.isidentifier() else '...'}, and use self.layer in a method "
                "of that module. If they are to stay as they are, let it capture arrays, not modules and variables; on "
                "torch it is enough to call requires_grad_(False) of the module."
            ] = None
        elif in_training and _uses_weights(network, capture):
            copied = _is_copied(network) if copied is None else copied
            if copied:
                found[
                    f"{what}, and uses weights of it: on the engine {network.engine.name} training runs on copies of "
                    "the network's modules, and a function goes on with the weights that it captured, so they would "
                    "not be trained. Use them in a method of the module, from its own self: def hidden(self, x): "
                    "return self.layer((), x).output, called as self.hidden(x)."
                ] = None
    return list(found)


def _kind(item: Any) -> str:
    # A variable's class is the engine's, under a name of its own.
    return type(item).__name__.removeprefix("Torch").removeprefix("Numpy")


def _captures(network: Any) -> Iterator[tuple[str, Capture]]:
    """Every capture in a network with the place of the function: its attributes' and its classes'."""
    seen, ahead = {id(network)}, [network]
    while ahead:
        module = ahead.pop(0)
        for name, function in _functions(module):
            for capture in captures_of(function):
                yield f"{path_of(network, module) or type(module).__name__}.{name}", capture
        for _, child in network.engine.children(module):
            if id(child) not in seen:
                seen.add(id(child))
                ahead.append(child)


def _functions(module: Any) -> Iterator[tuple[str, Any]]:
    """What a module holds that may be functions, and the methods of a user's class that its calls may come through."""
    for name, value in vars(module).items():
        # A framework's hooks look on, and may know whatever they like.
        if not (name.startswith("_") and "hooks" in name):
            yield name, value
    classes = [
        cls
        for cls in type(module).__mro__
        if cls.__module__.partition(".")[0] not in _LIBRARIES and "engine" not in vars(cls)
    ]
    seen, ahead = set[str](), ["forward", *(name for name in vars(StatefulModule) if name not in _MAKING)]
    while ahead:
        name = ahead.pop(0)
        if name in seen:
            continue
        seen.add(name)
        for cls in classes:
            method = vars(cls).get(name)
            method = method.fget if isinstance(method, property) else getattr(method, "__func__", method)
            if isinstance(method, FunctionType):
                yield name, method
                ahead += _names_in(method.__code__)


def _names_in(code: CodeType) -> set[str]:
    return set(code.co_names).union(*(_names_in(inner) for inner in code.co_consts if isinstance(inner, CodeType)))


def _holders(network: Any, item: Any) -> set[int]:
    """The identities of the objects that hold an item's arrays."""
    engine = item.engine if isinstance(item, StatefulModule) else network.engine
    # A native module of another framework is one that this engine can't look into.
    is_ours = any(base.__name__ == "Module" and base in type(network).__mro__ for base in type(item).__mro__)
    if isinstance(item, StatefulModule) or is_ours:
        return {id(leaf.holder) for leaf in engine.leaves(item).values()}
    return {id(item)}


def _is_frozen(item: Any) -> bool:
    """Whether the user has told torch that it is not to be trained, as an encoder that comes trained."""
    parameters: Any = getattr(item, "parameters", None)
    if parameters is None:
        return getattr(item, "requires_grad", True) is False
    asks = [parameter.requires_grad for parameter in parameters()]
    return bool(asks) and not any(asks)  # statistics alone would have to move


def _uses_weights(network: Any, capture: Capture) -> bool:
    """Whether a function uses what it captures for more than things that are no weights, such as ``self.xp``."""
    if capture.code is None:
        return True
    names = set(names_read(capture.code, capture.variable, type(capture.item)))
    if not any(base.__name__ == "Module" for base in type(capture.item).__mro__):
        return not names <= _NO_WEIGHTS
    return "" in names or any(_has_weights(network, _attribute(capture.item, name)) for name in names)


def _attribute(item: Any, name: str) -> Any:
    # What a property reads is among the names, as far as it can be; it is not to be computed here.
    static = inspect.getattr_static(type(item), name, None)
    return None if isinstance(static, property | functools.cached_property) else getattr(item, name, None)


def _has_weights(network: Any, value: Any) -> bool:
    if isinstance(value, dict | list | tuple):
        return any(_has_weights(network, item) for item in (value.values() if isinstance(value, dict) else value))
    return is_tracked(value) and bool(_holders(network, value))


def _is_copied(network: Any) -> bool:
    """Whether the engine trains another module than the one it was given."""
    split = network.engine.split(network)
    return network.engine.merge(split.definition, split.params, split.variables) is not network
