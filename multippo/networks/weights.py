"""Weights of a network as NumPy arrays, out and in; and weights that are not trained.

The portable form of weights has names and layouts that every engine shares. Names and layouts of torch and flax
differ: torch's ``nn.Linear`` has ``[out, in]`` where a kernel is ``[in, out]``, torch's recurrent layers have two
biases where one would do, and flax's linen cells have a kernel for each gate. ``load_torch_state`` and
``load_flax_state`` make portable arrays of such states, by the kind of the layer that takes them; neither framework has
to be installed for that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multippo.arguments import did_you_mean
from multippo.networks.core.error_paths import refuse_other_module

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


_Arrays = dict[str, np.ndarray]

_OWN = {"initial_h", "initial_c", "leak_logit"}
"""Names of parameters that no layer of either framework has, and that loading leaves as they are."""
_COUNT_LIMIT = 2**60
"""Upper bound of a normaliser's count, which is kept in two words of 30 bits."""


def load_torch_state(module: Any, state: Mapping[str, Any], names: Mapping[str, str] | None = None) -> list[str]:
    """Writes a plain torch module's ``state_dict`` into a network's layers, on any engine.

    ======================  ================================================================
    layer                   takes
    ======================  ================================================================
    ``Dense``               ``nn.Linear``
    ``LSTM``                ``nn.LSTMCell``, ``nn.LSTM`` of one layer and direction
    ``GRU``                 ``nn.GRUCell``, ``nn.GRU`` of one layer and direction
    ``RNN``                 ``nn.RNNCell``, ``nn.RNN`` of one layer and direction
    ``Conv``                ``nn.Conv2d``
    ``LayerNorm``           ``nn.LayerNorm`` over the last axis
    ``Normalizer``          buffers ``mean``, ``var`` and ``count`` (underscores before a name do not matter)
    ======================  ================================================================

    Args:
        module: Network, or a single layer.
        state: Arrays by dotted name, as ``state_dict`` returns them, on any device.
        names: Path in ``state`` of each layer to fill, by the layer's path in the network (the beginning of its arrays'
            names in ``to_portable``). None if ``module`` is a single layer and ``state`` is that of its counterpart.

    Returns:
        The names in ``state`` that were not asked for.

    Raises:
        ValueError: If a path is missing or not that of a layer, or its arrays do not fit.
        TypeError: If ``module`` is not a StatefulModule, ``state`` or ``names`` is not a mapping, or an array that is
            asked for does not hold real numbers. Nothing is written after any error.

    Example:
        >>> import multippo as mp
        >>> actor = mp.make_mlp([4, 8, 2], mp.Rngs(0), activation_last_layer=False)
        >>> weights = {
        ...     "pi.0.weight": np.ones((8, 4)),
        ...     "pi.0.bias": np.zeros(8),
        ...     "pi.2.weight": np.ones((2, 8)),
        ...     "pi.2.bias": np.zeros(2),
        ... }
        >>> load_torch_state(actor, weights, {"layers.0": "pi.0", "layers.1": "pi.2"})
        []
    """
    refuse_other_module("load_torch_state", module)
    refuse_other_state("load_torch_state", state, "arrays by name: pass module.state_dict()")
    return _load(module, state, names, _TORCH, "torch")


def load_flax_state(module: Any, state: Mapping[str, Any], names: Mapping[str, str] | None = None) -> list[str]:
    """Writes the weights of a plain flax module into a network's layers, on any engine.

    ======================  ================================================================
    layer                   takes (of ``flax.nnx`` and of ``flax.linen``)
    ======================  ================================================================
    ``Dense``               ``nnx.Linear``, ``linen.Dense``
    ``LSTM``                ``OptimizedLSTMCell``, ``LSTMCell``
    ``GRU``                 ``GRUCell`` (nnx's has no recurrent bias: zero)
    ``RNN``                 ``SimpleCell``
    ``Conv``                ``Conv``
    ``LayerNorm``           ``LayerNorm``, whose ``epsilon`` is 1e-6 by default, and 1e-5 here
    ``Normalizer``          arrays ``mean``, ``var`` and ``count``
    ======================  ================================================================

    Args:
        module: Network, or a single layer.
        state: Tree of arrays: ``nnx.state(module)``, or linen's ``variables`` or ``variables["params"]``.
        names: Paths as in ``load_torch_state``, with the keys of the tree joined by dots: ``params.Dense_0`` in linen's
            ``variables``. Without ``names``, linen's ``variables`` may have the one collection "params" alone.

    Returns:
        The names in ``state`` that were not asked for.

    Raises:
        ValueError: As ``load_torch_state``.
        TypeError: As ``load_torch_state``.
    """
    refuse_other_module("load_flax_state", module)
    refuse_other_state(
        "load_flax_state", state, "a tree of arrays: pass nnx.state(module), or what linen's module.init(...) returned"
    )
    if names is None and [*state] == ["params"] and isinstance(state["params"], Mapping):
        state = state["params"]
    return _load(module, dict(_flatten(state)), names, _FLAX, "flax")


def _load(
    module: Any,
    state: Mapping[str, Any],
    names: Mapping[str, str] | None,
    convert: Mapping[str, Callable[[_Arrays], _Arrays]],
    framework: str,
) -> list[str]:
    names = {"": ""} if names is None else names
    if not isinstance(names, Mapping) or not all(isinstance(path, str) for pair in names.items() for path in pair):
        raise TypeError(
            f"names={names!r} is not possible: expected a dict of the network's paths and those of the {framework} "
            "state, such as {'layers.0': 'pi.0'}."
        )
    weights, unused = to_portable(module), set(state)
    filled = dict(weights)
    for path, source in names.items():
        ours, given = _below(weights, path), _below(state, source)
        kind = _kind(path, ours, weights)
        if not given:
            places = {name.rpartition(".")[0] for name in state}
            raise ValueError(
                f"{source!r} is not a module of the {framework} state.{did_you_mean(source, places)} It has "
                f"{', '.join(sorted(places))}."
            )
        place = f"{framework}'s {source!r}" if source else f"the {framework} state"
        # Only names that are asked for, since a state may hold other things than arrays as well.
        theirs = {name: numbers(f"The {name} of {place}", value) for name, value in given.items()}
        found = _converted(convert[kind], theirs, f"{place}, for the {kind} at {path!r}" if path else place, kind)
        for suffix in sorted({*ours} - _OWN | {*found}):
            if suffix not in ours or suffix not in found:
                raise ValueError(
                    f"The {kind} at {path!r} has {sorted({*ours} - _OWN)}; {place} gives {sorted(found)}: build the "
                    "layer with or without a bias as the other has it."
                )
            filled[f"{path}.{suffix}" if path else suffix] = found[suffix]
        unused -= {name for name in state if not source or name.startswith(f"{source}.")}
    load_portable(module, filled)
    return sorted(unused)


def _converted(convert: Callable[[_Arrays], _Arrays], theirs: _Arrays, place: str, kind: str) -> _Arrays:
    rest = dict(theirs)
    try:
        found = convert(rest)
    except KeyError as error:
        raise ValueError(f"{place} has no {error.args[0]!r}; it has {sorted(theirs)}.") from None
    except (ValueError, IndexError) as error:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in sorted(theirs.items()))
        raise ValueError(f"{place} does not fit a {kind}: {error}; it has {shapes}.") from None
    if rest:
        raise ValueError(f"{place} has {sorted(rest)}, which a {kind} does not have.")
    return found


def _below(arrays: Mapping[str, Any], path: str) -> dict[str, Any]:
    if not path:
        return dict(arrays)
    return {name.removeprefix(f"{path}."): value for name, value in arrays.items() if name.startswith(f"{path}.")}


def _kind(path: str, ours: _Arrays, weights: _Arrays) -> str:
    """Kind of the layer that has these parameters."""
    if "kernel" in ours and {*ours} <= {"kernel", "bias"}:
        return {2: "Dense", 4: "Conv"}[ours["kernel"].ndim]
    if "scale" in ours and {*ours} <= {"scale", "bias"}:
        return "LayerNorm"
    if {*ours} == {"M2", "counter", "mean"}:
        return "Normalizer"
    if {"input_kernel", "recurrent_kernel"} <= {*ours} and not any("." in name for name in ours):
        hidden, gates = ours["recurrent_kernel"].shape
        return {1: "RNN", 3: "GRU", 4: "LSTM"}[gates // hidden]
    layers = sorted({name.rpartition(".")[0] for name in weights})
    raise ValueError(
        f"{path!r} is not a layer of the network with weights of a known kind.{did_you_mean(path, layers)} Those with "
        f"weights are {', '.join(map(repr, layers))}."
    )


def _flatten(tree: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flatten(value, (*path, str(key)))
    elif not _is_random(tree):
        # A variable of nnx gives its value by this index, which a number or a list does not have.
        with contextlib.suppress(TypeError, KeyError, IndexError):
            tree = tree[...]
        yield ".".join(path), tree


def _is_random(leaf: Any) -> bool:
    """True for a key or a count of ``nnx.Rngs``, which a module may keep."""
    return type(leaf).__name__ in ("RngKey", "RngCount") or getattr(leaf, "type", type(None)).__name__.startswith("Rng")


def _plain(theirs: _Arrays, name: str, ours: str, axes: tuple[int, ...] | None = None) -> _Arrays:
    """The arrays of a layer with one weight, its axes in another order, and maybe a bias."""
    found = {ours: theirs.pop(name)}
    if axes is not None:
        found[ours] = found[ours].transpose(axes)
    if "bias" in theirs:
        found["bias"] = theirs.pop("bias")
    return found


def _torch_recurrent(theirs: _Arrays, is_gru: bool = False) -> _Arrays:
    """The arrays of torch's cell, or of its layer, whose names have ``_l0`` behind."""
    for name in [name for name in theirs if name.endswith("_l0")]:
        theirs[name.removesuffix("_l0")] = theirs.pop(name)
    kernels = [theirs.pop("weight_ih").T, theirs.pop("weight_hh").T]
    none = np.zeros(kernels[0].shape[1])
    return _recurrent(kernels, [theirs.pop("bias_ih", none), theirs.pop("bias_hh", none)], is_gru)


def _flax_recurrent(theirs: _Arrays, gates: Sequence[str], is_gru: bool = False) -> _Arrays:
    """The arrays of flax's cell: of nnx's joint layers, or gate by gate."""
    joint, kernels, biases = "dense_i.kernel" in theirs, list[np.ndarray](), list[np.ndarray]()
    for side in "ih":
        names = [f"dense_{side}"] if joint else [side + gate for gate in gates]
        # "if" is a keyword, so nnx adds an underscore.
        names = [f"{name}_" if f"{name}_.kernel" in theirs else name for name in names]
        parts = [(theirs.pop(f"{name}.kernel"), theirs.pop(f"{name}.bias", None)) for name in names]
        kernels.append(np.concatenate([kernel for kernel, _ in parts], 1))
        biases.append(np.concatenate([np.zeros(kernel.shape[1]) if bias is None else bias for kernel, bias in parts]))
    return _recurrent(kernels, biases, is_gru)


def _recurrent(kernels: Sequence[np.ndarray], biases: Sequence[np.ndarray], is_gru: bool) -> _Arrays:
    """The arrays of a recurrent layer, from kernels and biases of its input and its carry."""
    found, (of_input, of_carry) = {"input_kernel": kernels[0], "recurrent_kernel": kernels[1]}, biases
    if is_gru:
        # The candidate's recurrent bias stands inside the product with r; those of r and z add to the input's.
        hidden = len(kernels[1])
        found["recurrent_bias"] = of_carry[2 * hidden :]
        of_carry = np.concatenate([of_carry[: 2 * hidden], np.zeros(hidden)])
    return {**found, "bias": np.stack([of_input, of_carry]).sum(0)}


def _statistics(theirs: _Arrays) -> _Arrays:
    plain = {name.lstrip("_"): theirs.pop(name) for name in list(theirs)}
    mean, variance, count = (plain.pop(name) for name in ("mean", "var", "count"))
    # Some states have a redundant deviation as well, some a leading axis of one.
    theirs.update({name: value for name, value in plain.items() if name != "std"})
    if not (count.size == 1 and 0 <= count.item() < _COUNT_LIMIT):
        raise ValueError(f"the count is {count}; expected one number from 0 to below 2**60")
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance >= 0).all()):
        raise ValueError(
            f"mean and variance are {mean} and {variance}; expected finite ones, and variances of 0 or more"
        )
    mean, variance = (value[0] if value.ndim > 1 and value.shape[0] == 1 else value for value in (mean, variance))
    number = round(count.item())
    return {"mean": mean, "M2": variance.astype(np.float64) * number, "counter": np.array(divmod(number, 2**30))}


_TORCH: dict[str, Callable[[_Arrays], _Arrays]] = {
    "Dense": lambda theirs: _plain(theirs, "weight", "kernel", (1, 0)),
    "Conv": lambda theirs: _plain(theirs, "weight", "kernel", (2, 3, 1, 0)),
    "LayerNorm": lambda theirs: _plain(theirs, "weight", "scale"),
    "LSTM": _torch_recurrent,
    "GRU": lambda theirs: _torch_recurrent(theirs, is_gru=True),
    "RNN": _torch_recurrent,
    "Normalizer": _statistics,
}
_FLAX: dict[str, Callable[[_Arrays], _Arrays]] = {
    "Dense": lambda theirs: _plain(theirs, "kernel", "kernel"),
    "Conv": lambda theirs: _plain(theirs, "kernel", "kernel"),
    "LayerNorm": lambda theirs: _plain(theirs, "scale", "scale"),
    "LSTM": lambda theirs: _flax_recurrent(theirs, "ifgo"),
    "GRU": lambda theirs: _flax_recurrent(theirs, "rzn", is_gru=True),
    "RNN": lambda theirs: _flax_recurrent(theirs, [""]),
    "Normalizer": _statistics,
}
