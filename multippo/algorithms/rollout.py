"""Rollouts: acting in the environments, and storing all that replay needs.

Where the engine can trace the environment (JAX with a functional one), the whole rollout is one scan (``_scan``);
another engine leaves such an environment to the network's twin (``twin_rollout``). Otherwise Python steps the
environment (``stepped_rollout``), and the network acts by straight code or, without any, on its engine. In environments
of tensors nothing leaves the device (``tensor_rollout``). All produce the same ``Transition``.

The order of events in a step is the same everywhere: the network acts under the carry ``state_t``; the environment
steps; where an episode was truncated, the final observation is valued under the carry from *before* the reset; where
one ended, the carry is reset; where the step was not valid, the carry stays as before.
"""

from __future__ import annotations

import functools
import importlib
import logging
from collections.abc import Hashable
from typing import TYPE_CHECKING, Any

import numpy as np
import optree

from multippo.algorithms.checks import check_acts
from multippo.algorithms.minibatches import has_memory
from multippo.algorithms.stepped_rollout import EngineActing, make_transition, may_go_straight, step_through
from multippo.algorithms.tensor_rollout import collect_tensors, refuse_other_arrays
from multippo.algorithms.twin_rollout import TwinRollouts
from multippo.algorithms.types import Transition
from multippo.arguments import check_size
from multippo.envs.api import Env, EnvState
from multippo.envs.structure import stepped_structure, structure
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.random_state import reseed
from multippo.networks.core.unrolling import check_batch, reset_where
from multippo.networks.types import PPONetworkOutput
from multippo.programmes import Programmes, identity, programmes_of
from multippo.trees import select, tree_leaves, tree_map, tree_structure

if TYPE_CHECKING:
    from multippo.straight.acting import Straight

_LOG = logging.getLogger("multippo")

Rollout = tuple[Any, EnvState, Transition, Any]
"""Carry and environment state after the last step, transition, and the carries ``[T / L, B, ...]`` before every L-th
step."""


def is_traced(engine: Any, env: Env) -> bool:
    """True if the environment becomes part of the engine's compiled rollout."""
    return env.functional and "functional" in engine.capabilities


def unroll_env(
    env: Env, env_state: EnvState, network: Any, network_state: Any, unroll_length: int, key: Any
) -> tuple[Any, EnvState, Transition]:
    """Acts for ``unroll_length`` steps in every environment.

    Args:
        env: Host or functional environments, on any engine; or a functional environment without ``make_env``.
        env_state: State of the environments, from ``env.reset`` or an earlier call; at first a batch of its own states
            of an environment without ``make_env``, such as ``jax.vmap(env.reset)(keys)``.
        network: A StatefulModule whose output is a ``PPONetworkOutput``.
        network_state: Carry of every environment.
        unroll_length: T.
        key: Seed of the environment's fresh starts; action noise comes from keys in ``network_state``.

    Returns:
        The carry after the last step, the environment state, and the transition ``[T, B, ...]``. To ``replay`` it,
        keep the carry from before the call.

    Raises:
        TypeError: If ``env`` is not an environment of ``make_env``, or the network not a StatefulModule whose output is
            a PPONetworkOutput.
        ValueError: If ``unroll_length`` is not an integer of at least 1, or the carry is of another number of
            environments.
    """
    if not isinstance(env, Env) and hasattr(env_state, "reward"):
        env, env_state = _adopted(env, env_state)
    if not isinstance(env, Env):
        raise TypeError(f"unroll_env got a {type(env).__name__} as its env; expected environments from make_env(...).")
    refuse_other_module("unroll_env", network, "network")
    unroll_length = check_size("unroll_env", "unroll_length", unroll_length)
    check_batch("unroll_env", network_state, env.num_envs)
    engine = network.engine
    definition, params, variables = engine.split(network)
    with engine.activated():
        rollouts = Rollouts(engine, env, definition, unroll_length, "off")
        state, env_state, transition, _ = rollouts.play(params, variables, network_state, env.refresh(env_state, key))
    return state, env_state, transition


def _adopted(env: Any, env_state: Any) -> tuple[Any, Any]:
    """A functional environment and its batch of states, as a user has them, as ``make_env`` and its ``reset`` do."""
    from multippo.envs.make import make_env

    made: Any = make_env(env, len(tree_leaves(env_state.reward)[0]))
    return made, env_state if isinstance(env_state, EnvState) else made.adopt(env_state)


def programmes_for(kind: type, engine: Any, definition: Any, env: Env, mode: str, *more: Hashable) -> Programmes:
    """Returns the programmes that objects of a class share, with networks and environments of equal structure.

    Args:
        kind: The class.
        engine: The network's engine.
        definition: The network's structure, from ``engine.split``.
        env: The environments.
        mode: ``TrainConfig.compile``.
        more: All else that is compiled in.
    """
    around = structure(env) if is_traced(engine, env) else stepped_structure(env)
    # CUDA graphs record the addresses of one network's parameters, so no other network may share them.
    own = identity(definition) if mode == "reduce-overhead" else None
    return programmes_of(kind, engine, engine.float_dtype, engine.structure(definition), around, mode, own, *more)


class Actor:
    """A network's acting functions for one environment, compiled once.

    Args:
        engine: The network's engine.
        env: The environments.
        definition: The network's structure, from ``engine.split``.
        mode: ``TrainConfig.compile``.
        programmes: Programmes shared with actors of the same mode, for networks and environments of equal structure.
    """

    def __init__(self, engine: Any, env: Env, definition: Any, mode: str, programmes: Programmes | None = None) -> None:
        refuse_other_arrays(engine, env)
        self.engine, self.env, self.definition = engine, env, definition
        programmes = programmes or Programmes()
        self.notes, compiled = programmes.notes, programmes.compiled
        kernel = functools.partial(engine.kernel, mode=mode)
        self._act = compiled(self, Actor.act_untraced, engine.jit, kernel)
        self._settle = compiled(self, Actor.settle_untraced, engine.jit)
        self._step = compiled(self, Actor._step_untraced, engine.jit)
        self.value = compiled(self, Actor.value_untraced, engine.jit, kernel)
        self._example_extras: Any = None
        self._twins: dict[tuple[int, int], TwinRollouts | None] = {}
        self._straight: Straight | None = None
        self._is_tried = not may_go_straight(engine, env)
        self._nowhere = np.zeros(env.num_envs, np.bool_), np.ones(env.num_envs, np.bool_)

    def fresh_untraced(self, params: Any, variables: Any, key: Any) -> Any:
        """Carry of every environment before the first step, its noise from ``key``."""
        network = self.engine.merge(self.definition, params, variables)
        return reseed(self.engine.random, network.initialize_state(self.env.num_envs), key)

    def act_untraced(self, params: Any, variables: Any, state: Any, obs: Any) -> tuple[Any, Any, Any]:
        """Next carry, output and snapshots of one step of the network, for callers that compile the step."""
        out = self.engine.merge(self.definition, params, variables)(state, obs)
        if not isinstance(out.output, PPONetworkOutput):
            check_acts(out.output, "acting in an environment")
        return out.next_state, out.output, out.rollout_extras

    def received(self, tree: Any) -> Any:
        """NumPy's arrays as ``step`` and ``value`` take them."""
        return tree if self.engine.whole_steps else tree_map(self.engine.asarray, tree)

    def step(self, params: Any, variables: Any, before: Any, after: Any, ends: Any, obs: Any) -> tuple[Any, ...]:
        """Settles the carry of the step before and acts, in one call where the engine compiles whole programmes.

        Args:
            params: The network's parameters.
            variables: Its variables.
            before: Carry before the step before.
            after: Carry after it.
            ends: NumPy masks of the environments whose episodes it ended, and of those where it was valid; None if it
                ended none and was valid everywhere.
            obs: Observation, from ``received``.

        Returns:
            The settled carry, and the next carry, output and snapshots.
        """
        if self.engine.whole_steps:
            return self._step(params, variables, before, after, self._nowhere if ends is None else ends, obs)
        state = self.settled(params, variables, before, after, ends)
        return state, *self._act(params, variables, state, obs)

    def settled(self, params: Any, variables: Any, before: Any, after: Any, ends: Any) -> Any:
        """The carry after a step as ``step`` settles it."""
        return after if ends is None else self._settle(params, variables, before, after, *self.received(ends))

    def _step_untraced(self, params: Any, variables: Any, before: Any, after: Any, ends: Any, obs: Any) -> Any:
        state = self.settle_untraced(params, variables, before, after, *ends)
        return state, *self.act_untraced(params, variables, state, obs)

    def straight(self, params: Any, variables: Any, state: Any, obs: Any, length: int) -> Straight | None:
        """The network as straight code with these weights, compared with the network once; None without any."""
        if not self._is_tried:
            from multippo.straight.acting import Straight  # imports the NumPy engine and all of NumPy

            self._is_tried = True
            seen = tree_map(self.engine.asarray, obs)
            with self.engine.no_grad():
                if self.engine.whole_steps:
                    _, *like = self.step(params, variables, state, state, None, obs)
                else:  # where compiling is a choice, it takes long for one call
                    like = self.act_untraced(params, variables, state, seen)
            try:
                made = Straight(self.engine.merge(self.definition, params, variables), state, seen, length, like)
                made.load(params, variables)
                made.check(state, tree_leaves(tree_map(self.engine.to_numpy, seen)), like)
                self._straight = made
            # The network itself has just run; whatever its modules raise on other arrays, it is not a fault of theirs.
            except Exception as error:
                _LOG.debug(
                    "Acting runs on the engine %s, since straight code is not possible: %s", self.engine.name, error
                )
        if self._straight is not None:
            self._straight.load(params, variables)
        return self._straight

    def draw_ahead(self, params: Any, variables: Any, state: Any, obs: Any, num_steps: int) -> Any:
        """Carry with the noise of ``num_steps`` steps, drawn in one call."""
        if self._example_extras is None:  # a sampler learns the noise's shape from what it emitted once
            # ``act`` would be compiled for this one call without noise drawn.
            self._example_extras = self.act_untraced(params, variables, state, obs)[2]
        network = self.engine.merge(self.definition, params, variables)
        return network.draw_ahead(state, self._example_extras, num_steps)

    def value_untraced(self, params: Any, variables: Any, state: Any, obs: Any) -> Any:
        """Value estimates of an observation."""
        return self.engine.merge(self.definition, params, variables)(state, obs).output.value_estimates

    def settle_untraced(self, params: Any, variables: Any, before: Any, after: Any, done: Any, valid: Any) -> Any:
        """Carry of the next step: reset where an episode ended, held where the step was not valid."""
        network = self.engine.merge(self.definition, params, variables)
        state = reset_where(network, done, after)
        return select(self.engine.xp, valid, state, before) if self.env.may_skip else state

    def twin_rollouts(
        self, weights: Any, network_state: Any, env_state: EnvState, length: int, sequence: int
    ) -> TwinRollouts | None:
        """Rollouts of ``length`` steps by the network's twin; None if it has none.

        Args:
            weights: Parameters and variables.
            network_state: Carry of every environment.
            env_state: State of the environments.
            length: T.
            sequence: Steps between carries that are kept.
        """

        def make(engine: Any, definition: Any) -> Rollouts:
            return Rollouts(engine, self.env, definition, length, "off", sequence)

        if (length, sequence) not in self._twins:
            self._twins[length, sequence] = None
            try:
                self._twins[length, sequence] = TwinRollouts(self, weights, network_state, env_state, make)
            except Exception as error:
                _LOG.debug("%s is stepped from %s, one step a call: %s", self.env.id, self.engine.name, error)
        return self._twins[length, sequence]


class Rollouts:
    """Rollouts of one length by one network in one environment, outside training.

    Args:
        engine: The network's engine.
        env: The environments.
        definition: The network's structure, from ``engine.split``.
        length: T.
        mode: ``TrainConfig.compile``.
        sequence: Steps between carries that are kept; by default ``length``.
    """

    def __init__(
        self, engine: Any, env: Env, definition: Any, length: int, mode: str, sequence: int | None = None
    ) -> None:
        self._length, self._sequence = length, sequence or length
        programmes = programmes_for(Rollouts, engine, definition, env, mode, length, self._sequence)
        self._actor = Actor(engine, env, definition, mode, programmes)
        self.begin = programmes.compiled(self, Rollouts._begin, engine.jit)
        jit = engine.jit if is_traced(engine, env) else None
        self.play = programmes.compiled(self, Rollouts._play, jit)
        self.score = programmes.compiled(self, Rollouts._score, jit)

    def _begin(self, params: Any, variables: Any, key: Any) -> Any:
        return self._actor.fresh_untraced(params, variables, key)

    def _play(self, params: Any, variables: Any, network_state: Any, env_state: EnvState) -> Rollout:
        return collect(self._actor, params, variables, network_state, env_state, self._length, self._sequence)

    def _score(self, params: Any, variables: Any, network_state: Any, env_state: EnvState) -> tuple[Any, EnvState, Any]:
        """Runs ``_play``; of the transition it returns the parts that an evaluation counts."""
        network_state, env_state, seen, _ = self._play(params, variables, network_state, env_state)
        return network_state, env_state, (seen.rewards, seen.done, seen.valid, seen.broken)


def collect(
    actor: Actor,
    params: Any,
    variables: Any,
    network_state: Any,
    env_state: EnvState,
    length: int,
    sequence_length: int,
) -> Rollout:
    """Acts for ``length`` steps; see ``unroll_env``. Keeps the carry before every ``sequence_length``-th step.

    The caller refreshes the environment's starts: drawn in here they would have the reset compiled again, which takes
    as long as the step.
    """
    engine, env, weights = actor.engine, actor.env, (params, variables)
    if env.arrays == "numpy":
        straight = actor.straight(*weights, network_state, env_state.obs, length)
        if straight is not None:
            return step_through(straight, engine, env, network_state, env_state, length, sequence_length)
    # A carry made of parameters (a trained initial state) is constant to the loss, as all later carries are.
    network_state = engine.stop_gradient(network_state)
    if is_traced(engine, env):
        return _scan(actor, *weights, network_state, env_state, length, sequence_length)
    if env.arrays != "numpy":
        return collect_tensors(actor, *weights, network_state, env_state, length, sequence_length)
    if env.functional:
        twins = actor.twin_rollouts(weights, network_state, env_state, length, sequence_length)
        if twins is not None:
            return twins.play(weights, network_state, env_state)
    acting = EngineActing(actor, weights, env_state.obs, length)
    return step_through(acting, engine, env, network_state, env_state, length, sequence_length)


def _scan(
    actor: Actor, params: Any, variables: Any, state: Any, env_state: EnvState, length: int, sequence: int
) -> Rollout:
    engine, env, xp = actor.engine, actor.env, actor.engine.xp
    # Without a memory the values of all steps are one large product, not many small ones in turn.
    values_last = not has_memory(state)
    transition_structure: list[Any] = []
    places: list[int] = []

    def step(carry: tuple[Any, EnvState], _: Any) -> tuple[tuple[Any, EnvState], list[Any]]:
        before, env_before = carry
        with engine.annotate("acting"):
            after, output, extras = actor.act_untraced(params, variables, before, env_before.obs)
        with engine.annotate("environment"):
            env_after = env.step(env_before, output.actions)
        bootstrap = engine.cond(
            xp.any(env_after.truncated),
            lambda: tree_map(
                lambda v: xp.where(env_after.truncated, v, xp.zeros_like(v)),
                actor.value_untraced(params, variables, after, env_after.final_obs),
            ),
            lambda: tree_map(xp.zeros_like, output.value_estimates),
        )
        done = env_after.terminated | env_after.truncated
        state = actor.settle_untraced(params, variables, before, after, done, env_after.valid)
        if values_last:
            output = output._replace(value_estimates=None)
        transition = make_transition(env_before.obs, output, extras, env_after, bootstrap)
        if transition.broken is None:  # a user's environment may leave it out
            transition = transition._replace(broken=xp.zeros(env_after.valid.shape, dtype=xp.int32))
        # An array in two places, such as what a normaliser has seen, is stored once.
        leaves = tree_leaves(transition)
        unique = {id(leaf): leaf for leaf in leaves}
        places[:] = [list(unique).index(id(leaf)) for leaf in leaves]
        transition_structure[:] = [tree_structure(transition)]
        return (state, env_after), list(unique.values())

    def chunk(carry: tuple[Any, EnvState], _: Any) -> tuple[tuple[Any, EnvState], Any]:
        after, transition = engine.scan(step, carry, None, sequence)
        return after, (transition, carry[0])

    (after, env_state), (stored, starts) = engine.scan(chunk, (state, env_state), None, length // sequence)
    stored = [xp.reshape(x, (length, *x.shape[2:])) for x in stored]
    transition: Any = optree.tree_unflatten(transition_structure[0], [stored[place] for place in places])
    if values_last:
        network = engine.merge(actor.definition, params, variables)
        with engine.annotate("values"):
            out = network.unroll(state, transition.obs, transition.done, transition.rollout_extras).output
        output = transition.network_output._replace(value_estimates=out.value_estimates)
        transition = transition._replace(network_output=output)
    return after, env_state, transition, starts


def __getattr__(name: str) -> Any:
    if name != "eval_rollout":  # its module imports this one; nnx-ppo has it here
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return importlib.import_module("multippo.algorithms.evaluation").eval_rollout
