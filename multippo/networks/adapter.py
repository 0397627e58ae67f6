"""``PPOAdapter``: from a network's ports to a ``PPONetworkOutput``."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping
from typing import Any

import optree

from multippo.arguments import describe
from multippo.networks.containers import Container, Pass, check_child, named_children
from multippo.networks.types import PPONetworkOutput, StatefulModule

_SAMPLER_KEYS = {"action", "log_likelihood"}


class PPOAdapter(Container):
    """Runs an action port and a value port on the same input and packs their outputs for PPO.

    The ports may look at different parts of the input. A critic may see more than the actor, for example a simulator's
    state that a robot will not have:

    >>> import multippo as mp
    >>> rngs = mp.Rngs(0)
    >>> actor = [mp.Filter("policy"), mp.Normalizer(3), mp.Dense(3, 8, rngs, "tanh"), mp.Dense(8, 4, rngs)]
    >>> critic = [mp.Filter("privileged"), mp.Normalizer(5), mp.Dense(5, 8, rngs, "tanh"), mp.Dense(8, 1, rngs)]
    >>> network = mp.PPOAdapter(
    ...     action=mp.Sequential([*actor, mp.NormalTanhSampler(rngs)]), value=mp.Sequential(critic)
    ... )
    >>> list(network.children_by_key)
    ['action', 'value']

    Args:
        ports: Dict of the two ports, in place of the keyword arguments.
        action: Module that yields ``{"action", "log_likelihood"}``, as every sampler does, or a tree of such dicts, one
            for each key of the action space.
        value: Module that yields the value estimate ``[B]`` or ``[B, 1]`` (a trailing axis of 1 is squeezed), or a tree
            of them, one for each key of the reward.

    Raises:
        TypeError: If there are other ports, or a port is missing, not a StatefulModule, or of another engine.
        ValueError: If both a dict and keyword arguments are given.
    """

    def __init__(
        self,
        ports: Mapping[str, StatefulModule] | None = None,
        /,
        *more: Any,
        action: StatefulModule | None = None,
        value: StatefulModule | None = None,
    ) -> None:
        given = {name: port for name, port in (("action", action), ("value", value)) if port is not None}
        named = named_children("PPOAdapter", ports, more, given, "action=..., value=...")
        if not set(named) <= {"action", "value"}:
            raise TypeError(f"PPOAdapter got the ports {list(named)}; expected PPOAdapter(action=..., value=...).")
        for port in ("action", "value"):
            check_child(self.engine, f"PPOAdapter({port}=...)", named.get(port))
        self.keys = ("action", "value")
        self.action, self.value = named["action"], named["value"]

    def _route(self, children: Pass, x: Any) -> PPONetworkOutput:
        samples = children.run("action", x)
        values = children.run("value", x)
        leaves, structure = optree.tree_flatten(samples, is_leaf=_is_sample)
        if not leaves or not all(map(_is_sample, leaves)):
            raise ValueError(
                f"PPOAdapter's action port yielded {describe(samples)}; expected "
                "{'action', 'log_likelihood'}, or a tree of such dicts. End it with a sampler."
            )
        entropies = [sample["entropy"] for sample in leaves if "entropy" in sample]
        squeeze = functools.partial(self._squeeze, leaves[0]["log_likelihood"].ndim)
        return PPONetworkOutput(
            actions=structure.unflatten(map(operator.itemgetter("action"), leaves)),
            loglikelihoods=structure.unflatten(map(operator.itemgetter("log_likelihood"), leaves)),
            value_estimates=optree.tree_map(squeeze, values),
            entropies=structure.unflatten(entropies) if len(entropies) == len(leaves) else None,
        )

    def _squeeze(self, batch_axes: int, value: Any) -> Any:
        if not hasattr(value, "shape") or not self.xp.isdtype(value.dtype, "real floating"):
            of = f" of {str(value.dtype).removeprefix('torch.')}" if hasattr(value, "shape") else ""
            raise TypeError(
                f"PPOAdapter's value port yielded {describe(value)}{of}; expected an array of real floating-point "
                "numbers, one for each environment."
            )
        if value.ndim == batch_axes + 1 and value.shape[-1] == 1:
            return value[..., 0]
        if value.ndim != batch_axes:
            raise ValueError(
                f"PPOAdapter's value port yielded shape {tuple(value.shape)}; expected one number for each "
                f"environment, {tuple(value.shape[:batch_axes])} or {(*value.shape[:batch_axes], 1)}."
            )
        return value


def _is_sample(node: Any) -> bool:
    # An action space may have the two keys of a sample, but their entries are samples then.
    return isinstance(node, dict) and set(node) >= _SAMPLER_KEYS and hasattr(node["log_likelihood"], "shape")
