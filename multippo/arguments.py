"""Checks of arguments: sizes, numbers, switches, inputs of layers and names of keywords; and the words for a value.

Every refusal says what was received and what was expected. A class passes its name as ``kind``; for a field of a
configuration, or an argument that has one meaning everywhere, ``kind`` is empty.
"""

from __future__ import annotations

import difflib
import functools
import inspect
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np

from multippo.trees import named_leaves

_ELSEWHERE = {
    "lr": "learning_rate",
    "gamma": "discounting_factor",
    "lambda": "gae_lambda",
    "total_timesteps": "total_steps",
    "n_envs": "num_envs",
    "n_steps": "rollout_length",
    "num_steps": "rollout_length",
    "n_epochs": "num_epochs",
    "update_epochs": "num_epochs",
    "batch_size": "num_minibatches",
    "clip_coef": "clip_range",
    "ent_coef": "entropy_weight",
    "vf_coef": "critic_loss_weight",
    "max_grad_norm": "gradient_clipping",
    # Brax
    "num_timesteps": "total_steps",
    "unroll_length": "rollout_length",
    "num_updates_per_batch": "num_epochs",
    "discounting": "discounting_factor",
    "clipping_epsilon": "clip_range",
    "entropy_cost": "entropy_weight",
    "vf_loss_coefficient": "critic_loss_weight",
    # rsl_rl
    "num_steps_per_env": "rollout_length",
    "num_learning_epochs": "num_epochs",
    "num_mini_batches": "num_minibatches",
    "lam": "gae_lambda",
    "clip_param": "clip_range",
    "entropy_coef": "entropy_weight",
    "value_loss_coef": "critic_loss_weight",
}
"""Names of settings in other libraries, with ours."""

_CONVERSIONS = {"batch_size": "num_envs x rollout_length / batch_size"}
"""Values of settings whose meaning differs from the other library's."""

_NNX_PPO = {
    "obs_size": "observation",
    "action_size": "action",
    "networks": "network",
    "rng": "rngs",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "n_minibatches": "num_minibatches",
    "max_episode_length": "max_episode_steps",
}
"""Names of arguments in nnx-ppo, with ours. Both are taken, so that a program for nnx-ppo needs other imports only."""

_WITHOUT_EFFECT = ("logging_level", "logging_percentiles")
"""Arguments of nnx-ppo that mean nothing here, where everything is logged."""

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def describe(value: Any) -> str:
    """Words for a value in an error: its entries, its shape, or its type, with a number or text itself."""
    if isinstance(value, Mapping):
        return f"a dict with the entries {sorted(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)} entries" if value else f"an empty {type(value).__name__}"
    if hasattr(value, "shape"):
        return f"an array of shape {tuple(value.shape)}"
    return f"a {type(value).__name__}" + (f" ({value!r})" if isinstance(value, int | float | str) else "")


def require(condition: bool, name: str, received: Any, expected: str, kind: str = "") -> None:
    """Raises a ValueError unless a condition on an argument holds."""
    if not condition:
        received = received.item() if isinstance(received, np.generic) else received
        argument = f"{name}={received!r}"
        raise ValueError(f"{f'{kind}({argument})' if kind else argument} is not possible: expected {expected}.")


def is_integer(value: Any, least: float = -math.inf) -> TypeGuard[int]:
    """True for an integer of Python or NumPy of at least ``least``; truth values are not integers."""
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= least)


def check_size(kind: str, name: str, size: Any, least: int = 1, otherwise: str = "") -> int:
    """Returns a size as an int; whole floats are allowed.

    Args:
        kind: Name of the class or environment with the argument, or "".
        name: Name of the argument.
        size: Value of the argument.
        least: Least possible size.
        otherwise: Other possible values for the error, such as ", or None".

    Raises:
        ValueError: If ``size`` is not an integer, or below ``least``; the error names the argument.
    """
    whole = int(size) if isinstance(size, float | np.floating) and float(size).is_integer() else size
    require(is_integer(whole, least), name, size, f"an integer of at least {least}{otherwise}", kind)
    return int(whole)


def check_sizes(kind: str, name: str, sizes: Any) -> list[int]:
    """Returns sizes of layers as a list of ints.

    Raises:
        TypeError: If ``sizes`` is a string or can't be iterated over.
        ValueError: If a size is not an integer of at least 1.
    """
    if isinstance(sizes, str) or not isinstance(sizes, Iterable):
        argument = f"{kind}({name}={sizes!r})" if kind else f"{name}={sizes!r}"
        raise TypeError(f"{argument} is not possible: expected a list of sizes, such as [64, 64].")
    return [check_size(kind, f"{name}[{index}]", size) for index, size in enumerate(sizes)]


def is_number(value: Any) -> bool:
    """True for a finite real number of Python or NumPy; truth values are not numbers."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.integer | np.floating):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def check_number(kind: str, name: str, value: Any, *, least: float = -math.inf, above: float = -math.inf) -> float:
    """Returns a number as a float.

    Args:
        kind: Name of the class with the argument, or "".
        name: Name of the argument.
        value: Value of the argument.
        least: Least possible number.
        above: Lower bound that is not possible itself.

    Raises:
        ValueError: If ``value`` is not a finite number, or out of range; the error names the class and the argument.
    """
    limit = f" of at least {least:g}" if least > -math.inf else f" above {above:g}" if above > -math.inf else ""
    fits = is_number(value) and value >= least and value > above
    require(fits, name, value, f"a {'' if limit else 'finite '}number{limit}", kind)
    return float(value)


def check_flag(kind: str, name: str, value: Any) -> bool:
    """Returns a flag as a bool.

    Raises:
        TypeError: If ``value`` is anything but True or False, and might be taken for either.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{kind}({name}={value!r}) is not possible: expected True or False.")
    return bool(value)


def check_features(kind: str, x: Any, features: int) -> None:
    """Raises unless the input of a layer is an array with the layer's features on its last axis.

    Raises:
        TypeError: If ``x`` is not an array.
        ValueError: If the last axis has another size.
    """
    if not hasattr(x, "shape"):
        raise TypeError(f"{kind} got {describe(x)}; expected an array with {features} features on the last axis.")
    if not x.shape or x.shape[-1] != features:
        raise ValueError(
            f"{kind} got an input of shape {tuple(x.shape)}; expected {features} features on the last axis."
        )


def check_leaves(kind: str, x: Any, names: list[str], lone: str = "an array") -> None:
    """Raises unless the leaves of an input have the given names.

    Args:
        kind: Name of the layer or function that takes the input.
        x: Tree of arrays.
        names: Names of the leaves, as in ``named_leaves``, in any order; ``[""]`` for a lone array.
        lone: Words for a lone array in the error.

    Raises:
        ValueError: If ``x`` has other leaves, fewer or more.
    """
    received, expected = sorted(name for name, _ in named_leaves(x)), sorted(names)
    if received != expected:
        what = describe(x) if received in ([], [""]) else f"an input with leaves {received}"
        wanted = lone if expected == [""] else f"leaves {expected}"
        raise ValueError(f"{kind} got {what}; expected {wanted}.")


_FRAMEWORKS = {"torch": "torch", "jax": "jax", "jaxlib": "jax", "flax": "jax", "numpy": "numpy"}


def unwrapped(function: Any) -> Any:
    """The function that a ``functools.partial`` calls in the end, or the function itself."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def framework_of(function: Any) -> str | None:
    """The framework that a function, and the arrays it takes, belongs to: "jax", "numpy", "torch", or None."""
    inner = unwrapped(function)
    # A method of a compiled class has its module in the class, a NumPy ufunc or a compiled function in its type.
    known = (inner, getattr(inner, "__objclass__", None), type(inner))
    packages = ((getattr(one, "__module__", None) or "").partition(".")[0] for one in known)
    return next((_FRAMEWORKS[package] for package in packages if package in _FRAMEWORKS), None)


def is_the_librarys(kind: type) -> bool:
    """True for a class of this library, bound or not; False for a user's class, derived from one or not."""
    return kind.__module__.partition(".")[0] == "multippo"


def did_you_mean(wanted: str, known: Iterable[str]) -> str:
    """A sentence that names the nearest of the known names, or nothing if none is near.

    >>> did_you_mean("trian", ["train", "eval"])
    " Did you mean 'train'?"
    >>> did_you_mean("lr", ["learning_rate"])
    " Did you mean 'learning_rate'?"
    """
    names = {name.removeprefix("--").replace("-", "_"): name for name in known}
    plain = wanted.lower().removeprefix("--").replace("-", "_")
    same = _ELSEWHERE.get(plain)
    near = [same] if same in names else difflib.get_close_matches(plain, names, n=1, cutoff=0.6)
    value = f", which is {_CONVERSIONS[plain]}" if near == [same] and plain in _CONVERSIONS else ""
    return f" Did you mean {names[near[0]]!r}{value}?" if near else ""


def refuse_unknown(taker: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Raises for the first unknown keyword.

    Args:
        taker: Name of the class or function.
        given: Names of the keywords passed.
        known: Names of the keywords taken.

    Raises:
        TypeError: If a keyword is unknown; the error has the nearest known one.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f" It takes {', '.join(known)}."
            raise TypeError(f"{taker}() got an unexpected keyword argument {name!r}.{hint}")


def renamed(keywords: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """Keywords by our names: those of nnx-ppo are replaced where ours are known, or left out if they mean nothing here.

    >>> renamed({"n_envs": 2, "logging_level": 0, "seed": 1}, ["num_envs", "seed"])
    {'num_envs': 2, 'seed': 1}
    """
    ours = {theirs: name for theirs, name in _NNX_PPO.items() if name in known and name not in keywords}
    found = {name if name in known else ours.get(name, name): value for name, value in keywords.items()}
    return {name: value for name, value in found.items() if name in known or name not in _WITHOUT_EFFECT}


def known_keywords(target: _Callable) -> _Callable:
    """A class or function that answers an unknown keyword with the nearest known one, and takes nnx-ppo's names.

    The signature for ``inspect.signature`` and type checkers stays as it is.
    """
    function: Any = target.__init__ if isinstance(target, type) else target
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]

    takes_others = any(p.kind is p.VAR_KEYWORD for p in parameters)

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        keywords = renamed(keywords, known)
        if not takes_others:
            refuse_unknown(target.__name__, keywords, known)
        return function(*args, **keywords)

    if not isinstance(target, type):
        return cast("_Callable", call)
    cls: Any = target
    cls.__init__ = call
    return cast("_Callable", cls)
