"""Loss replay: running the network again over a stored rollout, parallel in time."""

from __future__ import annotations

from typing import Any

from multippo.algorithms.types import Transition
from multippo.backends.registry import array_kind
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.unrolling import check_batch
from multippo.networks.types import PPONetworkOutput, StatefulModuleOutput
from multippo.trees import tree_map


def replay(network: Any, network_state: Any, transition: Transition) -> PPONetworkOutput:
    """Evaluates a rollout's stored samples under the network's current weights.

    Args:
        network: The network that acted, or one of the same structure.
        network_state: Its carry from *before* the rollout.
        transition: From ``unroll_env``, ``[T, B, ...]``.

    Returns:
        ``[T, B, ...]``. Before any update it equals ``transition.network_output`` at every valid step.

    Raises:
        TypeError: If ``network`` is not a StatefulModule, or ``transition`` not a Transition with its engine's arrays.
        ValueError: If the carry is of another number of environments.
    """
    refuse_other_module("replay", network, "network")
    transition = _own(network.engine, transition)
    check_batch("replay", network_state, transition.done.shape[1])
    xp = network.xp
    order = valid_first(xp, transition.valid)
    obs, done, extras = gather_time(xp, (transition.obs, transition.done, transition.rollout_extras), order)
    out: StatefulModuleOutput = network.unroll(network_state, obs, done, extras)
    return gather_time(xp, out.output, xp.argsort(order, axis=0, stable=True))


def _own(engine: Any, transition: Any) -> Transition:
    """Returns a transition in the engine's arrays: as it is, or converted from NumPy's."""
    if not isinstance(transition, Transition):
        raise TypeError(
            f"replay got a {type(transition).__name__} as its transition; expected what unroll_env returned, a "
            "Transition."
        )
    received, own = array_kind(transition.done), array_kind(engine.zeros((1,)))
    if received == own:
        return transition
    if received == "numpy":
        return tree_map(engine.asarray, transition)
    raise TypeError(
        f"replay got a transition with arrays of {received}; the network is a {engine.name} module. Collect it with a "
        "network of that engine, or hand over NumPy's arrays."
    )


def valid_first(xp: Any, valid: Any) -> Any:
    """The order ``[T, B]`` of steps in which those that are not valid come last.

    The carry stands still in a step that is not valid, so the valid ones, moved together, are the network's history.
    """
    return xp.argsort(xp.astype(~valid, xp.int32), axis=0, stable=True)


def gather_time(xp: Any, tree: Any, order: Any) -> Any:
    """Reorders the steps of each environment: ``[T, B, ...]`` leaves by ``order`` ``[T, B]``."""

    def gather(x: Any) -> Any:
        index = xp.reshape(order, order.shape + (1,) * (x.ndim - 2))
        return xp.take_along_axis(x, xp.broadcast_to(index, x.shape), axis=0)

    return tree_map(gather, tree)
