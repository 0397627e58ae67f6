"""A policy in use: from an observation, as the environment gives it, to the environment's own action."""

from __future__ import annotations

import abc
import copy
import logging
from typing import Any

import numpy as np
from gymnasium import spaces

from multippo.arguments import check_flag, check_size, describe
from multippo.backends.registry import load_engine
from multippo.envs.actions import make_action_map
from multippo.envs.observations import make_observation_map
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.modes import evaluation_mode
from multippo.networks.core.random_state import reseed
from multippo.networks.core.twins import twin
from multippo.networks.core.unrolling import reset_where
from multippo.networks.types import PPONetworkOutput
from multippo.policy.record import space_tree
from multippo.policy.source import Source, write
from multippo.random import host
from multippo.trees import tree_leaves, tree_map

_LOG = logging.getLogger("multippo")


class Policy(abc.ABC):
    """A trained network that acts, with weights of its own.

    Attributes:
        observation_space: Space of one observation, as the environment gives it.
        action_space: Space of one action.
    """

    def __init__(self, observation_space: spaces.Space[Any], action_space: spaces.Space[Any], seed: int) -> None:
        self.observation_space, self.action_space = observation_space, action_space
        self._seed, self._starts = seed, 0

    @abc.abstractmethod
    def __call__(self, observation: Any, carry: Any = None) -> tuple[Any, Any]:
        """Takes a step.

        Args:
            observation: One observation as the environment gives it, or a batch of them (arrays with one more axis in
                front, dicts of such).
            carry: What the call before returned; None at the start of an episode. Never changed.

        Returns:
            The action in the environment's own coordinates, shape and type, one or a batch of them, and the carry of
            the next step.

        Raises:
            ValueError: If the observation does not fit the space.
        """

    @abc.abstractmethod
    def reset(self, carry: Any, done: Any) -> Any:
        """The carry of a batch where some episodes begin again; their noise goes on.

        Args:
            carry: What the last call returned.
            done: ``[B]`` bool, True where an episode has ended.
        """

    def _next_seed(self) -> int:
        """Seed of the noise from the next ``carry=None``: the policy's own, then others."""
        self._starts += 1
        return (self._seed + (self._starts - 1 << 32)) % 2**64


class NumpyPolicy(Policy):
    """A policy of straight NumPy code, which imports no framework.

    Attributes:
        source: The code.
    """

    def __init__(self, source: Source, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.source, functions = source, source.functions()
        self._act, self._reset = functions["act"], functions["reset"]

    def __call__(self, observation: Any, carry: Any = None) -> tuple[Any, Any]:
        """See ``Policy``."""
        return self._act(observation, carry) if carry is not None else self._act(observation, None, self._next_seed())

    def reset(self, carry: Any, done: Any) -> Any:
        """See ``Policy``."""
        return self._reset(carry, done)

    def __reduce__(self) -> tuple[Any, ...]:
        """The source and the arguments, since functions made of text can't be pickled."""
        return NumpyPolicy, (self.source, self.observation_space, self.action_space, self._seed)


class EnginePolicy(Policy):
    """A policy whose network acts on its engine: compiled on JAX, without gradients on torch."""

    def __init__(self, network: Any, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._network, self._engine = network, network.engine
        self._observations = make_observation_map(self.observation_space)
        self._leaf = tree_leaves(space_tree(self.observation_space))[0]
        definition, self._params, self._variables = self._engine.split(network)

        def step(params: Any, variables: Any, state: Any, obs: Any) -> tuple[Any, Any]:
            out = self._engine.merge(definition, params, variables)(state, obs)
            if not isinstance(out.output, PPONetworkOutput):
                raise TypeError(f"The network puts out {describe(out.output)}: end it in a PPOAdapter to act by it.")
            return out.output.actions, out.next_state

        self._step = self._engine.jit(step)

    def __call__(self, observation: Any, carry: Any = None) -> tuple[Any, Any]:
        """See ``Policy``."""
        first = np.asarray(tree_leaves(observation)[0])
        single = first.ndim == len(self._leaf.shape)
        batch, engine = 1 if single else len(first), self._engine
        obs = self._observations(observation, None if single else batch)
        with engine.no_grad():
            if carry is None:
                # The first of the three keys that an evaluation makes of its seed.
                key = engine.random.wrap_key(host.split(host.key(self._next_seed()), 3)[0])
                carry = reseed(engine.random, self._network.initialize_state(batch), key)
            actions, carry = self._step(self._params, self._variables, carry, tree_map(engine.asarray, obs))
        actions = make_action_map(self.action_space, batch)(tree_map(engine.to_numpy, actions))
        return (tree_map(lambda x: x[0], actions) if single else actions), carry

    def reset(self, carry: Any, done: Any) -> Any:
        """See ``Policy``."""
        with self._engine.no_grad():
            return reset_where(self._network, self._engine.asarray(np.asarray(done, bool).reshape(-1)), carry)


def make_policy(
    network: Any,
    observation_space: spaces.Space[Any],
    action_space: spaces.Space[Any],
    *,
    backend: str | None = None,
    deterministic: bool = True,
    seed: int = 0,
    dtype: Any = None,
) -> Policy:
    """A policy of a network; see ``load_policy``.

    Args:
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        observation_space: Space of one observation, as the environment gives it.
        action_space: Space of one action.
        backend: Engine that acts; None for NumPy, without any.
        deterministic: True for the mode of the action distribution.
        seed: Seed of the noise.
        dtype: Floating-point type of NumPy's code; by default the network's own.
    """
    refuse_other_module("load_policy", network, "network")
    check_flag("load_policy", "deterministic", deterministic)
    arguments = observation_space, action_space, check_size("", "seed", seed, 0)
    with evaluation_mode(network, deterministic):
        if backend in (None, "numpy"):
            try:
                return NumpyPolicy(write(network, observation_space, action_space, dtype), *arguments)
            except Exception as error:
                # What the network's own engine refuses, too, is refused by that.
                if backend == "numpy":
                    raise
                _LOG.warning("The policy acts on the engine %s, not in NumPy alone: %s", network.engine.name, error)
        engine = network.engine if backend is None else load_engine(backend)
        same = engine.name == network.engine.name
        return EnginePolicy(copy.deepcopy(network) if same else twin(network, engine), *arguments)
