"""Weights of a network as NumPy arrays, out and in, whole or in part; and weights that are not trained.

The portable form of weights has names and layouts that every engine shares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.types import StatefulModule

_KINDS = {"b": "b", "i": "iu", "u": "iu", "f": "biuf", "c": "biufc"}
"""Kinds of numbers (NumPy's letters) that may be written, by the kind of the network's own array."""


def to_portable(module: Any) -> dict[str, np.ndarray]:
    """Every ``Param`` and ``Variable`` of a module, and the weights of the native layers it wraps.

    Args:
        module: A StatefulModule on any engine.

    Returns:
        Arrays by dotted path, sorted; a dense kernel is ``[in, out]``, a convolution's ``[height, width, in, out]``;
        an LSTM's gates are i, f, g, o with one bias, a GRU's r, z, n.

    Raises:
        TypeError: If ``module`` is not a StatefulModule.
        ValueError: If two arrays have one name, since a key holds a dot.
    """
    refuse_other_module("to_portable", module)
    return {name: _as_kept(leaf.read()) for name, leaf in module.engine.leaves(module).items()}


def portable_split(module: Any, params: Any, variables: Any) -> dict[str, np.ndarray]:
    """Portable form of other arrays of a module's structure; the module lends their names and layouts.

    Args:
        module: A StatefulModule, which is read and not written to: it may be in training meanwhile.
        params: Trained arrays, as ``engine.split`` returns them.
        variables: Tracked arrays, as ``engine.split`` returns them.
    """
    held = module.engine.native_arrays(params, variables)
    leaves = module.engine.leaves(module).items()
    return {name: _as_kept(np.array(leaf.to_portable(held[leaf.native_path]), order="C")) for name, leaf in leaves}


def refuse_other_state(what: str, state: Any, expected: str) -> None:
    """Raises a TypeError unless ``state`` is a mapping; ``what`` names the function that got it."""
    if not isinstance(state, Mapping):
        raise TypeError(f"{what} got a {type(state).__name__}; expected {expected}.")


def _as_kept(value: np.ndarray) -> np.ndarray:
    # uint32 words (random keys) and int64 ones are the same numbers, and torch's bfloat16 is read as float32: one type
    # on all engines makes files equal.
    return value.astype(np.int64) if value.dtype == np.uint32 else _without_extensions(value)


def load_portable(module: Any, arrays: Mapping[str, Any]) -> None:
    """Writes arrays from ``to_portable`` into a module of the same structure, on any engine.

    Args:
        module: A StatefulModule.
        arrays: Arrays by name. Floating-point types are cast to the module's; counters and keys take integers alone.

    Raises:
        ValueError: If a name is missing or left over, a shape differs, or an integer is out of range.
        TypeError: If ``module`` is not a StatefulModule, ``arrays`` not a mapping, or an array holds numbers that the
            network's can't. Nothing is written after any error.
    """
    refuse_other_module("load_portable", module)
    refuse_other_state("load_portable", arrays, "the arrays by name that to_portable returns")
    leaves = module.engine.leaves(module)
    missing, extra = sorted(set(leaves) - set(arrays)), sorted(set(arrays) - set(leaves), key=str)
    if missing or extra:
        raise ValueError(
            f"The weights do not fit this {type(module).__name__}: missing {missing or 'none'}, left over "
            f"{extra or 'none'}. Load them into a network built the same way."
        )
    # All of them before the first is written.
    values = {name: fitted(name, numbers(name, arrays[name]), leaf.read()) for name, leaf in leaves.items()}
    for name, leaf in leaves.items():
        leaf.write(values[name])


class LoadReport(NamedTuple):
    """Report of ``load_matching``: names of arrays with their shapes.

    Attributes:
        loaded: Arrays that were written.
        left: Arrays of the network that stay as they are: the network's shape, and the source's or None.
        unused: Arrays of the source that no layer of the network has.
    """

    loaded: dict[str, tuple[int, ...]]
    left: dict[str, tuple[tuple[int, ...], tuple[int, ...] | None]]
    unused: dict[str, tuple[int, ...]]

    def __str__(self) -> str:
        lines = [f"loaded {name} {shape}" for name, shape in self.loaded.items()]
        for name, (own, other) in self.left.items():
            lines.append(f"left   {name} {own}, {f'in the source {other}' if other else 'not in the source'}")
        return "\n".join([*lines, *(f"unused {name} {shape}" for name, shape in self.unused.items())])


def load_matching(module: Any, source: Any) -> LoadReport:
    """Writes into a network the layers that another one has alike, to go on training it with other spaces.

    A layer is loaded if each of its arrays has the same name and shape in ``source``, and is left as it is otherwise:
    half of one, such as a normaliser's count without its mean, would mean nothing.

    Args:
        module: A StatefulModule.
        source: Another one, on any engine, or arrays from ``to_portable``.

    Returns:
        The report; ``print`` shows it.

    Raises:
        TypeError: If ``module`` is not a StatefulModule, or ``source`` neither one nor a mapping.
        ValueError: If an array holds other numbers than the network's; nothing is written then.

    Example:
        >>> import multippo as mp
        >>> small, large = mp.make_mlp([3, 8, 2], mp.Rngs(0)), mp.make_mlp([4, 8, 2], mp.Rngs(1))
        >>> print(mp.load_matching(large, small))
        loaded layers.1.bias (2,)
        loaded layers.1.kernel (8, 2)
        left   layers.0.bias (8,), in the source (8,)
        left   layers.0.kernel (4, 8), in the source (3, 8)
    """
    refuse_other_module("load_matching", module)
    theirs = to_portable(source) if isinstance(source, StatefulModule) else source
    refuse_other_state("load_matching", theirs, "a network, or the arrays by name that to_portable returns")
    own, shapes = to_portable(module), {name: np.shape(array) for name, array in theirs.items()}
    unlike = {_layer(name) for name, array in own.items() if shapes.get(name) != array.shape}
    loaded = {name: array.shape for name, array in own.items() if _layer(name) not in unlike}
    load_portable(module, {**own, **{name: theirs[name] for name in loaded}})
    left = {name: (array.shape, shapes.get(name)) for name, array in own.items() if name not in loaded}
    return LoadReport(loaded, left, {name: shape for name, shape in shapes.items() if name not in own})


def _layer(name: str) -> str:
    return name.rpartition(".")[0]


def numbers(name: str, value: Any) -> np.ndarray:
    """An array of numbers as NumPy's.

    Args:
        name: Name of the array in errors.
        value: An array of any library and on any device, a number, or nested lists of numbers.

    Returns:
        The same numbers; float16, and kinds that NumPy itself does not know (bfloat16, 8-bit floats, 4-bit integers),
        become float32, which holds each of them.

    Raises:
        TypeError: If ``value`` is not an array of numbers, or can't be read: ragged lists, sparse or quantised arrays,
            or arrays without data.
    """
    is_tensor = hasattr(value, "detach") and hasattr(value, "layout")
    try:
        array = _from_tensor(value) if is_tensor else np.asarray(value)
    except (TypeError, ValueError, RuntimeError, NotImplementedError) as error:
        raise TypeError(
            f"{name} is a {type(value).__name__} that can't be read as an array of numbers ({error}); expected one."
        ) from error
    array = _without_extensions(array)
    if array.dtype.kind not in "biufc":
        what = type(value).__name__ if array.dtype.kind == "O" and not array.ndim else str(array.dtype)
        raise TypeError(f"{name} holds {what}; expected an array of numbers.")
    # Numbers computed from half precision, such as the sum of two biases, are not to be rounded to half precision.
    return array.astype(np.float32) if array.dtype == np.float16 else array


def fitted(name: str, value: np.ndarray, own: np.ndarray) -> np.ndarray:
    """An array in the shape and type of the array it is to replace.

    Args:
        name: Name of the array in errors.
        value: Array from ``numbers``.
        own: Array of the network.

    Raises:
        ValueError: If the shapes differ, or integers lie outside what the network's type holds.
        TypeError: If a counter or key is to become a number with a fraction, or a real number a complex one.
    """
    if value.shape != own.shape:
        raise ValueError(f"{name} has shape {value.shape} in the weights; the network expects {own.shape}.")
    own_kind = "f" if own.dtype.kind == "V" else own.dtype.kind
    # An empty list becomes an array of float64, whatever its numbers would have been.
    if value.size and value.dtype.kind not in _KINDS[own_kind]:
        raise TypeError(f"{name} holds {value.dtype} in the weights; the network expects {own.dtype}.")
    if value.size and own_kind in "iu":
        limits, least, most = np.iinfo(own.dtype), int(value.min()), int(value.max())
        if least < limits.min or most > limits.max:
            raise ValueError(
                f"{name} holds integers from {least} to {most} in the weights; the network expects {own.dtype}, from "
                f"{limits.min} to {limits.max}."
            )
    # A number that float32 can't hold becomes infinite, as in any cast.
    with np.errstate(over="ignore"):
        return value.astype(own.dtype)


def _without_extensions(array: np.ndarray) -> np.ndarray:
    """The array, as float32 if its type is not one of NumPy's own."""
    # Other packages' types have NumPy's letter for raw bytes, whose own type is np.void.
    extension = array.dtype.kind == "V" and array.dtype.type is not np.void
    return array.astype(np.float32) if extension else array


def _from_tensor(tensor: Any) -> np.ndarray:
    host = tensor.detach().cpu()
    # NumPy has no bfloat16; float32 holds each of its numbers.
    return (host.float() if host.dtype.is_floating_point and host.element_size() < 4 else host).numpy()


def freeze(module: Any) -> None:
    """Excludes a module's parameters from training, until ``unfreeze``.

    Statistics are updated as before. A frozen network is saved and loaded as any other; a network that is rebuilt for
    loading has to be frozen again. On torch ``freeze`` is ``module.requires_grad_(False)``.

    Args:
        module: A StatefulModule, a whole network or a part of one.

    Raises:
        TypeError: If ``module`` is not a StatefulModule.

    Example:
        >>> import multippo as mp
        >>> layer = mp.Dense(2, 2, mp.Rngs(0))
        >>> mp.freeze(layer)
        >>> len(layer.engine.named_params(layer.engine.split(layer).params))
        0
    """
    refuse_other_module("freeze", module)
    module.engine.freeze(module, True)


def unfreeze(module: Any) -> None:
    """Trains a module's parameters again; in a continued run the optimiser's moments of them are zero at first.

    Args:
        module: A StatefulModule.

    Raises:
        TypeError: If ``module`` is not a StatefulModule.
    """
    refuse_other_module("unfreeze", module)
    module.engine.freeze(module, False)
