"""Rollouts in functional environments by a network of another engine than the one that traces them.

The network's twin acts in one compiled rollout, environment included, as a network of the tracing engine itself does.
Weights and carry go there before the rollout, the transition comes back after it. Noise depends on keys and counts
alone, so the run is the same, up to rounding, as one in which the network itself takes every step.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from multippo.backends.registry import load_engine
from multippo.envs.api import EnvState
from multippo.networks.core.twins import twin
from multippo.trees import tree_map


def tracing_engine() -> Any:
    """The engine that traces functional environments; None if its packages are not installed."""
    try:
        return load_engine("jax")
    except ImportError:
        return None


class TwinRollouts:
    """Rollouts of one length by a network's twin.

    Args:
        actor: The ``Actor`` of the network.
        weights: The network's parameters and variables.
        network_state: Carry of the network.
        env_state: State of the environments.
        make: Function of the twin's engine and definition that makes its ``Rollouts``.

    Raises:
        Exception: If the network has no twin, or a twin that fails, as one with functions of the framework does.
    """

    def __init__(
        self, actor: Any, weights: Any, network_state: Any, env_state: EnvState, make: Callable[[Any, Any], Any]
    ) -> None:
        self._engine, self._definition = engine, _ = actor.engine, actor.definition
        self._tracing = tracing = tracing_engine()
        network = engine.merge(actor.definition, *weights)
        read = {name: leaf.read() for name, leaf in engine.leaves(network).items()}
        if tracing is None:
            raise ImportError("the engine that traces the environment is not installed")
        if engine.product() is not operator.matmul or any(array.dtype == "float64" for array in read.values()):
            raise TypeError("the twin would compute in single precision")
        made = twin(network, tracing)
        definition, *self._weights = tracing.split(made)
        leaves = {leaf.native_path: (name, leaf) for name, leaf in tracing.leaves(made).items()}
        self._leaves = [leaves[path] for path in tracing.native_arrays(*self._weights)]
        self._carry = tracing.shapes(lambda: made.initialize_state(actor.env.num_envs))
        tracing.shapes(made, self._carry, env_state.obs)
        with engine.no_grad():  # the types that the network itself returns
            self._like = actor.act_untraced(*weights, network_state, engine.from_jax(env_state.obs))[1:]
        self._rollouts = make(tracing, definition)

    def play(self, weights: Any, network_state: Any, env_state: EnvState) -> Any:
        """Acts with the network's present weights.

        Args:
            weights: The network's parameters and variables.
            network_state: Carry of the network.
            env_state: State of the environments.

        Returns:
            The result of ``rollout.collect``.
        """
        engine, tracing = self._engine, self._tracing
        carry = tree_map(lambda leaf, like: engine.to_numpy(leaf).astype(like.dtype), network_state, self._carry)
        with tracing.training(1, 1):
            played = self._rollouts.play(*self._moved(weights), carry, env_state)
        after, transition, starts = engine.from_jax((played[0], played[2], played[3]))
        output, extras = self._typed((transition.network_output, transition.rollout_extras), self._like)
        transition = transition._replace(network_output=output, rollout_extras=extras)
        return self._typed(after, network_state), played[1], transition, self._typed(starts, network_state)

    def _moved(self, weights: Any) -> Any:
        """The network's parameters and variables in the arrays of the twin's."""
        own, places = self._engine.leaves(self._engine.merge(self._definition, *weights)), iter(self._leaves)

        def moved(old: Any) -> Any:
            name, leaf = next(places)
            # Typed random keys never change.
            return old if str(old.dtype).startswith("key<") else leaf.from_portable(own[name].read()).astype(old.dtype)

        return self._tracing.tree_map(moved, self._weights)

    def _typed(self, tree: Any, like: Any) -> Any:
        """Arrays in the types of the network's own, which are wider for integers."""
        return tree_map(lambda x, own: self._engine.xp.astype(x, own.dtype, copy=False), tree, like)
