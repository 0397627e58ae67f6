"""The NumPy engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import array_api_compat.numpy as numpy_namespace
import numpy as np

from multippo.backends.api import Engine, Leaf, Optimizer, OptimizerConfig, SplitModule, check_precision
from multippo.backends.attributes import bound_attributes, in_order, refuse_written, unescape
from multippo.backends.numpy import layers
from multippo.backends.numpy.modules import (
    Held,
    Module,
    ModuleDict,
    ModuleList,
    NumpyParam,
    NumpyVariable,
    bound_class,
    named_variables,
)
from multippo.random import Random
from multippo.trees import tree_map


class NumpyEngine(Engine):
    """Engine that computes in float64, step by step, in the order of the equations; forward only.

    Arrays are written in place: ``split`` returns the live ones and ``merge`` the live module.
    """

    name = "numpy"
    xp = numpy_namespace
    capabilities = frozenset({"float64"})
    activations = layers.ACTIVATIONS

    def __init__(self) -> None:
        # NumPy warns where a scalar word wraps around, as random words are meant to.
        quiet = np.errstate(over="ignore")
        self.random = Random(numpy_namespace, np.dtype(np.uint32), np.asarray, lambda: np.dtype(np.float64), quiet)
        self._bound: dict[type, type] = {}

    # -- modules

    def bind(self, neutral: type) -> type:
        if neutral not in self._bound:
            self._bound[neutral] = bound_class(neutral, bound_attributes(self, neutral))
        return self._bound[neutral]

    def make_variable(self, kind: str, value: Any) -> Any:
        array = np.array(value)
        array = array.astype(np.float64) if array.dtype.kind in ("fiub" if kind == "Param" else "f") else array
        return NumpyParam(array) if kind == "Param" else NumpyVariable(array)

    def split(self, module: Any) -> SplitModule:
        held = named_variables(module)
        params = {name: variable.value for name, variable in held.items() if isinstance(variable, NumpyParam)}
        return SplitModule(module, params, {name: v.value for name, v in held.items() if name not in params})

    def merge(self, definition: Any, params: Any, variables: Any) -> Any:
        del params, variables  # these arrays are the module's own
        return definition

    def update_statistics(
        self, definition: Any, params: Any, variables: Any, rollout_extras: Any, valid: Any, skip: Any
    ) -> Any:
        del params
        if not bool(skip):
            before = self.snapshot(self.split(definition).params)
            definition.update_statistics(rollout_extras, valid=valid)
            after = self.split(definition).params
            for name in [name for name in before if not np.array_equal(before[name], after[name], equal_nan=True)]:
                refuse_written(type(definition).__name__, name)
        return variables

    def update_module(self, module: Any, params: Any, variables: Any) -> None:
        own = named_variables(module)
        for name, value in (*params.items(), *variables.items()):
            own[name][...] = value

    def children(self, module: Any) -> Iterator[tuple[str, Any]]:
        for name, value in in_order(vars(module).items()):
            if isinstance(value, ModuleList | ModuleDict):
                for key, child in self.children(value):
                    yield f"{unescape(name)}.{key}", child
            elif isinstance(value, Module):
                yield unescape(name), value

    def copy_module(self, module: Any, child: Callable[[Any], Any], neutral: type | None = None) -> Any:
        copied = object.__new__(type(module) if neutral is None else self.bind(neutral))
        for name, value in vars(module).items():
            vars(copied)[name] = child(value) if isinstance(value, Module) else value
        return copied

    def leaves(self, module: Any) -> dict[str, Leaf]:
        return {name: _leaf(name, held) for name, held in named_variables(module).items()}

    # -- native layers

    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        return layers.Linear(kernel, bias)

    def lstm(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> Any:
        return layers.LSTM(input_kernel, recurrent_kernel, bias)

    def gru(
        self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray
    ) -> Any:
        return layers.GRU(input_kernel, recurrent_kernel, bias, recurrent_bias)

    def layer_norm(self, features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> Any:
        del features
        return layers.LayerNorm(scale, bias, epsilon)

    def conv(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> Any:
        return layers.Conv(kernel, bias, stride, padding)

    def lift(self, module: Any) -> Any:
        return layers.lift(module)

    # -- arrays

    @property
    def float_dtype(self) -> Any:
        return np.float64

    def precision(self, name: str) -> contextlib.AbstractContextManager[None]:
        if check_precision(name) != "float64":
            raise ValueError(
                f"precision({name!r}) is not possible on the numpy backend, which other engines are held to and so "
                "computes in float64 alone; use jax or torch."
            )
        return contextlib.nullcontext()

    def asarray(self, value: Any) -> Any:
        return np.array(value)

    def to_numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)

    def from_jax(self, tree: Any) -> Any:
        return tree_map(np.array, tree)

    def to_jax(self, tree: Any) -> Any:
        return tree  # JAX's functions take NumPy's arrays

    def stack_time(self, trees: list[Any]) -> Any:
        return tree_map(lambda *leaves: np.stack(leaves), *trees)

    def snapshot(self, tree: Any) -> Any:
        return tree_map(lambda x: np.array(x) if isinstance(x, np.ndarray) else x, tree)

    def writable(self, tree: Any) -> Any:
        return self.snapshot(tree)

    def named_params(self, params: Any) -> list[tuple[str, Any]]:
        return list(params.items())

    def native_arrays(self, params: Any, variables: Any) -> dict[Any, np.ndarray]:
        return {**params, **variables}

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return np.zeros(shape)

    # -- transformations

    def structure(self, definition: Any) -> Any:
        return type(definition)  # nothing is compiled

    def value_and_grad(self, loss: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[tuple[Any, Any], Any]]:
        _refuse("value_and_grad")

    def optimizer(self, config: OptimizerConfig) -> Optimizer:
        _refuse("optimizer")


def _refuse(asked: str) -> NoReturn:
    raise NotImplementedError(
        f"{asked} is not possible on the numpy backend: it has no gradients. Take jax or torch, to which "
        "multippo.to_portable and load_portable bring a network's weights."
    )


def _leaf(name: str, held: Held) -> Leaf:
    def write(value: np.ndarray) -> None:
        held[...] = value

    return Leaf(
        trained=isinstance(held, NumpyParam),
        read=lambda: held[...],
        write=write,
        native_path=name,
        to_portable=np.asarray,
        from_portable=np.asarray,
        holder=held,
    )


def make_engine() -> NumpyEngine:
    """Makes the engine: its entry point."""
    return NumpyEngine()
