"""Weights that a network's functions and objects know and training does not reach, such as those of closures.

A framework finds weights through modules' attributes, and so misses a layer that only a function, or an object that is
not a module, knows.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterator, Mapping
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from multippo.networks.core.binding import Param
from multippo.networks.core.error_paths import paths_of
from multippo.networks.types import StatefulModule

_DEPTH = 6
"""Number of levels of functions, containers and objects that are searched."""


def captured_weights(network: Any) -> list[str]:
    """Describes each function or object in a network that knows trained weights which training would not reach.

    Such weights are in no module of the network. Where training runs on copies of the modules, as on JAX, the weights
    that a module holds count too, since a function goes on with the modules that it knows. Nothing is called or changed
    to find out, so a function that knows a layer and does not use it is named as well; weights frozen on torch
    (``requires_grad_(False)``) are left out.
    """
    engine, found = network.engine, dict[str, None]()
    held = _weights(network, network)
    for path, module in paths_of(network):
        for attribute, value in vars(module).items() if isinstance(module, StatefulModule) else ():
            for name, item, used in _captured(value, "", 0) if not attribute.startswith("_") else ():
                weights = _weights(network, item)
                # A function may use anything of its own module; the weights it uses are named in its code.
                reaches = item is not module or any(_weights(network, getattr(item, one, None)) for one in used)
                what = f"{path}.{attribute} captures {name!r} ({type(item).__name__.removeprefix('Torch')})"
                if weights - held:
                    found[
                        f"{what}, whose weights no module of this {type(network).__name__} holds: they are neither "
                        f"trained nor saved. Assign it as an attribute, self.{name.rpartition('.')[2]} = ..., and use "
                        "it in a method of that module; if it is to stay as it is, freeze it (requires_grad_(False) on "
                        "torch), or capture arrays."
                    ] = None
                elif weights and reaches and engine.merge(*engine.split(network)) is not network:
                    found[
                        f"{what} and may compute with its weights: on the engine {engine.name} training runs on copies "
                        "of the modules, and a function goes on with the weights that it knows. Use it in a method of "
                        "the module, from its own self."
                    ] = None
    return list(found)


def _weights(network: Any, item: Any) -> set[int]:
    """Identities of the trained arrays of a module of the network's framework, or of a lone parameter."""
    if any(base.__name__ == "Module" and base in type(network).__mro__ for base in type(item).__mro__):
        leaves = [leaf for leaf in network.engine.leaves(item).values() if leaf.trained]
        return {id(leaf.holder) for leaf in leaves if getattr(leaf.holder, "requires_grad", True)}
    is_parameter = isinstance(item, Param) or (hasattr(item, "requires_grad") and hasattr(item, "detach"))
    return {id(item)} if is_parameter and getattr(item, "requires_grad", True) else set()


def _is_tracked(item: Any) -> bool:
    """True for a module, a Param, or a module or parameter of a framework."""
    return isinstance(item, StatefulModule | Param) or any(
        base.__name__ in ("Module", "Parameter") and base.__module__.startswith(("torch.", "flax.nnx"))
        for base in type(item).__mro__
    )


def _captured(
    value: Any, name: str, depth: int, used: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Any, frozenset[str]]]:
    """Modules and parameters that functions and objects in a value know.

    Args:
        value: Attribute of a module, or an object found in one.
        name: Name of the value in the function or object that knows it; "" outside of any.
        depth: Number of functions, containers and objects around the value.
        used: Names in the code of that function.

    Yields:
        Name, module or parameter, and names in the code.
    """
    if depth > _DEPTH or value is None or isinstance(value, int | float | str | bytes | type | ModuleType):
        return
    below: list[tuple[str, Any]] = []
    if _is_tracked(value):
        if name:
            yield name, value, used
    elif isinstance(value, Mapping | list | tuple):
        below = [(name, item) for item in (value.values() if isinstance(value, Mapping) else value)]
    elif isinstance(value, functools.partial):
        below = [(name, value.func), *((name or "argument", item) for item in value.args), *value.keywords.items()]
    elif isinstance(value, MethodType):
        below, used = [(name, value.__func__), ("self", value.__self__)], _names(value.__func__.__code__)
    elif isinstance(value, FunctionType):
        used = _names(value.__code__)
        cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        # A cell that is not assigned yet has no contents, and equals other empty ones.
        below = [(free, cell.cell_contents) for free, cell in cells if cell != CellType()]
        parameters = inspect.signature(value, follow_wrapped=False).parameters.values()
        below += [(parameter.name, parameter.default) for parameter in parameters]
    else:
        held = getattr(value, "__dict__", {}).items()
        # Only layers count in an object that no function knows and that is not called itself.
        looked_at = [pair for pair in held if name or callable(value) or _is_tracked(pair[1])]
        below = [(f"{name}.{key}".lstrip("."), item) for key, item in looked_at]
    for inner, item in below:
        yield from _captured(item, inner, depth + 1, used)


def _names(code: CodeType) -> frozenset[str]:
    """Names of attributes and globals in a function's code and in the functions inside."""
    return frozenset(code.co_names).union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
