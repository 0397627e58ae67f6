"""Replay: a stored rollout evaluated again, and cut into training sequences and their minibatches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.types import Sequences, Transition
from multippo.backends.registry import array_kind
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.random_state import RandomState
from multippo.networks.core.unrolling import check_batch
from multippo.networks.types import PPONetworkOutput, StatefulModuleOutput
from multippo.trees import map_once, select, tree_map


def replay(network: Any, network_state: Any, transition: Transition) -> PPONetworkOutput:
    """Evaluates a rollout's stored samples under the network's current weights.

    Args:
        network: The network that acted, or one of the same structure.
        network_state: Carry of the network from *before* the rollout.
        transition: Rollout ``[T, B, ...]`` from ``unroll_env``.

    Returns:
        The output ``[T, B, ...]``; before any update equal to ``transition.network_output`` at every valid step.

    Raises:
        TypeError: If ``network`` is not a StatefulModule, or ``transition`` holds neither its engine's nor NumPy's
            arrays.
        ValueError: If the carry is of another number of environments.
    """
    refuse_other_module("replay", network, "network")
    transition = _own(network.engine, transition)
    check_batch("replay", network_state, transition.done.shape[1])
    return repeat_rollout(network, network_state, transition, lambda out: out.output)


def repeat_rollout(
    network: Any, network_state: Any, transition: Transition, part: Callable[[StatefulModuleOutput], Any]
) -> Any:
    """Unrolls a network over a stored rollout; returns a part of its output, ``[T, B, ...]``."""
    xp = network.xp
    order = valid_first(xp, transition.valid)
    obs, done, extras = gather_time(xp, (transition.obs, transition.done, transition.rollout_extras), order)
    out = network.unroll(network_state, obs, done, extras)
    return gather_time(xp, part(out), xp.argsort(order, axis=0, stable=True))


def _own(engine: Any, transition: Transition) -> Transition:
    """Transition in the engine's arrays: as it is, or converted from NumPy's.

    Raises:
        TypeError: If ``transition`` holds another engine's arrays.
    """
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
    """Order ``[T, B]`` of steps in which those that are not valid come last.

    The carry stands still in a step that is not valid, so the valid ones, moved together, are the network's history.
    """
    return xp.argsort(xp.astype(~valid, xp.int32), axis=0, stable=True)


def gather_time(xp: Any, tree: Any, order: Any) -> Any:
    """Reorders the steps of each environment: ``[T, B, ...]`` leaves by ``order`` ``[T, B]``."""

    def gather(x: Any) -> Any:
        index = xp.reshape(order, order.shape + (1,) * (x.ndim - 2))
        return xp.take_along_axis(x, xp.broadcast_to(index, x.shape), axis=0)

    return tree_map(gather, tree)


def unroll_sequences(network: Any, sequences: Sequences, remat_steps: int | None = None) -> StatefulModuleOutput:
    """Unrolls a network over training sequences ``[L, S, ...]``, from the carries before them.

    With ``remat_steps`` (see ``PPOConfig``) it goes from piece to piece of so many steps, and the last may be shorter;
    a loss or a metric that is one number for a piece is repeated for its steps, and snapshots are left out.
    """
    xs: Any = sequences.obs, sequences.done, sequences.rollout_extras
    length = sequences.done.shape[0]
    if remat_steps is None or length <= remat_steps:
        return network.unroll(sequences.network_state, *xs)
    xp, engine = network.xp, network.engine

    def piece(carry: Any, xs: Any) -> tuple[Any, Any]:
        out = network.unroll(carry, *xs)
        zeros = network.zeros(xs[1].shape)
        numbers = out.regularization_loss, out.metrics
        numbers = tree_map(lambda x: x if getattr(x, "ndim", 0) else zeros + x, numbers)
        return out.next_state, (out.output, *numbers)

    piece, (count, rest) = engine.checkpoint(piece), divmod(length, remat_steps)
    whole = tree_map(lambda x: xp.reshape(x[: length - rest], (count, remat_steps, *x.shape[1:])), xs)
    carry, made = engine.scan(piece, sequences.network_state, whole, count)
    made = tree_map(lambda x: xp.reshape(x, (length - rest, *x.shape[2:])), made)
    if rest:
        carry, last = piece(carry, tree_map(lambda x: x[length - rest :], xs))
        made = tree_map(lambda *parts: xp.concat(parts, axis=0), made, last)
    return StatefulModuleOutput(carry, *made)


def has_memory(network_state: Any) -> bool:
    """True if a carry holds more than random keys, so that the order of steps matters to the network."""
    leaves = optree.tree_leaves(network_state, is_leaf=lambda node: isinstance(node, RandomState))
    return not all(isinstance(leaf, RandomState) for leaf in leaves)


def choose_sequence_length(config: PPOConfig, num_envs: int, memory: bool) -> int:
    """Length L of training sequences: ``PPOConfig.sequence_length``, or 1 without memory, else the longest possible."""
    if config.sequence_length is not None:
        return config.sequence_length
    if not memory:
        return 1
    time = config.rollout_length
    divisors = [length for length in range(1, time + 1) if time % length == 0]
    # Length 1 always fits, as PPOConfig has checked.
    return max(length for length in divisors if num_envs * (time // length) % config.num_minibatches == 0)


def make_sequences(
    xp: Any, transition: Transition, starts: Any, advantages: Any, returns: Any, length: int, may_skip: bool
) -> Sequences:
    """Cuts a rollout ``[T, B, ...]`` into ``S = B T / L`` sequences ``[L, S, ...]``.

    Args:
        xp: Array namespace.
        transition: The rollout.
        starts: Carries ``[T / L, B, ...]``.
        advantages: Tree of ``[T, B]``.
        returns: Tree of ``[T, B]``.
        length: L.
        may_skip: True if entries may be invalid; each sequence's valid steps come first then, the others hold zeros.
    """
    over_time = Sequences(
        network_state=None,
        obs=transition.obs,
        done=transition.done,
        valid=transition.counted,
        rollout_extras=transition.rollout_extras if transition.targets is None else transition.targets,
        loglikelihoods=transition.network_output.loglikelihoods,
        value_estimates=transition.network_output.value_estimates,
        advantages=advantages,
        returns=returns,
    )
    sequences = cut_rollout(xp, over_time, transition.valid, length, may_skip)
    carries = tree_map(lambda x: xp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), starts)
    return sequences._replace(network_state=carries)


def cut_rollout(xp: Any, tree: Any, valid: Any, length: int, may_skip: bool) -> Any:
    """Cuts leaves ``[T, B, ...]`` to ``[L, S, ...]``, in the order of ``make_sequences``.

    Args:
        xp: Array namespace.
        tree: Tree of leaves ``[T, B, ...]``.
        valid: ``[T, B]`` bool.
        length: L.
        may_skip: See ``make_sequences``.
    """

    def cut(x: Any) -> Any:
        time, batch, *rest = x.shape
        chunks = xp.reshape(x, (time // length, length, batch, *rest))
        return xp.reshape(xp.moveaxis(chunks, 0, 1), (length, time // length * batch, *rest))

    if may_skip:
        # At an entry that is NaN even a gradient of 0 becomes NaN.
        tree = map_once(lambda x: select(xp, valid, x, xp.zeros_like(x)), tree)
    tree = map_once(cut, tree)
    if may_skip and length > 1:
        order = valid_first(xp, cut(valid))
        tree = map_once(lambda x: gather_time(xp, x, order), tree)
    return tree


def minibatch_indices(random: Any, xp: Any, key: Any, num_sequences: int, config: PPOConfig) -> Any:
    """Draws the sequences of each minibatch: ``[epochs * minibatches, S / minibatches]``, each once an epoch."""
    orders = random.permutation(random.split(key, config.num_epochs), num_sequences)
    return xp.reshape(orders, (config.num_epochs * config.num_minibatches, num_sequences // config.num_minibatches))


def take_sequences(xp: Any, sequences: Sequences, index: Any) -> Sequences:
    """Sequences at the positions in ``index``."""
    state = tree_map(lambda x: xp.take(x, index, axis=0), sequences.network_state)
    rest = map_once(lambda x: xp.take(x, index, axis=1), sequences._replace(network_state=None))
    return rest._replace(network_state=state)
