"""Record of a policy's step: what is written as code or as a file of another framework.

The step is recorded twice, with two numbers of rows. What differs between the records is the size of the batch.
"""

from __future__ import annotations

import keyword
import re
from typing import Any, NamedTuple

import numpy as np
import optree
from gymnasium import spaces

from multippo.envs.actions import make_action_map
from multippo.envs.observations import make_observation_map
from multippo.networks.core.random_state import reseed
from multippo.random import host
from multippo.straight.code import cone
from multippo.straight.recording import Recording, Step
from multippo.straight.tracing import Traced, UntraceableError, inputs_of, xp
from multippo.trees import tree_leaves, tree_map, tree_structure, tree_unflatten

_ROWS = 5, 7

REDUCTIONS = {
    "add": "sum",
    "multiply": "prod",
    "maximum": "max",
    "minimum": "min",
    "logical_or": "any",
    "logical_and": "all",
}
"""Names of reductions, by those of NumPy's operations of two arguments."""


class Record(NamedTuple):
    """A policy's step, from the observation as the environment gives it to the environment's own action.

    Attributes:
        one: The step with one number of rows.
        two: The step with another.
        twin: The network that was recorded.
        spaces: Spaces of the observation's leaves, in a tree as the observation is one.
        observation: Names of the observation's leaves.
        action: Names of the action's leaves.
        carry: Positions of the carry's leaves that the policy needs, by name.
    """

    one: Step
    two: Step
    twin: Any
    spaces: Any
    observation: list[str]
    action: list[str]
    carry: dict[str, int]

    @property
    def targets(self) -> list[Traced]:
        """Leaves of the action, then those of the next carry."""
        return [*tree_leaves(self.one.result[0]), *(self.one.after[k] for k in self.carry.values())]

    @property
    def example(self) -> tuple[Any, dict[str, Any], Any]:
        """Observation, carry and starts of the first record."""
        assert self.one.start is not None
        observation = tree_unflatten(tree_structure(self.spaces), [node.value for node in self.one.obs])
        carry = {name: self.one.carry[k].value for name, k in self.carry.items()}
        return observation, carry, self.one.start.value

    def first_carry(self) -> dict[str, Any]:
        """The first carry of one row, with the noise of seed 0."""
        random = self.twin.random
        key = random.wrap_key(host.split(host.key(0), 3)[0])
        leaves = tree_leaves(reseed(random, self.twin.initialize_state(1), key))
        return {name: leaves[k] for name, k in self.carry.items()}


def record(
    network: Any,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    dtype: Any = None,
    plain_words: Any = None,
) -> Record:
    """Record of the policy of a network in its present mode.

    Args:
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        observation_space: Space of one observation, as the environment gives it.
        action_space: Space of one action.
        dtype: Floating-point type; by default the network's own.
        plain_words: See ``Recording``; with a type the carry is reset before the step, where ``Step.start`` says so.

    Raises:
        UntraceableError: If the network can't be recorded.
        TypeError: If the network has no twin.
        ValueError: If a space is not supported.
    """
    make_observation_map(observation_space)
    leaves = space_tree(observation_space)
    example = tree_map(lambda space: np.zeros((1, *space.shape), raw_type(space)), leaves)
    act = lambda actions: make_action_map(action_space, len(tree_leaves(actions)[0]), xp)(actions)  # noqa: E731
    see = lambda obs: tree_map(_seen, leaves, obs)  # noqa: E731
    recording = Recording(network, network.initialize_state(1), example, False, see, act, dtype, plain_words)
    one, two = (recording.record(rows) for rows in _ROWS)
    if [node.op for node in one.nodes] != [node.op for node in two.nodes]:
        raise UntraceableError("the network goes another way with another number of rows")
    carry = _needed(one, tree_leaves(one.result[0]))
    accessors = optree.tree_accessors(recording.types)
    names = _short([[str(_entry(entry)) for entry in accessors[k]] for k in carry])
    seen, acted = _leaf_names("observation", leaves), _leaf_names("action", one.result[0])
    return Record(one, two, recording.twin, leaves, seen, acted, dict(zip(names, carry, strict=True)))


def space_tree(space: spaces.Space[Any]) -> Any:
    """The spaces of an observation's leaves, in a tree as the observation is one."""
    if isinstance(space, spaces.Dict):
        return {key: space_tree(part) for key, part in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(map(space_tree, space.spaces))
    return space


def raw_type(space: Any) -> np.dtype[Any]:
    """Type in which a leaf of the observation is taken."""
    return np.dtype(np.float32 if isinstance(space, spaces.MultiBinary) else space.dtype)


def choices_of(space: Any) -> tuple[np.ndarray, np.ndarray] | None:
    """First value and number of values of each choice; None for a space without choices."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.start]), np.array([space.n])
    if isinstance(space, spaces.MultiDiscrete):
        return space.start.ravel(), space.nvec.ravel()
    return None


def _seen(space: Any, x: Any) -> Any:
    """A leaf of the observation as the network gets it: see ``envs.observations``."""
    if (choices := choices_of(space)) is None:
        return x
    starts, sizes = choices
    values = np.concatenate([start + np.arange(size) for start, size in zip(starts, sizes, strict=True)])
    index = xp.reshape(x, (x.shape[0], len(sizes)))
    if len(sizes) > 1:
        index = xp.take(index, np.repeat(np.arange(len(sizes)), sizes), axis=1)
    return xp.astype(index == values.astype(space.dtype), np.float32)


def _needed(one: Step, actions: list[Traced]) -> list[int]:
    """Positions of the carry's leaves from which actions follow, in this step or in a later one."""
    needed = set[int]()
    while True:
        ahead = [*actions, *(one.after[k] for k in needed)]
        above = {node.index for node in cone(ahead)}
        known = {node.index for node in one.after}
        found = {k for k, node in enumerate(one.carry) if node.index in above}
        for k in needed:
            inside = cone([one.reset[k]], known)
            below = {x.index for x in (one.reset[k], *(x for node in inside for x in inputs_of(node)))}
            found |= {j for j, node in enumerate(one.after) if node.index in below}
        if found <= needed:
            return sorted(needed)
        needed |= found


def times_batch(one: int, two: int) -> int:
    """The multiple of the batch that two numbers of the records are, if they differ, as sizes that grow with it do."""
    times, rest = divmod(one, _ROWS[0])
    if rest or times * _ROWS[1] != two:
        raise UntraceableError("a size depends on the number of rows")
    return times


def repeated(value: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, int | None]:
    """An array of numbers in both records, or the row of which it consists, and the axis that grows with the batch."""
    axis = next((k for k, pair in enumerate(zip(value.shape, other.shape, strict=True)) if pair[0] != pair[1]), None)
    row = other if axis is None else value.take([0], axis)
    if not np.array_equal(np.broadcast_to(row, value.shape), value, equal_nan=value.dtype.kind == "f"):
        raise UntraceableError("an array of numbers depends on the number of rows")
    return row, axis


def _entry(entry: Any) -> Any:
    return getattr(entry, "field", None) or entry.entry


def identifier(path: str) -> str:
    """A Python name for a dotted path, without the names of containers' lists."""
    words = [word for word in path.split(".") if word not in ("layers", "components")]
    name = re.sub(r"\W", "_", "_".join(words))
    name = f"layer_{name}" if not name or name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def _short(paths: list[list[str]]) -> list[str]:
    """Ends of paths as names, as short as tells them apart."""
    sizes = range(1, max(map(len, paths), default=0) + 1)
    ends = ([identifier(".".join(path[-size:])) for path in paths] for size in sizes)
    return next((names for names in ends if len(set(names)) == len(names)), [])


def _leaf_names(name: str, tree: Any) -> list[str]:
    paths = [".".join([name, *map(str, accessor.path)]) for accessor in optree.tree_accessors(tree)]
    names = [identifier(path) for path in paths]
    return [name if names.count(name) == 1 else f"{name}_{k}" for k, name in enumerate(names)]
