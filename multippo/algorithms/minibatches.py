"""From a rollout to training sequences and their minibatches."""

from __future__ import annotations

from typing import Any

from multippo.algorithms.config import PPOConfig
from multippo.algorithms.replay import gather_time, valid_first
from multippo.algorithms.types import Sequences, Transition
from multippo.networks.core.random_state import RandomState
from multippo.trees import select, tree_map


def has_memory(network_state: Any) -> bool:
    """True if a carry holds more than random keys, so that the order of steps matters to the network."""
    import optree

    is_random = lambda node: isinstance(node, RandomState)  # noqa: E731
    leaves = optree.tree_leaves(network_state, is_leaf=is_random)
    return any(not is_random(leaf) for leaf in leaves)


def choose_sequence_length(config: PPOConfig, num_envs: int, memory: bool) -> int:
    """Returns L: ``PPOConfig.sequence_length``, or 1 without memory, else the longest that splits evenly.

    Raises:
        ValueError: If no length splits evenly.
    """
    if config.sequence_length is not None:
        return config.sequence_length
    if not memory:
        return 1
    time = config.rollout_length
    for length in range(time, 0, -1):
        if time % length == 0 and num_envs * (time // length) % config.num_minibatches == 0:
            return length
    raise ValueError(
        f"{num_envs} environments x {time} steps can't be split into num_minibatches={config.num_minibatches}; "
        f"choose a divisor of {num_envs * time}."
    )


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
        may_skip: Whether entries may be invalid; each sequence's valid steps come first then, the others hold zeros.
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
        tree: Of such leaves.
        valid: ``[T, B]`` bool.
        length: L.
        may_skip: See ``make_sequences``.
    """

    def cut(x: Any) -> Any:
        time, batch, *rest = x.shape
        chunks = xp.reshape(x, (time // length, length, batch, *rest))
        return xp.reshape(xp.moveaxis(chunks, 0, 1), (length, time // length * batch, *rest))

    if may_skip:
        # A gradient of 0 at an entry that does not count is NaN where the entry is.
        tree = select(xp, valid, tree, tree_map(xp.zeros_like, tree))
    tree = tree_map(cut, tree)
    if may_skip and length > 1:
        tree = gather_time(xp, tree, valid_first(xp, cut(valid)))
    return tree


def minibatch_indices(random: Any, xp: Any, key: Any, num_sequences: int, config: PPOConfig) -> Any:
    """Draws the sequences of each minibatch: ``[epochs * minibatches, S / minibatches]``, each once an epoch."""
    orders = random.permutation(random.split(key, config.num_epochs), num_sequences)
    return xp.reshape(orders, (config.num_epochs * config.num_minibatches, num_sequences // config.num_minibatches))


def take_sequences(xp: Any, sequences: Sequences, index: Any) -> Sequences:
    """The sequences at ``index``."""
    state = tree_map(lambda x: xp.take(x, index, axis=0), sequences.network_state)
    rest = tree_map(lambda x: xp.take(x, index, axis=1), sequences._replace(network_state=None))
    return rest._replace(network_state=state)
