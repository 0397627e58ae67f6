"""The JAX engine."""

from __future__ import annotations

import contextlib
import copy
import copyreg
import functools
import sys
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from multippo.backends.api import Leaf, Optimizer, OptimizerConfig, SplitModule, check_matmul_precision, check_precision
from multippo.backends.attributes import NATIVE_CORE, Named, bound_attributes, in_order, refuse_written, unescape
from multippo.backends.jax.exporting import save_programme
from multippo.backends.jax.layers import PORTABLE_NAMES, NativeLayers, from_numpy, platform, product, product_bfloat16
from multippo.backends.jax.modules import ModuleDict, StatisticVariable, bound_class, track_all
from multippo.backends.jax.optimizer import JaxOptimizer
from multippo.random import Random
from multippo.trees import tree_map

_COMPILE_EVENTS = (
    "/jax/core/compile/jaxpr_trace_duration",
    "/jax/core/compile/jaxpr_to_mlir_module_duration",
    "/jax/core/compile/backend_compile_duration",
)
_FROZEN = "multippo_frozen"
"""Metadata of a frozen parameter."""


class JaxEngine(NativeLayers):
    """Engine of flax NNX modules; a training step is plain ``jax.jit`` over split state."""

    name = "jax"
    xp = jnp
    capabilities = frozenset({"train", "float64", "functional"})
    whole_steps = True

    def __init__(self, device: Any = None) -> None:
        self.device = device  # None: JAX's default, to which nothing is bound
        # Asked now: later another engine's device may be the default for a while.
        self._default: Any = jax.config.jax_default_device  # pyright: ignore[reportAttributeAccessIssue]
        as_words = lambda words: self._place(from_numpy(words))  # noqa: E731
        self.random = Random(jnp, jnp.uint32, as_words, lambda: self.float_dtype, jax.jit, _plain_key, _order)
        self._bound: dict[type, type] = {}
        self._compile_seconds = 0.0
        jax.monitoring.register_event_duration_secs_listener(self._on_duration)

    # -- modules

    def bind(self, neutral: type) -> type:
        if neutral not in self._bound:
            self._bound[neutral] = bound_class(neutral, bound_attributes(self, neutral))
        return self._bound[neutral]

    def make_variable(self, kind: str, value: Any) -> Any:
        value = np.asarray(value) if not isinstance(value, jax.Array) else value
        floats = not _is_key(value) and value.dtype.kind in ("fiub" if kind == "Param" else "f")
        value = value.astype(self.float_dtype) if floats else value
        array = self._place(jnp.array(value) if isinstance(value, jax.Array) else from_numpy(value))
        return nnx.Param(array) if kind == "Param" else StatisticVariable(array)

    def split(self, module: Any) -> SplitModule:
        track_all(module)
        return SplitModule(*nnx.split(module, _is_trained, ...))

    def merge(self, definition: Any, params: Any, variables: Any) -> Any:
        return nnx.merge(definition, params, variables)

    def update_statistics(
        self, definition: Any, params: Any, variables: Any, rollout_extras: Any, valid: Any, skip: Any
    ) -> Any:
        # Rebuilt here, since NNX lets no one write to a variable that an enclosing trace (of a branch, say) has made.
        module = nnx.merge(definition, *jax.tree.map(lambda x: x, (params, variables)))
        try:
            module.update_statistics(rollout_extras, valid=valid)
        except jax.errors.NonConcreteBooleanIndexError as error:
            raise TypeError(
                f"An update_statistics in {type(module).__name__} selects entries by a boolean index, such as "
                "rollout_extras[valid], whose shape depends on the data; a method with the argument valid is compiled. "
                "Select with self.xp.where, or leave the argument out, and be given the valid entries alone."
            ) from error
        _, after, updated = nnx.split(module, _is_trained, ...)
        # While this is traced, an array that was not written is still the same object.
        was, now = dict(self.named_params(params)), dict(self.named_params(after))
        for name in {**was, **now}:
            if now.get(name) is not was.get(name):
                refuse_written(type(module).__name__, name)
        return jax.tree.map(lambda new, old: jnp.where(skip, old, new), updated, variables)

    def update_module(self, module: Any, params: Any, variables: Any) -> None:
        # Values alone are taken: the module keeps its own frozen parameters. ``nnx.update`` does the same, but takes
        # several times as long, which counts where every iteration is logged. No call donates weights, so none is
        # copied.
        for tree in self._place((params, variables)):
            _write(module, tree.raw_mapping)

    def freeze(self, module: Any, frozen: bool) -> None:
        for _, variable in nnx.iter_graph(module):
            if isinstance(variable, nnx.Param):
                variable.set_metadata(**{_FROZEN: frozen})

    def children(self, module: Any) -> Iterator[tuple[str, Any]]:
        # Few attributes are modules, and only these need their order.
        held = ((n, v) for n, v in vars(module).items() if isinstance(v, nnx.Module | nnx.List | ModuleDict))
        for name, value in in_order(held):
            if isinstance(value, nnx.List | ModuleDict):
                for key, child in self.children(value):
                    yield f"{unescape(name)}.{key}", child
            else:
                yield unescape(name), value

    def attributes(self, module: Any) -> dict[str, Any]:
        return {name: value for name, value in vars(module).items() if not name.startswith("_pytree__")}

    def copy_module(self, module: Any, child: Callable[[Any], Any], neutral: type | None = None) -> Any:
        copied = object.__new__(type(module) if neutral is None else self.bind(neutral))
        for name, value in vars(module).items():
            vars(copied)[name] = child(value) if isinstance(value, nnx.Module) else value
        return copied

    def leaves(self, module: Any) -> dict[str, Leaf]:
        track_all(module)
        found, seen = Named(), set[int]()

        def collect(module: Any, path: tuple[str, ...], native: tuple[Any, ...]) -> None:
            for attribute, value in in_order(vars(module).items()):
                if id(value) in seen or not isinstance(value, nnx.Module | nnx.Variable):
                    continue
                seen.add(id(value))
                here = (*path, unescape(attribute))
                native_path = (*native, int(attribute) if isinstance(module, nnx.List) else attribute)
                if isinstance(value, nnx.Variable):
                    found.add(here, _leaf(value, native_path, self._place))
                else:
                    collect(value, path if attribute == NATIVE_CORE else here, native_path)
            for old, new in PORTABLE_NAMES.get(type(module), {}).items():
                found.rename((*path, *old.split(".")), (*path, new))

        collect(module, (), ())
        return dict(sorted(found.items()))

    # -- devices

    @property
    def _here(self) -> Any:
        if self.device is not None:
            return self.device
        return jax.devices(self._default)[0] if isinstance(self._default, str | None) else self._default

    def device_name(self) -> str:
        return _name_of(self._here)

    def devices(self) -> tuple[str, ...]:
        return tuple(_devices())

    def on_device(self, name: str) -> JaxEngine:
        return JaxEngine(_devices()[name])

    def activated(self) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if self.device is None else jax.default_device(self.device)

    def matmul_precision(self, name: str) -> contextlib.AbstractContextManager[Any]:
        check_matmul_precision(name)
        # On the CPU the setting changes nothing, but would have programmes compiled again.
        return contextlib.nullcontext() if self._here.platform == "cpu" else jax.default_matmul_precision(name)

    def numerics(self) -> dict[str, str]:
        chosen: Any = jax.config.jax_default_matmul_precision  # pyright: ignore[reportAttributeAccessIssue]
        return {
            "device": self.device_name(),
            "device_kind": self._here.device_kind,
            "jax_default_matmul_precision": str(chosen),
        }

    @contextlib.contextmanager
    def training(self, rows: int, widest: int) -> Generator[None]:
        del rows, widest
        # Neutral code is written to the array API standard, which broadcasts and promotes.
        with self.activated(), jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            yield

    # -- arrays

    @contextlib.contextmanager
    def precision(self, name: str) -> Generator[None]:
        check_precision(name)
        before = self.float_dtype, self._bfloat16
        with jax.enable_x64(name == "float64"):
            self.float_dtype = jnp.float64 if name == "float64" else jnp.float32
            self._bfloat16 = name == "bfloat16"
            try:
                yield
            finally:
                self.float_dtype, self._bfloat16 = before

    def product(self) -> Callable[[Any, Any], Any]:
        return product_bfloat16 if self._bfloat16 else product

    def asarray(self, value: Any) -> Any:
        array = self._place(jnp.array(value) if isinstance(value, jax.Array) else from_numpy(np.asarray(value)))
        if not hasattr(value, "dtype") and jnp.issubdtype(array.dtype, jnp.floating):
            # Python's numbers get the engine's type, even if the user has enabled 64 bits for something else.
            return array.astype(self.float_dtype)
        return array

    def adopt(self, arrays: list[np.ndarray]) -> list[Any]:
        return self._place(_adopted(arrays))

    def to_numpy(self, value: Any) -> np.ndarray:
        return np.asarray(value)

    def from_jax(self, tree: Any) -> Any:
        return tree

    def to_jax(self, tree: Any) -> Any:
        return tree

    def stack_time(self, trees: list[Any]) -> Any:
        # On the CPU a device array is host memory: one NumPy copy is far cheaper than a stack of T operands in XLA.
        stack = np.stack if platform() == "cpu" else jnp.stack
        return tree_map(lambda *leaves: self._place(jnp.asarray(stack([np.asarray(leaf) for leaf in leaves]))), *trees)

    def snapshot(self, tree: Any) -> Any:
        leaves, structure = jax.tree.flatten(tree)
        # All in one call: copies one by one would be compiled for each shape of a simulator's arrays.
        copies = iter(self._place(_copies([leaf for leaf in leaves if isinstance(leaf, jax.Array)])))
        return structure.unflatten([next(copies) if isinstance(x, jax.Array) else copy.copy(x) for x in leaves])

    def named_params(self, params: Any) -> list[tuple[str, Any]]:
        leaves = jax.tree_util.tree_leaves_with_path(params)
        keys = [[str(getattr(k, "key", k)) for k in path[:-1]] for path, _ in leaves]
        names = [".".join(unescape(key) for key in path if key != NATIVE_CORE) for path in keys]
        return list(zip(names, (leaf for _, leaf in leaves), strict=True))

    def native_arrays(self, params: Any, variables: Any) -> dict[Any, np.ndarray]:
        leaves, structure = jax.tree.flatten((params, variables))
        return dict(zip(_paths(structure), map(_words, leaves), strict=True))

    def zeros(self, shape: tuple[int, ...]) -> Any:
        return self._place(jnp.zeros(shape, self.float_dtype))

    def stop_gradient(self, tree: Any) -> Any:
        return jax.lax.stop_gradient(tree)

    def tree_map(self, function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
        return jax.tree.map(function, tree, *rest)

    # -- transformations

    def scan(self, body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
        return jax.lax.scan(body, carry, xs, length)

    def cond(self, predicate: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        return jax.lax.cond(predicate, if_true, if_false)

    def checkpoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.checkpoint(function)

    def jit(
        self, function: Callable[..., Any], donate: tuple[int, ...] = (), static: tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        return jax.jit(function, donate_argnums=donate, static_argnums=static)

    def jit_together(self, function: Callable[..., Any]) -> Callable[[list[Any], list[Any]], list[Any]]:
        def together(firsts: list[Any], rests: list[Any]) -> list[Any]:
            calls = jax.tree.map(lambda *leaves: jnp.stack(leaves), *zip(firsts, rests, strict=True))
            found = jax.vmap(lambda first, rest: function(first, *rest))(*calls)
            return [jax.tree.map(lambda leaf, i=i: leaf[i], found) for i in range(len(firsts))]

        return jax.jit(together, donate_argnums=0)

    def draft(self, function: Callable[..., Any]) -> Callable[..., Any]:
        return jax.jit(function, compiler_options={"xla_backend_optimization_level": 0})

    def trace(self, directory: Path) -> contextlib.AbstractContextManager[Any]:
        return jax.profiler.trace(str(directory))

    def annotate(self, name: str) -> contextlib.AbstractContextManager[Any]:
        # In compiled code a phase is a part of its operations' names, given while it is traced.
        return jax.profiler.TraceAnnotation(name) if self.profiling else jax.named_scope(name)

    def save_programme(self, make: Callable[[Any], Callable[..., Any]], args: tuple[Any, ...], path: Path) -> Any:
        return save_programme(make, args, path)

    def compile_seconds(self) -> float:
        return self._compile_seconds

    def clear_caches(self) -> None:
        jax.clear_caches()

    def _on_duration(self, event: str, duration_secs: float, **_: Any) -> None:
        if event in _COMPILE_EVENTS:
            self._compile_seconds += duration_secs

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        return jax.eval_shape(function, *args)

    def no_grad(self) -> Any:
        return contextlib.nullcontext()

    def value_and_grad(self, loss: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[tuple[Any, Any], Any]]:
        return jax.value_and_grad(loss, has_aux=True)

    def optimizer(self, config: OptimizerConfig) -> Optimizer:
        return JaxOptimizer(config, self._place)


def _name_of(device: Any) -> str:
    """Name of a device, such as "cuda:0"; JAX calls GPUs of all makers "gpu"."""
    kind = device.platform
    if kind == "gpu":
        kind = "rocm" if "rocm" in str(device.client.platform_version).lower() else "cuda"
    return f"{kind}:{device.id}"


def _devices() -> dict[str, Any]:
    """Devices of this process by name: those of JAX's default kind first, then the processor."""
    devices: list[Any] = list(jax.local_devices())
    with contextlib.suppress(RuntimeError):  # JAX_PLATFORMS may leave out the processor
        devices += [device for device in jax.local_devices(backend="cpu") if device not in devices]
    return {_name_of(device): device for device in devices}


def _write(held: Any, values: Mapping[Any, Any]) -> None:
    """Sets the variables of a module, or of a container of modules, and below it, to those of a nested mapping."""
    for name, value in values.items():
        inner = vars(held)[str(name)] if isinstance(held, nnx.Module) else held[name]
        if isinstance(value, nnx.Variable):
            inner.set_raw_value(value.get_raw_value())  # as ``nnx.update`` does
        else:
            _write(inner, value)


def _is_trained(path: Any, variable: Any) -> bool:
    """Filter of NNX for parameters that are not frozen."""
    del path
    return isinstance(variable, nnx.Param) and not variable.get_metadata(_FROZEN, False)


@jax.jit
def _copies(arrays: list[jax.Array]) -> list[jax.Array]:
    return [jnp.copy(array) for array in arrays]


@jax.jit
def _adopted(arrays: list[Any]) -> list[jax.Array]:
    """JAX's arrays for NumPy's: arguments of a compiled call are taken over in a fifth of ``jnp.asarray``'s time."""
    return arrays


def _by_name(function: Any) -> Any:
    """Name of a compiled function in its module, by which pickle finds the function, as it can't take the content."""
    found = getattr(sys.modules.get(function.__module__), function.__qualname__, None)
    return function.__qualname__ if found is function else function.__reduce__()


copyreg.pickle(type(_copies), _by_name)


def _leaf(variable: Any, native_path: tuple[Any, ...], place: Callable[[Any], Any]) -> Leaf:
    # A typed random key is stored as its words; the network built for loading knows its kind.
    def write(value: np.ndarray) -> None:
        own = variable[...]
        if _is_key(own):
            words = jnp.array(value, jnp.uint32)
            variable[...] = place(jax.random.wrap_key_data(words, impl=jax.random.key_impl(own)))
        else:
            variable[...] = place(jnp.array(value, own.dtype))

    return Leaf(
        trained=isinstance(variable, nnx.Param),
        read=lambda: _words(variable[...]),
        write=write,
        # As ``jax.tree_util.keystr`` writes the path in an ``nnx.State``.
        native_path=jax.tree_util.keystr((*map(jax.tree_util.DictKey, native_path), jax.tree_util.GetAttrKey("value"))),
        to_portable=np.asarray,
        from_portable=np.asarray,
        holder=variable,
    )


def _plain_key(key: Any) -> Any:
    """Words of a typed threefry key; any other array as it is. A ValueError for a typed key of another kind."""
    if not _is_key(key):
        return key
    if (kind := str(jax.random.key_impl(key))) != "threefry2x32":
        raise ValueError(
            f"A random key of {kind} is not possible here: expected one of threefry2x32, of two words, such as "
            "jax.random.key(seed, impl='threefry2x32') or multippo.random.key(seed)."
        )
    return jax.random.key_data(key)


def _order(words: Any) -> Any:
    """Stable order of 32-bit words ``[..., n]``.

    XLA's CPU backend sorts plain numbers four times as fast as pairs, so each word is one number with its position.
    """
    if platform() != "cpu":
        return jnp.argsort(words, axis=-1, stable=True)
    with jax.enable_x64(True):
        numbers = words.astype(jnp.uint64) << 32 | jnp.arange(words.shape[-1], dtype=jnp.uint64)
        return jnp.sort(numbers, axis=-1, stable=False).astype(jnp.uint32).astype(jnp.int32)


@functools.cache
def _paths(structure: Any) -> list[str]:
    """Paths of the leaves in the trees of a tuple of some structure."""
    tree = jax.tree.unflatten(structure, range(structure.num_leaves))
    return [jax.tree_util.keystr(path[1:]) for path, _ in jax.tree_util.tree_leaves_with_path(tree)]


def _words(value: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(value) if _is_key(value) else value)


def _is_key(value: Any) -> bool:
    return not isinstance(value.dtype, np.dtype)


def make_engine() -> JaxEngine:
    """Makes the engine: its entry point."""
    return JaxEngine()
