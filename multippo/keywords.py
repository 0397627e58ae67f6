"""Keyword arguments that nothing takes, answered with the nearest name that is taken."""

from __future__ import annotations

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

__all__ = ["did_you_mean", "known_keywords", "refuse_unknown"]

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
"""What other libraries call some settings."""

_NNX_PPO = {
    "obs_size": "observation",
    "action_size": "action",
    "networks": "network",
    "n_envs": "num_envs",
    "n_epochs": "num_epochs",
    "n_minibatches": "num_minibatches",
    "max_episode_length": "max_episode_steps",
}
"""What nnx-ppo calls some arguments: taken as well, so that a program for it needs other imports only."""

_Callable = TypeVar("_Callable", bound=Callable[..., Any])


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
