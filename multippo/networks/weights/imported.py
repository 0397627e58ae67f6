"""Weights of plain torch and flax modules, converted to portable arrays by the kind of the layer that takes them.

Names and layouts differ: torch's ``nn.Linear`` has ``[out, in]`` where a kernel is ``[in, out]``, torch's recurrent
layers have two biases where one would do, and flax's linen cells have a kernel for each gate. Neither framework has to
be installed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from multippo.arguments import did_you_mean
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.weights.portable import load_portable, numbers, refuse_other_state, to_portable

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
