"""The PyTorch engine."""

from __future__ import annotations

import contextlib
import functools
import operator
import os
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from typing import Any

import array_api_compat.torch as torch_namespace
import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from multippo.backends.api import Leaf, Optimizer, OptimizerConfig, SplitModule, check_matmul_precision, check_precision
from multippo.backends.attributes import NATIVE_CORE, Named, bound_attributes, in_order, refuse_written, unescape
from multippo.backends.torch import modules, products, threefry
from multippo.backends.torch.compiling import compiled
from multippo.backends.torch.exporting import save_programme
from multippo.backends.torch.layers import PORTABLE_NAMES, NativeLayers
from multippo.backends.torch.optimizer import TorchOptimizer
from multippo.backends.torch.recording import recorded
from multippo.backends.torch.straight import StraightCode
from multippo.programmes import frozen
from multippo.random import Random
from multippo.trees import map_leaves, tree_map

_LARGE = 2**16
"""Bytes from which pinned memory is worth its price: a smaller copy is over before the call returns."""


class TorchEngine(NativeLayers):
    """Engine of ``torch.nn`` modules, updated in place: ``split`` returns live tensors, ``merge`` the live module."""

    name = "torch"
    xp = torch_namespace
    capabilities = frozenset({"train", "float64", "compile"})
    # A draw is a hundred small operations, so noise is drawn once for a whole rollout.
    draws_ahead = True

    def __init__(self, device: torch.device | None = None) -> None:
        self.device = device or torch.device(self.devices()[0])
        self.random = Random(torch_namespace, torch.int64, self.asarray, lambda: self.float_dtype, threefry.on_cpu)
        self._bound: dict[type, type] = {}
        self._compile_seconds: list[float] = []

    # -- modules

    def bind(self, neutral: type) -> type:
        if neutral not in self._bound:
            self._bound[neutral] = modules.bound_class(neutral, bound_attributes(self, neutral))
        return self._bound[neutral]

    def make_variable(self, kind: str, value: Any) -> Any:
        tensor = value.detach().clone() if isinstance(value, torch.Tensor) else self.asarray(value)
        if tensor.is_floating_point() or (kind == "Param" and not tensor.is_complex()):
            tensor = tensor.to(self.float_dtype)
        return modules.TorchParam(tensor) if kind == "Param" else modules.TorchVariable(tensor)

    def split(self, module: Any) -> SplitModule:
        modules.track_all(module)
        held = dict(module.named_parameters())
        params = {name: p for name, p in held.items() if p.requires_grad}
        frozen = {name: p for name, p in held.items() if not p.requires_grad}
        return SplitModule(module, params, {**dict(module.named_buffers()), **frozen})

    def merge(self, definition: Any, params: Any, variables: Any) -> Any:
        del params, variables  # these tensors are the module's own
        return definition

    def update_statistics(
        self, definition: Any, params: Any, variables: Any, rollout_extras: Any, valid: Any, skip: Any
    ) -> Any:
        del params  # the module holds the same values
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
            if isinstance(value, nn.ModuleList | modules.ModuleDict):
                for key, child in self.children(value):
                    yield f"{unescape(name)}.{key}", child
            elif isinstance(value, nn.Module) and not isinstance(value, modules.Held):
                yield unescape(name), value

    def attributes(self, module: Any) -> dict[str, Any]:
        held = vars(module)
        plain = {name: value for name, value in held.items() if name not in modules.OWN_ATTRIBUTES}
        return {**plain, **held["_modules"], **held["_parameters"], **held["_buffers"]}

    def copy_module(self, module: Any, child: Callable[[Any], Any], neutral: type | None = None) -> Any:
        copied = object.__new__(type(module) if neutral is None else self.bind(neutral))
        for name, value in vars(module).items():
            vars(copied)[name] = value.copy() if isinstance(value, dict | set) else value
        held = vars(copied)["_modules"]
        for name, value in held.items():
            if value is not None and not isinstance(value, modules.Held):
                held[name] = child(value)
        return copied

    def leaves(self, module: Any) -> dict[str, Leaf]:
        found, seen = Named(), set[int]()
        split = self.split(module)
        names = {id(tensor): name for name, tensor in (*split.params.items(), *split.variables.items())}

        def collect(module: nn.Module, path: tuple[str, ...]) -> None:
            for attribute, child in in_order(vars(module)["_modules"].items()):
                # named_children() would leave out the second name of a module before names are sorted.
                if child is None or id(child) in seen:
                    continue
                seen.add(id(child))
                here = path if attribute == NATIVE_CORE else (*path, unescape(attribute))
                if isinstance(child, modules.Held):
                    found.add(here, _leaf(child.value, None, names))
                else:
                    collect(child, here)
            renamed = PORTABLE_NAMES.get(type(module), {})
            for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
                if id(tensor) not in seen and (name in renamed or not renamed):
                    seen.add(id(tensor))
                    portable, axes = renamed.get(name, (name, None))
                    found.add((*path, portable), _leaf(tensor, axes, names))

        collect(module, ())
        return dict(sorted(found.items()))

    # -- devices

    def device_name(self) -> str:
        return f"{self.device.type}:{self.device.index or 0}"  # torch itself gives the processor no number

    def devices(self) -> tuple[str, ...]:
        # A build of torch for AMD's GPUs calls them "cuda" as well.
        return (*(f"cuda:{index}" for index in range(torch.cuda.device_count())), "cpu:0")

    def on_device(self, name: str) -> TorchEngine:
        return TorchEngine(torch.device("cpu" if name == "cpu:0" else name))

    def activated(self) -> contextlib.AbstractContextManager[Any]:
        return torch.cuda.device(self.device) if self.device.type == "cuda" else contextlib.nullcontext()

    def matmul_precision(self, name: str) -> contextlib.AbstractContextManager[None]:
        return products.set_switches(check_matmul_precision(name))

    def numerics(self) -> dict[str, str]:
        kind = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else "processor"
        return {"device": self.device_name(), "device_kind": kind, **products.describe_switches()}

    # -- arrays

    @contextlib.contextmanager
    def precision(self, name: str) -> Generator[None]:
        check_precision(name)
        before, default = (self.float_dtype, self._bfloat16), torch.get_default_dtype()
        self.float_dtype, self._bfloat16 = (torch.float64 if name == "float64" else torch.float32), name == "bfloat16"
        torch.set_default_dtype(self.float_dtype)
        try:
            yield
        finally:
            self.float_dtype, self._bfloat16 = before
            torch.set_default_dtype(default)

    def product(self) -> Callable[[Any, Any], Any]:
        return products.product_bfloat16 if self._bfloat16 else operator.matmul

    def asarray(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.device)
        array = np.asarray(value)
        if array.dtype == np.float64 and not isinstance(value, np.ndarray | np.generic):
            array = array.astype(np.float32 if self.float_dtype == torch.float32 else np.float64)
        if array.dtype == np.uint32:
            array = array.astype(np.int64)  # torch has next to no arithmetic on unsigned words
        # torch.tensor copies: an environment may write its next observation into the same memory.
        if self.device.type != "cuda" or array.nbytes < _LARGE:
            return torch.tensor(array, device=self.device)
        # From pinned memory the copy runs beside what the host does next.
        return torch.tensor(array).pin_memory().to(self.device, non_blocking=True)

    def adopt(self, arrays: list[np.ndarray]) -> list[Any]:
        on_cpu = self.device.type == "cpu"
        fit = [on_cpu and array.dtype != np.uint32 and array.flags.writeable for array in arrays]
        return [torch.from_numpy(x) if fits else self.asarray(x) for x, fits in zip(arrays, fit, strict=True)]

    def to_numpy(self, value: Any) -> np.ndarray:
        return modules.to_numpy(value)

    def from_jax(self, tree: Any) -> Any:
        def convert(x: Any) -> torch.Tensor:
            platform = getattr(next(iter(x.devices())), "platform", "cpu") if hasattr(x, "devices") else "cpu"
            if platform != "cpu" and self.device.type == "cpu":
                return torch.tensor(np.asarray(x))  # this torch need not know the other device
            # A copy, which may be written to: JAX's own must not change.
            return torch.from_dlpack(x).to(self.device, copy=True)

        return tree_map(convert, tree)

    def to_jax(self, tree: Any) -> Any:
        import jax
        import jax.dlpack

        # Arrays go to JAX's default device, on which environments compute: on another device, an array would draw the
        # environment's step there.
        target: Any = jax.config.jax_default_device or jax.devices()[0]  # pyright: ignore[reportAttributeAccessIssue]

        def convert(x: torch.Tensor) -> Any:
            x = x.cpu() if x.is_cuda and target.platform != "gpu" else x
            array: Any = jax.dlpack.from_dlpack(x.detach().contiguous())
            return array if array.devices() == {target} else jax.device_put(array, target)

        return tree_map(convert, tree)

    def stack_time(self, trees: list[Any]) -> Any:
        def stack(*leaves: Any) -> torch.Tensor:
            if isinstance(leaves[0], torch.Tensor):
                return torch.stack(leaves)
            return self.asarray(np.stack(leaves) if isinstance(leaves[0], np.ndarray | np.generic) else list(leaves))

        return tree_map(stack, *trees)

    def snapshot(self, tree: Any) -> Any:
        return tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, tree)

    def writable(self, tree: Any) -> Any:
        return tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, tree)

    def named_params(self, params: Any) -> list[tuple[str, Any]]:
        parts = [(name.removesuffix(".value").split("."), value) for name, value in params.items()]
        return [(".".join(unescape(part) for part in path if part != NATIVE_CORE), value) for path, value in parts]

    def native_arrays(self, params: Any, variables: Any) -> dict[Any, np.ndarray]:
        return {path: self.to_numpy(tensor) for path, tensor in (*params.items(), *variables.items())}

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return torch.zeros(shape, dtype=self.float_dtype, device=self.device)

    def stop_gradient(self, tree: Any) -> Any:
        if isinstance(tree, torch.Tensor):
            return tree.detach()
        return map_leaves(lambda x: x.detach() if isinstance(x, torch.Tensor) else x, tree)

    # -- transformations. ``jit`` compiles nothing: a whole training step would unroll its loops

    def checkpoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Noise comes from keys among the arguments, so that the state of torch's generators matters to nothing.
        # The exception by which torch ends a computation early holds all activations until garbage is collected.
        whole = set_checkpoint_early_stop(False)
        return whole(functools.partial(checkpoint, function, use_reentrant=False, preserve_rng_state=False))

    def kernel(self, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        if mode == "off" or (mode == "auto" and self.device.type == "cpu"):
            return function
        return compiled(function, mode == "reduce-overhead", self._compile_seconds.append)

    def straight(self, function: Callable[..., Any], args: Any, weights: Any) -> Any:
        start = time.perf_counter()
        code = StraightCode(function, args, weights)
        self._compile_seconds.append(time.perf_counter() - start)
        return code

    def recorded(self, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        return recorded(function) if mode == "auto" and self.device.type == "cpu" else function

    def structure(self, definition: Any) -> Any:
        # Definitions wrongly taken for equal, as by a function in the place of one freed, torch compiles again.
        found: list[Any] = []
        for name, module in definition.named_modules(remove_duplicate=False):
            held = vars(module)
            tensors = [(key, _shape(x)) for kind in ("_parameters", "_buffers") for key, x in held[kind].items()]
            own = [(key, frozen(value, id)) for key, value in held.items() if key not in modules.OWN_ATTRIBUTES]
            found.append((name, type(module), module.training, *tensors, *own))
        return tuple(found)

    def trace(self, directory: Path) -> contextlib.AbstractContextManager[Any]:
        written = torch.profiler.tensorboard_trace_handler(str(directory), use_gzip=True)
        return torch.profiler.profile(on_trace_ready=written)

    def annotate(self, name: str) -> contextlib.AbstractContextManager[Any]:
        return torch.profiler.record_function(name) if self.profiling else contextlib.nullcontext()

    def save_programme(self, make: Callable[[Any], Callable[..., Any]], args: tuple[Any, ...], path: Path) -> Any:
        return save_programme(make, args, path)

    def compile_seconds(self) -> float:
        return sum(self._compile_seconds)

    @contextlib.contextmanager
    def no_grad(self) -> Generator[None]:
        with torch.inference_mode(), products.one_precision(self.device):
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
            with self.activated(), products.one_precision(self.device), _own_modes(self.device):
                yield
        finally:
            torch.set_num_threads(before)

    def value_and_grad(self, loss: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[tuple[Any, Any], Any]]:
        def with_grad(params: Any, *args: Any) -> tuple[tuple[Any, Any], Any]:
            # A callback or an environment may have turned gradients off.
            with products.one_precision(self.device), torch.enable_grad():
                value, aux = loss(params, *args)
                # A loss that depends on no parameter has no graph to go back through; its gradient is 0.
                found: Any = [None] * len(params)
                if value.requires_grad and params:
                    found = torch.autograd.grad(value, list(params.values()), allow_unused=True)
                found = [torch.zeros_like(p) if g is None else g for p, g in zip(params.values(), found, strict=True)]
                return (value.detach(), self.stop_gradient(aux)), dict(zip(params, found, strict=True))

        return with_grad

    def optimizer(self, config: OptimizerConfig) -> Optimizer:
        return TorchOptimizer(config)


def _versions(module: nn.Module) -> dict[str, tuple[int, int]]:
    """Identity of each parameter's tensor and its number of writes, read without waiting for a device."""
    held = module.named_parameters()
    return {name: (id(p), -1 if p.is_inference() else p._version) for name, p in held if p.requires_grad}


def _shape(tensor: torch.Tensor | None) -> Any:
    return None if tensor is None else (tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad)


def _leaf(tensor: torch.Tensor, axes: tuple[int, ...] | None, names: dict[int, str]) -> Leaf:
    axes = axes or tuple(range(tensor.ndim))

    def turn(value: np.ndarray) -> np.ndarray:
        return value.transpose(axes)

    def turn_back(value: np.ndarray) -> np.ndarray:
        return value.transpose(np.argsort(axes))

    def write(value: np.ndarray) -> None:
        with torch.no_grad():
            tensor.copy_(torch.from_numpy(np.array(turn_back(value), order="C")).to(tensor.dtype))

    return Leaf(
        trained=isinstance(tensor, nn.Parameter),
        read=lambda: np.array(turn(modules.to_numpy(tensor)), order="C"),
        write=write,
        native_path=names[id(tensor)],
        to_portable=turn,
        from_portable=turn_back,
        holder=tensor,
    )


@contextlib.contextmanager
def _own_modes(device: torch.device) -> Generator[None]:
    """Turns gradients on and autocast off, and makes ``device`` the default, whatever the process has set."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))  # turns gradients on, too
        for kind in {"cpu", device.type}:
            stack.enter_context(torch.autocast(kind, enabled=False))
        # A default device that was never set stays unset: under one, every call of torch's takes longer.
        if torch.get_default_device() not in (torch.device("cpu"), device):
            stack.enter_context(device)
        yield


def make_engine() -> TorchEngine:
    """Makes the engine: its entry point."""
    return TorchEngine()
