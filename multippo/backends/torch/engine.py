"""The PyTorch engine."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator, Iterator
from typing import Any

import array_api_compat.torch as torch_namespace
import numpy as np
import torch
from torch import nn

from multippo.backends.api import Engine, Leaf, Optimizer, OptimizerConfig, SplitModule, check_precision
from multippo.backends.attributes import NATIVE_CORE, Named, bound_attributes, in_order, refuse_written, unescape
from multippo.backends.devices import check_matmul_precision
from multippo.backends.torch import devices, exchange, layers, products
from multippo.backends.torch.compiling import compiled
from multippo.backends.torch.modules import (
    OWN_ATTRIBUTES,
    ModuleDict,
    TorchParam,
    TorchVariable,
    bound_class,
    track_all,
)
from multippo.backends.torch.optimizer import TorchOptimizer
from multippo.backends.torch.switches import describe_switches, one_precision, own_modes, set_switches
from multippo.programmes import frozen
from multippo.random import Random
from multippo.trees import tree_map

_LARGE = 2**16
"""Bytes from which pinned memory is worth its price: below, a copy is over before the call returns."""


class TorchEngine(Engine):
    """``torch.nn`` modules, updated in place: ``split`` returns the live tensors and ``merge`` the live module."""

    name = "torch"
    xp = torch_namespace
    capabilities = frozenset({"train", "float64", "compile"})
    activations = layers.ACTIVATIONS
    # A hundred small operations a draw: once for a whole rollout instead of at every step.
    draws_ahead = True

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or next(iter(devices.found().values()))
        self._float_dtype, self._bfloat16 = torch.float32, False
        self.random = Random(torch_namespace, torch.int64, self.asarray, lambda: self._float_dtype)
        self._bound: dict[type, type] = {}
        self._compile_seconds = 0.0

    # -- modules

    def bind(self, neutral: type) -> type:
        if neutral not in self._bound:
            self._bound[neutral] = bound_class(neutral, bound_attributes(self, neutral))
        return self._bound[neutral]

    def make_variable(self, kind: str, value: Any) -> Any:
        tensor = value.detach().clone() if isinstance(value, torch.Tensor) else self.asarray(value)
        if tensor.is_floating_point() or (kind == "Param" and not tensor.is_complex()):
            tensor = tensor.to(self._float_dtype)
        return TorchParam(tensor) if kind == "Param" else TorchVariable(tensor)

    def split(self, module: Any) -> SplitModule:
        track_all(module)
        held = dict(module.named_parameters())
        params = {name: p for name, p in held.items() if p.requires_grad}
        frozen = {name: p for name, p in held.items() if not p.requires_grad}
        return SplitModule(module, params, {**dict(module.named_buffers()), **frozen})

    def merge(self, definition: Any, params: Any, variables: Any) -> Any:
        del params, variables  # they are the module's own
        return definition

    def update_statistics(
        self, definition: Any, params: Any, variables: Any, rollout_extras: Any, valid: Any, skip: Any
    ) -> Any:
        del params  # the module's own, if not by these tensors
        if not bool(skip):
            before = _versions(definition)
            with torch.no_grad():
                definition.update_statistics(rollout_extras, valid=valid)
            after = _versions(definition)
            if after != before:
                written = next(name for name in (before | after) if after.get(name) != before.get(name))
                refuse_written(type(definition).__name__, self.named_params({written: None})[0][0])
        return variables

    def update_module(self, module: Any, params: Any, variables: Any) -> None:
        own = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        with torch.no_grad():
            for name, value in (*params.items(), *variables.items()):
                if own[name] is not value:
                    own[name].copy_(value)

    def freeze(self, module: Any, frozen: bool) -> None:
        module.requires_grad_(not frozen)

    def children(self, module: Any) -> Iterator[tuple[str, Any]]:
        for name, value in in_order(vars(module)["_modules"].items()):
            if isinstance(value, nn.ModuleList | ModuleDict):
                for key, child in self.children(value):
                    yield f"{unescape(name)}.{key}", child
            elif isinstance(value, nn.Module) and not isinstance(value, TorchParam | TorchVariable):
                yield unescape(name), value

    def copy_module(self, module: Any, child: Callable[[Any], Any], neutral: type | None = None) -> Any:
        copied = object.__new__(type(module) if neutral is None else self.bind(neutral))
        for name, value in vars(module).items():
            vars(copied)[name] = value.copy() if isinstance(value, dict | set) else value
        held = vars(copied)["_modules"]
        for name, value in held.items():
            if value is not None and not isinstance(value, TorchParam | TorchVariable):
                held[name] = child(value)
        return copied

    def leaves(self, module: Any) -> dict[str, Leaf]:
        found = Named()
        split = self.split(module)
        names = {id(tensor): name for name, tensor in (*split.params.items(), *split.variables.items())}
        self._collect(module, (), found, set(), names)
        return dict(sorted(found.items()))

    def _collect(
        self,
        module: nn.Module,
        path: tuple[str, ...],
        found: Named,
        seen: set[int],
        names: dict[int, str],
    ) -> None:
        for attribute, child in in_order(vars(module)["_modules"].items()):
            # Not named_children(), which leaves out the second name of a module before names are sorted.
            if child is None or id(child) in seen:
                continue
            seen.add(id(child))
            here = path if attribute == NATIVE_CORE else (*path, unescape(attribute))
            if isinstance(child, TorchParam | TorchVariable):
                found.add(here, _leaf(child.value, None, names))
            else:
                self._collect(child, here, found, seen, names)
        renamed = layers.PORTABLE_NAMES.get(type(module), {})
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if id(tensor) in seen or (renamed and name not in renamed):
                continue
            seen.add(id(tensor))
            portable, axes = renamed.get(name, (name, None))
            found.add((*path, portable), _leaf(tensor, axes, names))

    # -- native layers

    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        return self._with_operands(layers.linear(kernel, bias, self._float_dtype, self.device))

    def lstm(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> Any:
        return self._with_operands(layers.lstm(input_kernel, recurrent_kernel, bias, self._float_dtype, self.device))

    def gru(
        self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray
    ) -> Any:
        return self._with_operands(
            layers.gru(input_kernel, recurrent_kernel, bias, recurrent_bias, self._float_dtype, self.device)
        )

    def _with_operands(self, core: Any) -> Any:
        core.bfloat16_operands = self._bfloat16
        return core

    def layer_norm(self, features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> Any:
        return layers.layer_norm(features, scale, bias, epsilon, self._float_dtype, self.device)

    def conv(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> Any:
        return self._with_operands(layers.conv(kernel, bias, stride, padding, self._float_dtype, self.device))

    def lift(self, module: Any) -> Any:
        return layers.lift(module, self.device, self._float_dtype)

    # -- devices

    def device_name(self) -> str:
        return devices.name_of(self.device)

    def devices(self) -> tuple[str, ...]:
        return tuple(devices.found())

    def on_device(self, name: str) -> TorchEngine:
        return TorchEngine(devices.found()[name])

    def activated(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def matmul_precision(self, name: str) -> contextlib.AbstractContextManager[None]:
        return set_switches(check_matmul_precision(name))

    def numerics(self) -> dict[str, str]:
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "processor"
        return {"device": self.device_name(), "device_kind": kind, **describe_switches()}

    # -- arrays

    @property
    def float_dtype(self) -> Any:
        return self._float_dtype

    @contextlib.contextmanager
    def precision(self, name: str) -> Generator[None]:
        check_precision(name)
        before, default = (self._float_dtype, self._bfloat16), torch.get_default_dtype()
        self._float_dtype, self._bfloat16 = (torch.float64 if name == "float64" else torch.float32), name == "bfloat16"
        torch.set_default_dtype(self._float_dtype)
        try:
            yield
        finally:
            self._float_dtype, self._bfloat16 = before
            torch.set_default_dtype(default)

    def product(self) -> Callable[[Any, Any], Any]:
        return products.product_bfloat16 if self._bfloat16 else products.product

    def asarray(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        array = np.asarray(value)
        if array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
            array = array.astype(np.float32 if self._float_dtype == torch.float32 else np.float64)
        if array.dtype == np.uint32:
            array = array.astype(np.int64)  # torch has next to no arithmetic on unsigned words
        # torch.tensor copies: an environment may write its next observation into the same memory.
        if self.device.type != "cuda" or array.nbytes < _LARGE:
            return torch.tensor(array, device=self.device)
        # From pinned memory the copy runs beside what the host does next.
        return torch.tensor(array).pin_memory().to(self.device, non_blocking=True)

    def to_numpy(self, value: Any) -> np.ndarray:
        return exchange.to_numpy(value)

    def from_jax(self, tree: Any) -> Any:
        return tree_map(lambda x: exchange.from_jax(x, self.device), tree)

    def to_jax(self, tree: Any) -> Any:
        return tree_map(exchange.to_jax, tree)

    def stack_time(self, trees: list[Any]) -> Any:
        return tree_map(self._stack, *trees)

    def _stack(self, *leaves: Any) -> torch.Tensor:
        if isinstance(leaves[0], torch.Tensor):
            return torch.stack(leaves)
        return self.asarray(np.stack(leaves))

    def snapshot(self, tree: Any) -> Any:
        return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)

    def writable(self, tree: Any) -> Any:
        return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, tree)

    def named_params(self, params: Any) -> list[tuple[str, Any]]:
        return [(_readable(name.removesuffix(".value").split(".")), value) for name, value in params.items()]

    def native_arrays(self, params: Any, variables: Any) -> dict[Any, np.ndarray]:
        return {path: self.to_numpy(tensor) for path, tensor in (*params.items(), *variables.items())}

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=self._float_dtype, device=self.device)

    def stop_gradient(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return tree.detach()
        return tree_map(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, tree)

    def tree_map(self, function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
        return tree_map(function, tree, *rest)

    # -- transformations

    def scan(self, body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
        stacked: list[Any] = []
        for t in range(length):
            carry, y = body(carry, tree_map(lambda x, t=t: x[t], xs))
            stacked.append(y)
        return carry, tree_map(
            lambda *leaves: torch.stack([torch.as_tensor(leaf, device=self.device) for leaf in leaves]), *stacked
        )

    def cond(self, predicate: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        return if_true() if bool(predicate) else if_false()

    def jit(
        self, function: Callable[..., Any], donate: tuple[int, ...] = (), static: tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        del donate, static  # compiled in pieces, by ``kernel``; a whole training step would unroll its loops
        return function

    def kernel(self, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        if mode == "off" or (mode == "auto" and self.device.type == "cpu"):
            return function
        return compiled(function, mode == "reduce-overhead", self._count_seconds)

    def structure(self, definition: Any) -> Any:
        # What this takes for equal and is not, such as a function in the place of one freed, torch compiles again.
        found: list[Any] = []
        for name, module in definition.named_modules(remove_duplicate=False):
            held = vars(module)
            tensors = [(key, _shape(x)) for kind in ("_parameters", "_buffers") for key, x in held[kind].items()]
            own = [(key, frozen(value, id)) for key, value in held.items() if key not in OWN_ATTRIBUTES]
            found.append((name, type(module), module.training, *tensors, *own))
        return tuple(found)

    def _count_seconds(self, seconds: float) -> None:
        self._compile_seconds += seconds

    def compile_seconds(self) -> float:
        return self._compile_seconds

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        # With gradients, unless the caller wants none, so that what can't be differentiated is reported.
        return function(*args)

    @contextlib.contextmanager
    def no_grad(self) -> Generator[None]:
        with torch.inference_mode(), one_precision(self.device):
            yield

    @contextlib.contextmanager
    def training(self, rows: int, widest: int) -> Generator[None]:
        # Threads that wait for each other spin: on small products a second one slows the first, and beside another
        # busy process many times over. A user's own choice stands.
        before = torch.get_num_threads()
        small = widest < 128 or rows * widest < 2**17
        if small and self.device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
            torch.set_num_threads(1)
        try:
            with self.activated(), one_precision(self.device), own_modes(self.device):
                yield
        finally:
            torch.set_num_threads(before)

    def value_and_grad(self, loss: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[tuple[Any, Any], Any]]:
        def with_grad(params: Any, *args: Any) -> tuple[tuple[Any, Any], Any]:
            # A callback or an environment may have turned gradients off.
            with one_precision(self.device), torch.enable_grad():
                return differentiated(params, *args)

        def differentiated(params: Any, *args: Any) -> tuple[tuple[Any, Any], Any]:
            value, aux = loss(params, *args)
            # A loss that depends on no parameter has no graph to go back through; its gradient is 0.
            found: Any = [None] * len(params)
            if value.requires_grad and params:
                found = torch.autograd.grad(value, list(params.values()), allow_unused=True)
            grads = {
                name: torch.zeros_like(p) if g is None else g
                for (name, p), g in zip(params.items(), found, strict=True)
            }
            return (value.detach(), self.stop_gradient(aux)), grads

        return with_grad

    def optimizer(self, config: OptimizerConfig) -> Optimizer:
        return TorchOptimizer(config)


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Identity of each parameter's tensor and the number of writes to it; waits for no device."""
    held = module.named_parameters()
    return {name: (id(p), -1 if p.is_inference() else p._version) for name, p in held if p.requires_grad}


def _shape(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)


def _readable(parts: list[str]) -> str:
    return ".".join(unescape(part) for part in parts if part != NATIVE_CORE)


def _leaf(tensor: torch.Tensor, axes: tuple[int, ...] | None, names: dict[int, str]) -> Leaf:
    def turn(value: np.ndarray) -> np.ndarray:
        return value if axes is None else value.transpose(axes)

    def turn_back(value: np.ndarray) -> np.ndarray:
        return value if axes is None else value.transpose(np.argsort(axes))

    def write(value: np.ndarray) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(turn_back(value), order="C")).to(tensor.dtype))

    return Leaf(
        trained=isinstance(tensor, nn.Parameter),
        read=lambda: np.array(turn(exchange.to_numpy(tensor)), order="C"),
        write=write,
        native_path=names[id(tensor)],
        to_portable=turn,
        from_portable=turn_back,
        holder=tensor,
    )


def make_engine() -> TorchEngine:
    """The entry point of the engine."""
    return TorchEngine()
