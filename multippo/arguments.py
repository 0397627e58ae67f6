"""Checks of arguments: sizes, numbers, switches, inputs of layers and names of keywords; and the words for a value.

Every refusal says what was received and what was expected. A class passes its name as ``kind``; a field of a
configuration, or an argument that has one meaning everywhere, is refused by its own name, with an empty ``kind``.
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
    "clip_coef": "clip_range",
    "ent_coef": "entropy_weight",
    "vf_coef": "critic_loss_weight",
    "max_grad_norm": "gradient_clipping",
}
"""Names of some settings in other libraries."""

_NNX_PPO = {
    "obs_size": "observation",
    "action_size": "action",
    "networks": "network",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "n_minibatches": "num_minibatches",
    "max_episode_length": "max_episode_steps",
}
"""Names of some arguments in nnx-ppo, taken as well: a program for it needs other imports only."""

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


def describe(value: Any) -> str:
    """A value in an error's words: its entries, its shape, itself if it is a number or text, or its type."""
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
    """Returns a size, as an int; a float that is whole will do.

    Args:
        kind: The class or environment it is for, or "".
        name: Of the argument.
        size: What was given.
        least: Smallest one that is possible.
        otherwise: What else would be possible, such as ", or None".

    Raises:
        ValueError: If it is not an integer, or below ``least``; the error names the argument.
    """
    whole = int(size) if isinstance(size, float | np.floating) and float(size).is_integer() else size
    require(is_integer(whole, least), name, size, f"an integer of at least {least}{otherwise}", kind)
    return int(whole)


def check_sizes(kind: str, name: str, sizes: Any) -> list[int]:
    """Returns sizes of layers, one after another.

    Raises:
        TypeError: If it is not a list or tuple.
        ValueError: If one of them is not an integer of at least 1.
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
    """Returns a number, as a float.

    Args:
        kind: Whose argument it is.
        name: Of the argument.
        value: What was given.
        least: Smallest one that is possible.
        above: What it has to be larger than.

    Raises:
        ValueError: If it is not a finite number, or out of range; the error names the class and the argument.
    """
    limit = f" of at least {least:g}" if least > -math.inf else f" above {above:g}" if above > -math.inf else ""
    fits = is_number(value) and value >= least and value > above
    require(fits, name, value, f"a {'' if limit else 'finite '}number{limit}", kind)
    return float(value)


def check_flag(kind: str, name: str, value: Any) -> bool:
    """Returns True or False.

    Raises:
        TypeError: If it is anything else, which might be taken for either.
    """
    if not isinstance(value, bool | np.bool_):
        raise TypeError(f"{kind}({name}={value!r}) is not possible: expected True or False.")
    return bool(value)


def check_features(kind: str, x: Any, features: int) -> None:
    """Raises unless the input of a layer is an array with the layer's features on its last axis.

    Raises:
        TypeError: If it is not an array.
        ValueError: If its last axis has another size.
    """
    if not hasattr(x, "shape"):
        raise TypeError(f"{kind} got {describe(x)}; expected an array with {features} features on the last axis.")
    if not x.shape or x.shape[-1] != features:
        raise ValueError(
            f"{kind} got an input of shape {tuple(x.shape)}; expected {features} features on the last axis."
        )


def check_leaves(kind: str, x: Any, names: list[str], lone: str = "an array") -> None:
    """Raises unless the leaves of an input go by these names.

    Args:
        kind: Name of the taker.
        x: A tree of arrays.
        names: As in ``named_leaves``, in any order; the empty one alone for a lone array.
        lone: What an error calls that.

    Raises:
        ValueError: If it has other leaves, fewer or more.
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
    """The framework a function belongs to, and so whose arrays it takes: "jax", "numpy", "torch", or None."""
    inner = unwrapped(function)
    # Of a method of a compiled class the class knows, of a NumPy ufunc or a compiled function its type does.
    known = (inner, getattr(inner, "__objclass__", None), type(inner))
    packages = ((getattr(one, "__module__", None) or "").partition(".")[0] for one in known)
    return next((_FRAMEWORKS[package] for package in packages if package in _FRAMEWORKS), None)


def is_the_librarys(kind: type) -> bool:
    """True for a class of this library, bound or not; False for a user's, though it may be derived from one."""
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
    return f" Did you mean {names[near[0]]!r}?" if near else ""


def refuse_unknown(taker: str, given: Iterable[str], known: Iterable[str]) -> None:
    """Refuses the first keyword that is not known.

    Args:
        taker: What the error calls the class or function.
        given: Names that were passed.
        known: Names that are taken.

    Raises:
        TypeError: If there is one.
    """
    known = list(known)
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known) or f" It takes {', '.join(known)}."
            raise TypeError(f"{taker}() got an unexpected keyword argument {name!r}.{hint}")


def known_keywords(target: _Callable) -> _Callable:
    """A class or function that answers an unknown keyword with the nearest known one, and takes nnx-ppo's names.

    What ``inspect.signature`` and type checkers see of it stays as it is.
    """
    function: Any = target.__init__ if isinstance(target, type) else target
    parameters = inspect.signature(function).parameters.values()
    known = [p.name for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY) and p.name != "self"]

    @functools.wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        for theirs, ours in _NNX_PPO.items():
            if theirs in keywords and theirs not in known and ours in known and ours not in keywords:
                keywords[ours] = keywords.pop(theirs)
        refuse_unknown(target.__name__, keywords, known)
        return function(*args, **keywords)

    if not isinstance(target, type):
        return cast("_Callable", call)
    cls: Any = target
    cls.__init__ = call
    return cast("_Callable", cls)
