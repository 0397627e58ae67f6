"""Reports of a training run: metrics as floats, values that are not finite, warnings."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from multippo.algorithms.types import Episodes

# Leaves that the network computes of an observation.
VALUE, LIKELIHOOD, NEXT_VALUE = "value estimate", "log-likelihood", "value of the next observation"
_PARAMETER = "parameter"

LogFn = Callable[..., Any]
"""``log_fn(metrics, step, env)``, or with the first one or two alone."""


_RECENT = 100  # episodes


def last_episodes(report: dict[str, Any], before: Episodes = ()) -> Episodes:
    """The last episodes after an iteration, of which the report is, and of which ``before`` are those before it."""
    ended = report["episodes/length"] > 0
    new = np.stack([report["episodes/reward"][ended], report["episodes/length"][ended]], axis=1, dtype=np.float64)
    return [*before, *new[-_RECENT:].tolist()][-_RECENT:]


def readable(report: dict[str, Any], recent: Episodes) -> dict[str, float]:
    """Metrics of an iteration as floats.

    Args:
        report: The iteration's metrics as arrays.
        recent: The last episodes after it.
    """
    metrics = {
        name: float(value)
        for name, value in report.items()
        if not name.startswith(("nonfinite/", "episodes/")) and name != "steps"
    }
    if "kl/stop" in metrics:
        metrics["kl/stop"] = metrics["kl/stop"] or math.nan  # no stop
    ended = report["episodes/length"] > 0
    metrics["rollout/episodes"] = float(ended.sum())
    for place, kind in enumerate(("reward", "length")):
        of_all = report[f"episodes/{kind}"][ended]
        of_recent = np.asarray([episode[place] for episode in recent] or [np.nan], np.float64)
        metrics[f"rollout/episode_{kind}/mean"] = float(of_all.mean(dtype=np.float64)) if len(of_all) else math.nan
        metrics[f"rollout/episode_{kind}_100/mean"] = float(of_recent.mean())
        metrics[f"rollout/episode_{kind}_100/std"] = float(of_recent.std())
    return metrics


def callback(name: str, function: Any, takes: tuple[str, ...], least: int) -> Callable[..., Any] | None:
    """Function of all arguments that calls the user's with as many of them as that takes.

    An optional parameter is given a value if its name is that of the argument, such as ``step`` in ``wandb.log``.

    Args:
        name: Name of the callback, for an error.
        function: The user's function, or None.
        takes: Names of the arguments.
        least: Number of arguments that every function must take.

    Raises:
        TypeError: If ``function`` is not a function, or takes another number of arguments.
    """
    if function is None:
        return None
    form = f"{name}({', '.join(takes)})" + (", or with the first of these" if least < len(takes) else "")
    if not callable(function):
        raise TypeError(f"{name}={function!r} is not possible: expected a function, {form}.")
    count = least
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a builtin, such as list.append
        pass
    else:
        fitting = [count for count in range(least, len(takes) + 1) if _binds(signature, count)]
        if not fitting:
            raise TypeError(f"{name} takes {signature}; expected {form}.")
        count, names = fitting[0], list(signature.parameters)
        while count + 1 in fitting and names[count : count + 1] == [takes[count]]:
            count += 1
        if any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values()):
            count = max(count, 2)
    return lambda *arguments: function(*arguments[:count])


def _binds(signature: inspect.Signature, count: int) -> bool:
    try:
        signature.bind(*[None] * count)
    except TypeError:
        return False
    return True


def first_not_finite(report: dict[str, Any], num_envs: int, params: list[tuple[str, Any]], xp: Any) -> tuple[str, str]:
    """Names the first value that was not finite, such as ``gradient of layers.0.kernel``, and its place.

    Args:
        report: An iteration's metrics in which ``nonfinite/any`` holds.
        num_envs: B.
        params: The parameters from before the iteration with their names, in the engine's order.
        xp: Array namespace.
    """
    # A bad parameter spoils all outputs of the network, and with its actions the environment's.
    for name, leaf in params:
        if not bool(xp.all(xp.isfinite(leaf))):
            return f"{_PARAMETER} {name}", ""
    found = {
        name.removeprefix("nonfinite/"): int(place)
        for name, place in report.items()
        if name.startswith("nonfinite/") and name != "nonfinite/any" and int(place) >= 0
    }
    # A bad observation makes the loss bad too, so the first is named.
    leaf = min(found, key=lambda name: _order(name, found[name]))
    place = found[leaf]
    if leaf == "gradient":
        return f"gradient of {params[place][0]}", ""
    if leaf == "loss":
        return leaf, f" in minibatch {place}"
    step, env = divmod(place, num_envs)
    return leaf, f" at step {step} of the rollout in environment {env}"


def _order(kind: str, place: int) -> tuple[int, int, bool, str]:
    """Sort key of a value that is not finite: by step, inputs before the network's outputs; loss; gradient."""
    stage = ("loss", "gradient").index(kind) + 1 if kind in ("loss", "gradient") else 0
    return stage, place, kind.startswith((VALUE, LIKELIHOOD, NEXT_VALUE)), kind


def remedy(leaf: str, nonfinite: str) -> str:
    """Remedy for a value that is not finite, at which a run has stopped."""
    if leaf == "loss" or leaf.startswith("gradient"):
        return "lower the learning rate, or look for huge values in the environment."
    if leaf.startswith(f"{_PARAMETER} "):
        return "look for what made it so: an initial value, or weights that were loaded."
    if leaf.startswith((VALUE, LIKELIHOOD, NEXT_VALUE)):
        return (
            "look for its cause in the network, such as a division by zero, a logarithm or square root of what is not "
            "positive, or numbers beyond 3.4e38 in float32; or in the environment, in huge values or a last "
            "observation that is not finite."
        )
    squared = (
        ", nor are rewards above some 1e18 once scale_rewards has squared them: make_env(reward_scale=...) makes them "
        "smaller"
    )
    also = squared if leaf.startswith("reward") else ""
    looked = f"look for its cause in the environment (in float32 numbers beyond 3.4e38 are not finite{also})."
    if nonfinite == "stop":
        return looked + " nonfinite='restart' begins a new episode instead."
    return looked + " A single environment is restarted; not all at once, nor where a restart is impossible or in vain."


def replay_warning(deviation: float, iteration: int) -> str:
    """Text of the warning of a network that does not repeat its rollout in replay."""
    return (
        f"Before any update the ratio of new to old likelihood was off by {deviation:.2g} in iteration {iteration}: "
        "replayed, the network does not repeat what it did in the rollout. A module draws its noise afresh, writes to "
        "itself or to what it was given in a call, keeps something outside its state, or resets it at another time; "
        "multippo.testing.check_module(module, inputs) finds out which."
    )


def zero_gradient_warning(metrics: dict[str, float]) -> str | None:
    """Text of the warning of gradients that are all exactly zero in a run's first iteration; None if one is not.

    Args:
        metrics: Metrics of that iteration.
    """
    if metrics["gradient/norm"] != 0.0 or not metrics["update/minibatches"]:
        return None
    return (
        "Every gradient of the first iteration is exactly zero, so nothing is learned: a module cuts the graph "
        "(detach, stop_gradient, no_grad, rounding), every parameter is frozen or unused, or all rewards and values "
        "are the same."
    )
