"""Weights of plain torch and flax modules, written into a network's layers.

What their frameworks call an array, and how it lies in memory, differs from the portable form: torch's ``nn.Linear``
has ``[out, in]`` where a kernel is ``[in, out]``, its recurrent layers have two biases where one would do, and flax's
linen cells have a kernel for each gate. Here each layer's arrays become the portable ones, by the kind of the layer
that takes them; neither framework has to be installed for that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from multippo.arguments import did_you_mean
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.weights.portable import (
    load_portable,
    numbers,
    refuse_other_state,
    to_portable,
)

_Arrays = dict[str, np.ndarray]

_OWN = {"initial_h", "initial_c", "leak_logit"}
"""Parameters that no layer of either framework has; they stay as they are."""
_COUNT_LIMIT = 2**60
"""Bound of a normaliser's count, which is kept in two words."""


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
        module: A network, or a single layer.
        state: Arrays by dotted name, as ``state_dict`` returns them; on any device.
        names: For each layer to fill, its path in the network (the beginning of its arrays' names in ``to_portable``)
            and the one in ``state``. None: ``module`` is a single layer and ``state`` is that of its counterpart.

    Returns:
        The names in ``state`` that were not asked for.

    Raises:
        ValueError: If a path is missing or not that of a layer, or its arrays do not fit.
        TypeError: If ``state`` or ``names`` is not a mapping, or an array that is asked for does not hold real numbers.
            Nothing is written after any error.

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
    for name in state:
        if not isinstance(name, str):
            raise TypeError(
                f"load_torch_state got a state with the name {name!r}; expected dotted names, such as '0.weight', as "
                "module.state_dict() has them."
            )
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
        module: A network, or a single layer.
        state: ``nnx.state(module)``, or linen's ``variables`` or ``variables["params"]``: a tree of arrays.
        names: As in ``load_torch_state``, with the keys of the tree joined by dots: ``params.Dense_0`` in linen's
            ``variables``. Without it, linen's ``variables`` may have the one collection "params" alone.

    Returns:
        The names in ``state`` that were not asked for.

    Raises:
        ValueError: As ``load_torch_state``, and if two arrays have one name, since a key holds a dot.
        TypeError: As ``load_torch_state``.
    """
    refuse_other_module("load_flax_state", module)
    refuse_other_state(
        "load_flax_state", state, "a tree of arrays: pass nnx.state(module), or what linen's module.init(...) returned"
    )
    if names is None and [*state] == ["params"] and isinstance(state["params"], Mapping):
        state = state["params"]
    flat: dict[str, Any] = {}
    for name, value in _flatten(state):
        if name in flat:
            raise ValueError(f"Two arrays of the flax state are called {name!r}. Rename a key that holds a dot.")
        flat[name] = value
    return _load(module, flat, names, _FLAX, "flax")


def _load(
    module: Any,
    state: Mapping[str, Any],
    names: Mapping[str, str] | None,
    convert: Mapping[str, Callable[[_Arrays], _Arrays]],
    framework: str,
) -> list[str]:
    if names is not None and not isinstance(names, Mapping):
        raise TypeError(
            f"names is a {type(names).__name__}; expected a mapping of the network's paths to those of the {framework} "
            "state, such as {'layers.0': 'pi.0'}."
        )
    for pair in (names or {}).items():
        if not all(isinstance(path, str) for path in pair):
            raise TypeError(f"names has {pair[0]!r}: {pair[1]!r}; expected strings, such as 'layers.0': 'pi.0'.")
    weights, unused = to_portable(module), set(state)
    filled = dict(weights)
    for path, source in (names or {"": ""}).items():
        ours, given = _below(weights, path), _below(state, source)
        kind = _kind(path, ours, weights)
        if not given:
            places = {name.rpartition(".")[0] for name in state}
            raise ValueError(
                f"{source!r} is not a module of the {framework} state.{did_you_mean(source, places)} It has "
                f"{', '.join(sorted(places))}."
            )
        place = f"{framework}'s {source!r}" if source else f"the {framework} state"
        # Those alone that are asked for: a state may hold other things than arrays as well.
        theirs = {name: _real(f"The {name} of {place}", value) for name, value in given.items()}
        found = _converted(convert[kind], theirs, f"{place}, for the {kind} at {path!r}" if path else place, kind)
        for suffix in sorted({*ours} - _OWN | {*found}):
            if suffix not in ours or suffix not in found:
                raise ValueError(
                    f"The {kind} at {path!r} has {sorted({*ours} - _OWN)}; {place} gives {sorted(found)}: build the "
                    "layer with or without a bias as the other has it."
                )
            if found[suffix].shape != ours[suffix].shape:
                raise ValueError(
                    f"The {suffix} of the {kind} at {path!r} has shape {ours[suffix].shape}; {place} gives "
                    f"{found[suffix].shape}."
                )
            filled[f"{path}.{suffix}" if path else suffix] = found[suffix]
        unused -= {name for name in state if not source or name.startswith(f"{source}.")}
    load_portable(module, filled)
    return sorted(unused)


def _converted(convert: Callable[[_Arrays], _Arrays], theirs: _Arrays, place: str, kind: str) -> _Arrays:
    rest = dict(theirs)
    if kind == "Normalizer":
        _check_statistics(theirs, place)
    try:
        found = convert(rest)
    except KeyError as error:
        raise ValueError(f"{place} has no {error.args[0]!r}; it has {sorted(theirs)}.") from None
    except (ValueError, IndexError) as error:
        shapes = ", ".join(f"{name} {value.shape}" for name, value in sorted(theirs.items()))
        needed = ", which takes that of a convolution over height and width" if kind == "Conv" else ""
        raise ValueError(f"{place} has the shapes {shapes}; they do not fit a {kind}{needed} ({error}).") from None
    if rest:
        raise ValueError(f"{place} has {sorted(rest)}, which a {kind} does not have.")
    return found


def _real(name: str, value: Any) -> np.ndarray:
    array = numbers(name, value)
    if array.dtype.kind == "c":
        raise TypeError(f"{name} holds {array.dtype}; expected real numbers.")
    return array


def _check_statistics(theirs: _Arrays, place: str) -> None:
    """Raises a ValueError for statistics that inputs can't have, such as negative variances."""
    for name, value in theirs.items():
        kind = name.lstrip("_")
        if kind == "count" and not (value.size == 1 and 0 <= value.item() < _COUNT_LIMIT):
            raise ValueError(f"The {name} of {place} is {value}; expected one number from 0 to below 2**60.")
        if kind in ("mean", "var") and not np.isfinite(value).all():
            raise ValueError(f"The {name} of {place} has entries that are not finite; expected finite ones.")
        if kind == "var" and (value < 0).any():
            raise ValueError(f"The {name} of {place} has {value.min()}; expected variances of 0 or more.")


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


# -- torch


def _torch_dense(theirs: _Arrays) -> _Arrays:
    return {"kernel": theirs.pop("weight").T, **_renamed(theirs, bias="bias")}


def _torch_conv(theirs: _Arrays) -> _Arrays:
    return {"kernel": theirs.pop("weight").transpose(2, 3, 1, 0), **_renamed(theirs, bias="bias")}


def _torch_layer_norm(theirs: _Arrays) -> _Arrays:
    return {"scale": theirs.pop("weight"), **_renamed(theirs, bias="bias")}


def _torch_recurrent(theirs: _Arrays) -> tuple[_Arrays, np.ndarray, np.ndarray]:
    """Kernels, and biases of input and carry; a layer's arrays have the names of a cell's with ``_l0`` behind."""
    for name in [name for name in theirs if name.endswith("_l0")]:
        theirs[name.removesuffix("_l0")] = theirs.pop(name)
    kernels = {"input_kernel": theirs.pop("weight_ih").T, "recurrent_kernel": theirs.pop("weight_hh").T}
    none = np.zeros(kernels["input_kernel"].shape[1])
    return kernels, theirs.pop("bias_ih", none), theirs.pop("bias_hh", none)


def _torch_lstm(theirs: _Arrays) -> _Arrays:
    kernels, of_input, of_carry = _torch_recurrent(theirs)
    return {**kernels, "bias": _sum(of_input, of_carry)}


def _torch_gru(theirs: _Arrays) -> _Arrays:
    kernels, of_input, of_carry = _torch_recurrent(theirs)
    return _gru(kernels, of_input, of_carry)


# -- flax


def _flatten(tree: Any, path: tuple[str, ...] = ()) -> Iterable[tuple[str, Any]]:
    if isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from _flatten(value, (*path, str(key)))
    elif not _is_random(tree):
        # A variable of nnx gives its value so; a number or a list of them has no such index.
        yield ".".join(path), _held(tree)


def _held(leaf: Any) -> Any:
    try:
        return leaf[...]
    except (TypeError, KeyError, IndexError):
        return leaf


def _is_random(leaf: Any) -> bool:
    """True for a key or a count of ``nnx.Rngs``, which a module may keep."""
    return type(leaf).__name__ in ("RngKey", "RngCount") or getattr(leaf, "type", type(None)).__name__.startswith("Rng")


def _flax_dense(theirs: _Arrays) -> _Arrays:
    return {"kernel": theirs.pop("kernel"), **_renamed(theirs, bias="bias")}


def _flax_layer_norm(theirs: _Arrays) -> _Arrays:
    return {"scale": theirs.pop("scale"), **_renamed(theirs, bias="bias")}


def _flax_recurrent(theirs: _Arrays, gates: str) -> _Arrays:
    """Kernels and biases of input and carry: of nnx's joint layers, or of linen's gate by gate."""
    if "dense_i.kernel" in theirs:
        return {
            f"{side}.{array}": theirs.pop(f"dense_{side}.{array}")
            for side in "ih"
            for array in ("kernel", "bias")
            if array == "kernel" or f"dense_{side}.bias" in theirs
        }
    found: _Arrays = {}
    for side in "ih":
        kernels, biases = [], []
        for gate in gates:
            name = side + gate
            # "if" is a keyword, so nnx adds an underscore.
            name = f"{name}_" if f"{name}_.kernel" in theirs else name
            kernel = theirs.pop(f"{name}.kernel")
            kernels.append(kernel)
            biases.append(theirs.pop(f"{name}.bias", np.zeros(kernel.shape[1])))
        found[f"{side}.kernel"], found[f"{side}.bias"] = np.concatenate(kernels, 1), np.concatenate(biases)
    return found


def _flax_lstm(theirs: _Arrays) -> _Arrays:
    found = _flax_recurrent(theirs, "ifgo")
    none = np.zeros(found["h.kernel"].shape[1])
    bias = _sum(found.get("i.bias", none), found.get("h.bias", none))
    return {"input_kernel": found["i.kernel"], "recurrent_kernel": found["h.kernel"], "bias": bias}


def _flax_gru(theirs: _Arrays) -> _Arrays:
    found = _flax_recurrent(theirs, "rzn")
    none = np.zeros(found["h.kernel"].shape[1])
    kernels = {"input_kernel": found["i.kernel"], "recurrent_kernel": found["h.kernel"]}
    return _gru(kernels, found.get("i.bias", none), found.get("h.bias", none))


def _flax_rnn(theirs: _Arrays) -> _Arrays:
    joint = "dense_i.kernel" in theirs
    i, h = ("dense_i", "dense_h") if joint else ("i", "h")
    kernels = {"input_kernel": theirs.pop(f"{i}.kernel"), "recurrent_kernel": theirs.pop(f"{h}.kernel")}
    none = np.zeros(kernels["recurrent_kernel"].shape[0])
    return {**kernels, "bias": _sum(theirs.pop(f"{i}.bias", none), theirs.pop(f"{h}.bias", none))}


# -- both


def _statistics(theirs: _Arrays) -> _Arrays:
    plain = {name.lstrip("_"): theirs.pop(name) for name in list(theirs)}
    mean, variance, count = (plain.pop(name) for name in ("mean", "var", "count"))
    # Some states have a redundant deviation as well, some a leading axis of one.
    theirs.update({name: value for name, value in plain.items() if name != "std"})
    mean, variance = (value[0] if value.ndim > 1 and value.shape[0] == 1 else value for value in (mean, variance))
    count = round(count.item())
    return {"mean": mean, "M2": variance.astype(np.float64) * count, "counter": np.array(divmod(count, 2**30))}


def _gru(kernels: _Arrays, of_input: np.ndarray, of_carry: np.ndarray) -> _Arrays:
    hidden = kernels["recurrent_kernel"].shape[0]
    # The candidate's recurrent bias stands inside the product with r; those of r and z add to the others.
    outer = np.concatenate([of_carry[: 2 * hidden], np.zeros(hidden)])
    return {**kernels, "bias": _sum(of_input, outer), "recurrent_bias": of_carry[2 * hidden :]}


def _sum(of_input: np.ndarray, of_carry: np.ndarray) -> np.ndarray:
    """Sum of two biases; raises unless they have one shape."""
    if of_input.shape != of_carry.shape:
        raise ValueError(f"the biases of input and carry have shapes {of_input.shape} and {of_carry.shape}")
    return of_input + of_carry


def _renamed(theirs: _Arrays, **names: str) -> _Arrays:
    return {ours: theirs.pop(name) for ours, name in names.items() if name in theirs}


_TORCH: dict[str, Callable[[_Arrays], _Arrays]] = {
    "Dense": _torch_dense,
    "Conv": _torch_conv,
    "LayerNorm": _torch_layer_norm,
    "LSTM": _torch_lstm,
    "GRU": _torch_gru,
    "RNN": _torch_lstm,
    "Normalizer": _statistics,
}
_FLAX: dict[str, Callable[[_Arrays], _Arrays]] = {
    "Dense": _flax_dense,
    "Conv": _flax_dense,
    "LayerNorm": _flax_layer_norm,
    "LSTM": _flax_lstm,
    "GRU": _flax_gru,
    "RNN": _flax_rnn,
    "Normalizer": _statistics,
}
