"""Twins: the same network on another engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import optree

from multippo.backends.api import Leaf
from multippo.networks.core.binding import Param, Variable
from multippo.networks.core.error_paths import all_modules, refuse_other_module
from multippo.networks.core.outputs import is_engine_array
from multippo.networks.types import StatefulModule, StatefulModuleOutput


def twin(module: Any, engine: Any) -> Any:
    """The same network on another engine, with copies of its parameters and variables.

    Modules are copied by their attributes; no constructor runs. A layer that stands in several places stays one, frozen
    parameters stay frozen, a network in ``eval()`` stays so, and portable names are the same. Numbers are of the type
    that ``engine`` computes in at the time of the call; see ``multippo.precision``. Functions stay as they are, except
    for activations that every engine has.

    Args:
        module: A StatefulModule.
        engine: Engine of the twin; it may be the module's own.

    Raises:
        TypeError: If ``module`` is not a StatefulModule, or holds a layer of its framework's own, as ``Lift`` may.
        ValueError: If two layers of the network share one array, which the twin's would not.
    """
    refuse_other_module("twin", module)
    made = _Twins(module, engine).of(module)
    if set(engine.leaves(made)) != (own := set(module.engine.leaves(module))):
        raise ValueError(
            f"{type(module).__name__} has no twin: two of its layers share an array, and the twin's would have one "
            f"each, {sorted(set(engine.leaves(made)) ^ own)}. Use one layer in both places."
        )
    return made


class _Blank(StatefulModule):
    """A module without attributes, of which instances of other classes are made without their constructors."""

    def __call__(self, state: Any, x: Any, rollout_extras: Any = None) -> StatefulModuleOutput:
        return StatefulModuleOutput(state, x)


class _Twins:
    """Twins of the parts of one network, each made once.

    Args:
        root: The network.
        engine: Engine of the twins.
    """

    def __init__(self, root: Any, engine: Any) -> None:
        self._own, self._engine = root.engine, engine
        self._modules = {id(module): module for module in all_modules(root)}
        self._made: dict[int, Any] = {}
        leaves = self._own.leaves(root)
        trained = self._own.native_arrays(self._own.split(root).params, {})
        self._leaves = {id(leaf.holder): leaf for leaf in leaves.values()}
        self._frozen = {id(leaf.holder) for leaf in leaves.values() if leaf.trained and leaf.native_path not in trained}
        self._functions = {id(f): engine.activations[name] for name, f in self._own.activations.items()}
        self._functions[id(self._own.product())] = engine.product()

    def of(self, module: Any) -> Any:
        """The twin of a bound module."""
        if id(module) not in self._made:
            neutral = type(module).__mro__[1]
            blank = self._engine.bind(_Blank)()
            self._made[id(module)] = made = self._engine.copy_module(blank, lambda child: child, neutral)
            for name, value in self._own.attributes(module).items():
                setattr(made, name, self._value(module, value))
        return self._made[id(module)]

    def _value(self, owner: Any, value: Any) -> Any:
        """An attribute of ``owner`` as its twin has it."""
        if isinstance(value, StatefulModule):
            return self.of(value)
        if isinstance(value, Param | Variable):
            return self._once(value, lambda: self._variable(value))
        if id(value) in self._modules:
            return self._once(value, lambda: self._layer(owner, value))
        if id(value) in self._functions:
            return self._functions[id(value)]
        if (items := _children(value)) is not None:
            if isinstance(items, dict):
                return {key: self._value(owner, item) for key, item in items.items()}
            return [self._value(owner, item) for item in items]
        leaves = optree.tree_leaves(value)
        if any(is_engine_array(self._own, leaf) for leaf in leaves):
            return optree.tree_map(self._plain, value)
        return value

    def _once(self, value: Any, make: Any) -> Any:
        if id(value) not in self._made:
            self._made[id(value)] = make()
        return self._made[id(value)]

    def _variable(self, variable: Any) -> Any:
        leaf = self._leaf(variable)
        made = self._engine.make_variable("Param" if leaf.trained else "Variable", self._words(leaf.read()))
        self._freeze(made, [leaf])
        return made

    def _leaf(self, variable: Any) -> Leaf:
        # An engine's holder is its variable, or the array inside.
        found = self._leaves.get(id(variable))
        return self._leaves[id(variable.value)] if found is None else found

    def _layer(self, owner: Any, layer: Any) -> Any:
        """The target engine's layer in the place of one of the own engine's."""
        leaves = self._own.leaves(layer)
        arrays: dict[str, Any] = {name: np.array(leaf.read()) for name, leaf in leaves.items()}
        method, more = _recipe(owner, arrays)
        if method is None or type(getattr(self._own, method)(**arrays, **more)) is not type(layer):
            raise TypeError(
                f"{type(owner).__name__} has no twin: it holds a {type(layer).__name__} of its framework's own, which "
                f"the engine {self._engine.name} can't make. Build the network of multippo's layers."
            )
        made = getattr(self._engine, method)(**arrays, **more)
        self._freeze(made, list(leaves.values()))
        return made

    def _freeze(self, made: Any, leaves: list[Leaf]) -> None:
        trained = [leaf for leaf in leaves if leaf.trained]
        if trained and "train" in self._engine.capabilities and all(id(x.holder) in self._frozen for x in trained):
            self._engine.freeze(made, True)

    def _plain(self, leaf: Any) -> Any:
        if not is_engine_array(self._own, leaf):
            return leaf
        return self._engine.asarray(self._words(self._own.to_numpy(leaf)))

    def _words(self, array: np.ndarray) -> Any:
        """An array as it is, or a random key's words in the type that the engine has for them."""
        is_words = array.dtype == np.uint32 or (array.dtype == np.int64 and array.shape[-1:] == (2,))
        # Not every pair of integers is a key.
        if is_words and array.size and array.min() >= 0 and array.max() < 2**32:
            return self._engine.random.wrap_key(array)
        return array


def _children(value: Any) -> dict[Any, Any] | list[Any] | None:
    """Items of a list or dict of modules or variables; None for anything else."""
    if isinstance(value, Mapping):
        items: Any = dict(value.items())
        first = next(iter(items.values()), None)
    elif hasattr(value, "__iter__") and hasattr(value, "append"):
        items = list(value)
        first = items[0] if items else None
    else:
        return None
    return items if isinstance(first, StatefulModule | Param | Variable) or _children(first) is not None else None


def _recipe(owner: Any, arrays: dict[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """Method of an engine that makes a layer of these arrays, and its other arguments; missing arrays become None."""
    names = set(arrays)
    if names == {"input_kernel", "recurrent_kernel", "bias"}:
        return "lstm", {}
    if names == {"input_kernel", "recurrent_kernel", "bias", "recurrent_bias"}:
        return "gru", {}
    if "kernel" in names and names <= {"kernel", "bias"}:
        arrays.setdefault("bias", None)
        conv = arrays["kernel"].ndim == 4
        return ("conv", {"stride": owner.stride, "padding": owner.padding}) if conv else ("linear", {})
    if names <= {"scale", "bias"} and hasattr(owner, "epsilon"):
        arrays.setdefault("scale", None)
        arrays.setdefault("bias", None)
        return "layer_norm", {"features": owner.features, "epsilon": owner.epsilon}
    return None, {}
