"""Contract of an engine, whole in one file: all that the author of an engine has to read.

An engine is an array library, with gradients if it is to train, bound to the neutral part of multippo: it makes native
modules out of neutral classes, wraps the layers its framework ships, and supplies the few transformations that
frameworks disagree on. Everything else (containers, samplers, statistics, PPO) is written once on top of it. The
shortest example is ``backends/numpy``.

Conventions that hold for every method: trees are made of dicts, lists, tuples, NamedTuples and None; a *key* is an
array of two 32-bit words; ``T`` is time, ``B`` the batch of environments.
"""

from __future__ import annotations

import abc
import operator
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from multippo.errors import UsageError
from multippo.trees import tree_map

PRECISIONS = ("float32", "float64", "bfloat16")
"""Names that ``multippo.precision`` takes."""


def check_precision(name: str) -> str:
    """Returns ``name`` if it is one of ``PRECISIONS``; raises a ValueError otherwise."""
    if name not in PRECISIONS:
        raise ValueError(f"precision({name!r}) is not known; expected one of {', '.join(map(repr, PRECISIONS))}.")
    return name


MATMUL_PRECISIONS = ("highest", "high")
"""Names that ``multippo.matmul_precision`` takes."""


def check_matmul_precision(name: str) -> str:
    """Returns ``name`` if it is one of ``MATMUL_PRECISIONS``; raises a ValueError otherwise."""
    if name not in MATMUL_PRECISIONS:
        choices = ", ".join(map(repr, MATMUL_PRECISIONS))
        raise ValueError(f"matmul_precision({name!r}) is not known; expected one of {choices}.")
    return name


class SplitModule(NamedTuple):
    """A module taken apart for functional code.

    Attributes:
        definition: Structure of the module, which ``Engine.merge`` takes with the arrays.
        params: Tree of the trained arrays.
        variables: Tree of the tracked arrays.
    """

    definition: Any
    params: Any
    variables: Any


class Leaf(NamedTuple):
    """Persistent array of a module, under its portable name and in its portable layout.

    Portable names are attribute paths with the wrapped native layer's own name left out (``layers.0.kernel``);
    portable layouts are ``[in, out]`` for a dense kernel, gate order i, f, g, o with a single bias for an LSTM, and
    r, z, n for a GRU.

    Attributes:
        trained: True for a parameter, be it frozen, False for a variable.
        read: Function that returns the value in the portable layout.
        write: Function that takes a value in the portable layout.
        native_path: Path of the native array in ``SplitModule.params`` or ``.variables``; see ``native_arrays``.
        to_portable: Native layout to portable layout, for arrays shaped like the native one (optimiser moments).
        from_portable: Inverse of ``to_portable``.
        holder: The framework's own object that holds the array; one and the same in modules that share it.
    """

    trained: bool
    read: Callable[[], np.ndarray]
    write: Callable[[np.ndarray], None]
    native_path: Any
    to_portable: Callable[[np.ndarray], np.ndarray]
    from_portable: Callable[[np.ndarray], np.ndarray]
    holder: Any


class OptimizerConfig(NamedTuple):
    """AdamW on a gradient clipped by its global norm (Loshchilov and Hutter, 2019; Pascanu et al., 2013).

    One step: ``g' = g min(1, clip / |g|)``; Adam's bias-corrected ratio ``u`` with epsilon outside the square root;
    ``p' = p - learning_rate (u + weight_decay p)``.

    Attributes:
        adam_epsilon: Adam's epsilon.
        weight_decay: Decoupled decay, 0 for none.
        gradient_clipping: Largest global norm of the gradient; None does not clip.
        beta1: Decay of the first moment.
        beta2: Decay of the second moment.
    """

    adam_epsilon: float = 1e-5
    weight_decay: float = 0.0
    gradient_clipping: float | None = None
    beta1: float = 0.9
    beta2: float = 0.999


class Optimizer(abc.ABC):
    """Optimiser of parameters, whose state is a tree, passed in and out."""

    @abc.abstractmethod
    def init(self, params: Any) -> Any:
        """State before the first step."""

    @abc.abstractmethod
    def step(self, params: Any, grads: Any, state: Any, learning_rate: Any, skip: Any) -> tuple[Any, Any, Any]:
        """Takes a step, or none where the boolean scalar ``skip`` holds or the gradient's norm is not finite.

        A step that is skipped leaves moments and count as they were.

        Returns:
            Parameters, state, and the global norm of the gradient before clipping. An engine may update in place
            and return its arguments.
        """

    @abc.abstractmethod
    def keep(self, params: Any, state: Any) -> Any:
        """Copy with which ``restore`` undoes all steps taken from here on."""

    @abc.abstractmethod
    def restore(self, kept: Any, params: Any, state: Any, condition: Any) -> tuple[Any, Any]:
        """Parameters and state as they were at ``keep`` where the boolean scalar ``condition`` holds, else as now."""

    @abc.abstractmethod
    def export_state(self, state: Any) -> tuple[Mapping[Any, Any], Mapping[Any, Any], int]:
        """First and second moments by ``Leaf.native_path``, NumPy arrays in the native layout, and the step count."""

    @abc.abstractmethod
    def import_state(self, params: Any, first: Mapping[Any, Any], second: Mapping[Any, Any], count: int) -> Any:
        """Inverse of ``export_state``; moments of a parameter that was frozen are zero."""


class Engine:
    """An engine.

    Not an ``abc.ABC``, whose instantiation would fail on methods alone: the registry reports everything that an engine
    lacks, attributes included, in one error.

    Attributes:
        name: Name of the engine for ``MULTIPPO_BACKEND``.
        xp: Array namespace: the functions of the array API standard.
        random: The functions of ``multippo.random`` for the engine's arrays.
        capabilities: Subset of "train" (gradients and optimisers), "float64", "functional" (traces functional JAX
            environments into the rollout), "compile" (has a compiler to switch on and off).
        activations: Activation functions by name; every engine has the same names.
        draws_ahead: True if a rollout should draw its noise in one call ahead of time rather than step by step.
        whole_steps: True if a step of acting should be one compiled call, which takes NumPy's arrays as they are.
        sums_in_order: True if every entry of a cumulative sum is the one before and a number more, rounding included.
    """

    name: str
    xp: Any
    random: Any
    capabilities: frozenset[str]
    activations: Mapping[str, Callable[[Any], Any]]
    draws_ahead: bool = False
    whole_steps: bool = False
    sums_in_order: bool = False

    # -- modules ---------------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def bind(self, neutral: type) -> type:
        """Class derived from ``neutral`` and the native module class; the same one at every call."""

    @abc.abstractmethod
    def make_variable(self, kind: str, value: Any) -> Any:
        """Native ``Param`` or ``Variable`` (named by ``kind``) that holds a copy of ``value``."""

    @abc.abstractmethod
    def split(self, module: Any) -> SplitModule:
        """Takes a module apart. Arrays are copied where the engine's training step would consume them."""

    @abc.abstractmethod
    def merge(self, definition: Any, params: Any, variables: Any) -> Any:
        """Module with the given arrays (the live module itself where the engine updates in place)."""

    @abc.abstractmethod
    def update_statistics(
        self, definition: Any, params: Any, variables: Any, rollout_extras: Any, valid: Any, skip: Any
    ) -> Any:
        """Calls the module's ``update_statistics``; returns the variables after it, unchanged where ``skip`` holds."""

    @abc.abstractmethod
    def update_module(self, module: Any, params: Any, variables: Any) -> None:
        """Writes arrays back into a user's module."""

    def freeze(self, module: Any, frozen: bool) -> None:
        """Makes the module's parameters variables to ``split``, or parameters again; see ``multippo.freeze``.

        Raises:
            NotImplementedError: If the engine can't freeze.
        """
        raise NotImplementedError(f"The {self.name} engine can't freeze a module: it does not supply Engine.freeze.")

    @abc.abstractmethod
    def children(self, module: Any) -> Iterator[tuple[str, Any]]:
        """Yields direct children that are modules, with their attribute names; lists and dicts as ``name.index``."""

    def attributes(self, module: Any) -> dict[str, Any]:
        """Attributes of a bound module by name: children, variables, lists and dicts of them, and all plain values."""
        return dict(vars(module))

    @abc.abstractmethod
    def copy_module(self, module: Any, child: Callable[[Any], Any], neutral: type | None = None) -> Any:
        """Copy of a native module that shares its parameters and variables; the original stays as it is.

        Args:
            module: The module to copy; bound, or of the framework's own.
            child: Function from each module directly below to the one in its place.
            neutral: The neutral class of the copy, a subclass of the module's; None for the same.
        """

    @abc.abstractmethod
    def leaves(self, module: Any) -> dict[str, Leaf]:
        """Every persistent array by portable name, each once, in sorted order.

        Raises:
            ValueError: If two arrays have one portable name.
        """

    # -- native layers ---------------------------------------------------------------------------------------------

    @abc.abstractmethod
    def linear(self, kernel: np.ndarray, bias: np.ndarray | None) -> Any:
        """The framework's dense layer, ``x @ kernel + bias``; kernel ``[in, out]``."""

    @abc.abstractmethod
    def lstm(self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray) -> Any:
        """The framework's LSTM, gates i, f, g, o on the last axis.

        The layer has ``step(x, h, c) -> (h, c)`` for one step,
        ``unroll(xs, h, c, done, h0, c0) -> (hs, h, c)`` for T steps with resets to ``(h0, c0)`` after ``done``, and
        ``carry(batch_size)``, zeros ``[B, H]`` of the weights' type.
        """

    @abc.abstractmethod
    def gru(
        self, input_kernel: np.ndarray, recurrent_kernel: np.ndarray, bias: np.ndarray, recurrent_bias: np.ndarray
    ) -> Any:
        """The framework's GRU, gates r, z, n on the last axis, reset after the recurrent product.

        With the gates of ``a = x @ input_kernel + bias`` and ``b = h @ recurrent_kernel``:
        ``r = sigmoid(a_r + b_r)``, ``z = sigmoid(a_z + b_z)``, ``n = tanh(a_n + r (b_n + recurrent_bias))`` and
        ``h' = (1 - z) n + z h``. ``bias`` is ``[3H]``; ``recurrent_bias`` is ``[H]``, since beside r and z a second
        bias would be redundant, and move their sum at twice the learning rate.

        The layer has ``step(x, h) -> h``, ``unroll(xs, h, done, h0) -> (hs, h)`` and ``carry(batch_size)``, as that of
        ``lstm``; portable names are those of the arguments.
        """

    @abc.abstractmethod
    def layer_norm(self, features: int, scale: np.ndarray | None, bias: np.ndarray | None, epsilon: float) -> Any:
        """The framework's layer normalisation of the last axis, with the biased variance, computed in two passes.

        ``(x - mean) / sqrt(variance + epsilon) * scale + bias``; portable names ``scale`` and ``bias``, both
        ``[features]``; None for one that is left out.
        """

    @abc.abstractmethod
    def conv(
        self, kernel: np.ndarray, bias: np.ndarray | None, stride: tuple[int, int], padding: str | tuple[int, int]
    ) -> Any:
        """The framework's two-dimensional convolution (cross-correlation), ``[B, H, W, in]`` to ``[B, H', W', out]``.

        Args:
            kernel: ``[kernel height, kernel width, in, out]``, also its portable layout.
            bias: ``[out]``, or None.
            stride: Down and across.
            padding: "valid" for none; "same" for ``ceil(size / stride)`` positions, with zeros on both sides, the odd
                one at the end; or the rows and columns of zeros on each side.
        """

    @abc.abstractmethod
    def lift(self, module: Any) -> Any:
        """Native module of the framework, moved to the engine's device, for a neutral module to hold.

        Raises:
            TypeError: If ``module`` is not a native module of this engine, or keeps a state of its own (running means,
                random streams), which a call would write; the error names the state.
        """

    def activation(self, name: str) -> Callable[[Any], Any]:
        """Activation function of a name; a ValueError for an unknown one lists the names."""
        if name not in self.activations:
            raise ValueError(f"Unknown activation {name!r}; expected one of {', '.join(sorted(self.activations))}.")
        return self.activations[name]

    # -- devices ---------------------------------------------------------------------------------------------------

    def device_name(self) -> str:
        """Name of the device of the engine's arrays, such as "cpu:0" or "cuda:1"; one of ``devices``."""
        return "cpu:0"

    def devices(self) -> tuple[str, ...]:
        """Names of the devices that are there, the default one first."""
        return ("cpu:0",)

    def on_device(self, name: str) -> Engine:
        """New engine of this kind whose arrays lie on another one of ``devices``; a ValueError if it can't have one."""
        raise ValueError(f"The {self.name} engine can't compute on {name}: it has no devices to choose from.")

    def activated(self) -> AbstractContextManager[Any]:
        """Context of the active engine, and of a run, that makes the engine's device the framework's default."""
        return nullcontext()

    def matmul_precision(self, name: str) -> AbstractContextManager[Any]:
        """Sets how exact products of float32 matrices are; see ``multippo.matmul_precision``.

        Raises:
            ValueError: If the name is not known (see ``check_matmul_precision``).
        """
        check_matmul_precision(name)
        return nullcontext()

    def numerics(self) -> dict[str, str]:
        """Device and the framework's settings that decide about rounding, for a run's records."""
        return {"device": self.device_name()}

    # -- arrays ----------------------------------------------------------------------------------------------------

    @property
    @abc.abstractmethod
    def float_dtype(self) -> Any:
        """Floating-point type of new parameters and carries, set by ``multippo.precision``."""

    @abc.abstractmethod
    def precision(self, name: str) -> AbstractContextManager[None]:
        """Sets the numbers that modules made in a ``with`` block compute in; see ``multippo.precision``.

        "float32" or "float64" is ``float_dtype``. With "bfloat16" ``float_dtype`` is float32, and native layers and
        ``product`` round the operands of their matrix products to bfloat16, and sum the products in float32, forwards
        and backwards.

        Raises:
            ValueError: If the name is not known (see ``check_precision``), or the engine lacks that precision.
        """

    def product(self) -> Callable[[Any, Any], Any]:
        """Function ``x @ kernel``, of ``[..., in]`` and ``[in, out]``, in the precision of modules made now."""
        return operator.matmul

    @abc.abstractmethod
    def asarray(self, value: Any) -> Any:
        """Array from NumPy, Python or native data, on the engine's device, dtype kept; no alias of NumPy memory."""

    def adopt(self, arrays: list[np.ndarray]) -> list[Any]:
        """Arrays from those of NumPy that nothing writes to any more; they may alias the memory."""
        return [self.asarray(array) for array in arrays]

    @abc.abstractmethod
    def to_numpy(self, value: Any) -> np.ndarray:
        """Value on the host; may alias the engine's memory, so read it at once."""

    @abc.abstractmethod
    def from_jax(self, tree: Any) -> Any:
        """Arrays of a functional environment as this engine's."""

    @abc.abstractmethod
    def to_jax(self, tree: Any) -> Any:
        """Arrays of this engine as JAX's."""

    @abc.abstractmethod
    def stack_time(self, trees: list[Any]) -> Any:
        """Stacks a rollout's steps, trees of this engine's or NumPy arrays, to ``[T, ...]`` arrays of this engine."""

    @abc.abstractmethod
    def snapshot(self, tree: Any) -> Any:
        """Copy that nothing changes later, neither a training step in place nor a donated buffer."""

    def writable(self, tree: Any) -> Any:
        """Copies of a tree's arrays that may be written to, and pass gradients on.

        An engine whose arrays can't be written to returns the tree as it is.
        """
        return tree

    @abc.abstractmethod
    def named_params(self, params: Any) -> list[tuple[str, Any]]:
        """Leaves of ``SplitModule.params`` (or of gradients) with readable names, in a fixed order."""

    @abc.abstractmethod
    def native_arrays(self, params: Any, variables: Any) -> dict[Any, np.ndarray]:
        """Arrays of a split by their ``Leaf.native_path``, in their native layout; random keys as words."""

    @abc.abstractmethod
    def zeros(self, shape: tuple[int, ...]) -> Any:
        """Zeros in ``float_dtype``."""

    def stop_gradient(self, tree: Any) -> Any:
        """Tree of the same values, constant for differentiation."""
        return tree

    def tree_map(self, function: Callable[..., Any], tree: Any, *rest: Any) -> Any:
        """Maps trees that may hold node types only the engine's framework knows, such as a simulator's state."""
        return tree_map(function, tree, *rest)

    # -- transformations, by default those of an engine without compiler and gradients ---------------------------------

    def scan(self, body: Callable[[Any, Any], tuple[Any, Any]], carry: Any, xs: Any, length: int) -> tuple[Any, Any]:
        """Computes ``carry, y_t = body(carry, x_t)`` for each t; returns the last carry and the ``y_t`` stacked."""
        stacked: list[Any] = []
        for t in range(length):
            carry, y = body(carry, tree_map(lambda x, t=t: x[t], xs))
            stacked.append(y)
        return carry, self.stack_time(stacked)

    def cond(self, predicate: Any, if_true: Callable[[], Any], if_false: Callable[[], Any]) -> Any:
        """Evaluates one of two functions that return the same structure, by a boolean scalar array."""
        return if_true() if bool(predicate) else if_false()

    def checkpoint(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Function of trees of arrays whose inner values are not kept for the gradient, but computed again for it.

        An engine without gradients returns the function as it is.
        """
        return function

    def jit(
        self, function: Callable[..., Any], donate: tuple[int, ...] = (), static: tuple[int, ...] = ()
    ) -> Callable[..., Any]:
        """Compiles a whole programme, loops included, where the engine can; otherwise returns the function as it is.

        Args:
            function: The function to compile.
            donate: Positions of arguments whose memory may be reused; not to be read afterwards.
            static: Positions of arguments that are hashable and no arrays.
        """
        del donate, static
        return function

    def jit_together(self, function: Callable[..., Any]) -> Callable[[list[Any], list[Any]], list[Any]]:
        """Compiles a function to one that computes several calls at once; supplied with the capability "functional".

        Args:
            function: Function from trees of arrays to a tree of arrays, always of the same shapes.

        Returns:
            Function of the first arguments of all calls, whose memory may be reused, and of the rest of their
            arguments, which returns all results.
        """
        raise NotImplementedError(f"The {self.name} engine computes one call at a time.")

    def save_programme(self, make: Callable[[Any], Callable[..., Any]], args: tuple[Any, ...], path: Path) -> Any:
        """Saves a function as a programme that runs without multippo, for any number of rows.

        Args:
            make: Makes the function from an array namespace, which has ``erf``, too.
            args: Examples of its arguments, trees of NumPy arrays ``[B, ...]``.
            path: File to write.

        Returns:
            The result of the examples.

        Raises:
            UsageError: If the engine has no such programmes.
        """
        raise UsageError(f"The engine {self.name} can't write programmes.")

    def draft(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compiles a programme that runs a few times only: as ``jit``, but quickly rather than well."""
        return self.jit(function)

    def kernel(self, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """Compiles a piece without loops, on engines whose ``jit`` does nothing; ``mode`` is TrainConfig.compile.

        The function may be a method of a class, given an object of the class before the arrays; the piece serves
        objects of equal structure.
        """
        del mode
        return function

    def straight(self, function: Callable[..., Any], args: Any, weights: Any) -> Any:
        """Code of a function without the Python between its operations, on an engine that acts on tensors of its own.

        For environments whose ``Env.arrays`` is the engine's name; no other engine supplies it. What it returns has the
        attributes and methods of ``backends.torch.straight.StraightCode``.

        Args:
            function: Function of trees of arrays.
            args: Arguments with the shapes of all calls.
            weights: Arrays by name that the function reads beside its arguments.
        """
        raise NotImplementedError(f"The {self.name} engine acts in no environment of its own arrays.")

    def recorded(self, function: Callable[..., Any], mode: str) -> Callable[..., Any]:
        """Repeats the operations of a function's first call, where Python would take longer than they do.

        An engine whose ``jit`` compiles whole programmes returns the function as it is.

        Args:
            function: Function from trees of arrays to a tree of arrays, always of the same shapes.
            mode: ``TrainConfig.compile``.
        """
        del mode
        return function

    def structure(self, definition: Any) -> Hashable:
        """Key of all that is compiled in of a ``SplitModule.definition``: equal if arrays' values alone differ.

        A definition without a hash, as where a module holds a list or dict of numbers, has its text as key.
        """
        try:
            hash(definition)
        except TypeError:
            return repr(definition)
        return definition

    profiling = False
    """True inside ``profile``."""

    @contextmanager
    def profile(self, directory: Path) -> Generator[None]:
        """Context whose work is traced to files in a directory, which TensorBoard or Perfetto opens."""
        with self.trace(directory):
            self.profiling = True
            try:
                yield
            finally:
                self.profiling = False

    def trace(self, directory: Path) -> AbstractContextManager[Any]:
        """The framework's own context of ``profile``."""
        raise NotImplementedError(f"The {self.name} engine writes no traces.")

    def annotate(self, name: str) -> AbstractContextManager[Any]:
        """Context of a phase of a run, by its name in the traces of ``profile``; costs next to nothing without one."""
        del name
        return nullcontext()

    def compile_seconds(self) -> float:
        """Seconds that this process has spent tracing and compiling so far."""
        return 0.0

    def clear_caches(self) -> None:
        """Frees programmes compiled so far, where they would otherwise stay in memory as long as the process."""
        return

    def shapes(self, function: Callable[..., Any], *args: Any) -> Any:
        """Result of ``function(*args)``, or a tree of the same structure, shapes and dtypes, cheaply."""
        return function(*args)

    def no_grad(self) -> AbstractContextManager[Any]:
        """Context in which nothing is differentiated, for acting."""
        return nullcontext()

    def training(self, rows: int, widest: int) -> AbstractContextManager[Any]:
        """Context of a whole run or evaluation, which owns the framework's modes: all is put back after it.

        Gradients are on, automatic casts off, ranks and types are promoted by the array API standard, and threads suit
        the work, whatever the process has set. Flags that look for faults (NaNs, leaks) stay as they are.

        Args:
            rows: Samples in one gradient step.
            widest: Features of the widest layer.
        """
        del rows, widest
        return nullcontext()

    @abc.abstractmethod
    def value_and_grad(self, loss: Callable[..., tuple[Any, Any]]) -> Callable[..., tuple[tuple[Any, Any], Any]]:
        """Turns ``loss(params, *args) -> (scalar, aux)`` into ``(params, *args) -> ((scalar, aux), grads)``.

        Gradients of unused parameters are 0.
        """

    @abc.abstractmethod
    def optimizer(self, config: OptimizerConfig) -> Optimizer:
        """AdamW as ``OptimizerConfig`` defines it."""
