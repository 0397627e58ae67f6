"""Rollouts: acting in the environments, and storing all that replay needs.

Three drivers produce the same ``Transition``. Where the engine can trace the environment (JAX with a functional one),
the whole rollout is one scan; another engine leaves such an environment to the network's twin, see ``twin_rollout``.
Otherwise Python steps the environment, and the network acts by straight code (``straight_rollout``), in tensors
(``tensor_rollout``), or on its engine, where neither is possible.

The order of events in a step is the same in both: the network acts under the carry ``state_t``; the environment steps;
where an episode was truncated, the final observation is valued under the carry from *before* the reset; where one
ended, the carry is reset; where the step was not valid, the carry stays as before.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Hashable
from typing import Any

import numpy as np
import optree

from multippo.algorithms.checks import check_acts
from multippo.algorithms.straight_rollout import go_straight, make_transition, may_go_straight, note_actions
from multippo.algorithms.tensor_rollout import collect_tensors, refuse_other_arrays
from multippo.algorithms.twin_rollout import TwinRollouts
from multippo.algorithms.types import Transition
from multippo.arguments import check_size
from multippo.envs.api import Env, EnvState
from multippo.envs.nonfinite import restart_broken
from multippo.envs.structure import stepped_structure, structure
from multippo.networks.core.error_paths import refuse_other_module
from multippo.networks.core.random_state import forget_drawn, reseed
from multippo.networks.core.unrolling import check_batch, reset_where
from multippo.networks.types import PPONetworkOutput
from multippo.programmes import Programmes, identity, programmes_of
from multippo.straight.acting import Straight
from multippo.trees import select, tree_leaves, tree_map, tree_structure

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
        env: Host or functional environments, on any engine.
        env_state: State of the environments, from ``env.reset`` or an earlier call.
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
        self.act = compiled(self, Actor.act_untraced, engine.jit, kernel)
        self.settle = compiled(self, Actor.settle_untraced, engine.jit)
        self.value = compiled(self, Actor.value_untraced, engine.jit, kernel)
        self._example_extras: Any = None
        self._twins: dict[tuple[int, int], TwinRollouts | None] = {}
        self._straight: Straight | None = None
        self._is_tried = not may_go_straight(engine, env)

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

    def straight(self, params: Any, variables: Any, state: Any, obs: Any, length: int) -> Straight | None:
        """The network as straight code, made and compared with the network at the first call; None without any."""
        if not self._is_tried:
            self._is_tried = True
            seen = tree_map(self.engine.asarray, obs)
            # Where compiling is a choice, it takes long for one call.
            act = self.act_untraced if "compile" in self.engine.capabilities else self.act
            with self.engine.no_grad():
                like = act(params, variables, state, seen)
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
    driver = _scan if is_traced(actor.engine, actor.env) else _step
    driver = driver if actor.env.arrays == "numpy" else collect_tensors
    # A carry made of parameters (a trained initial state) is constant to the loss, as all later carries are.
    network_state = actor.engine.stop_gradient(network_state)
    if actor.env.functional and driver is _step:
        start = (params, variables), network_state, env_state
        twins = actor.twin_rollouts(*start, length, sequence_length)
        if twins is not None:
            return twins.play(*start)
    straight = actor.straight(params, variables, network_state, env_state.obs, length) if driver is _step else None
    if straight is not None:
        straight.load(params, variables)
        return go_straight(straight, actor.engine, actor.env, network_state, env_state, length, sequence_length)
    return driver(actor, params, variables, network_state, env_state, length, sequence_length)


def _scan(
    actor: Actor, params: Any, variables: Any, state: Any, env_state: EnvState, length: int, sequence: int
) -> Rollout:
    engine, env, xp = actor.engine, actor.env, actor.engine.xp
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

    (state, env_state), (stored, starts) = engine.scan(chunk, (state, env_state), None, length // sequence)
    stored = [xp.reshape(x, (length, *x.shape[2:])) for x in stored]
    transition: Any = optree.tree_unflatten(transition_structure[0], [stored[place] for place in places])
    return state, env_state, transition, starts


def _step(
    actor: Actor, params: Any, variables: Any, state: Any, env_state: EnvState, length: int, sequence: int
) -> Rollout:
    engine, env = actor.engine, actor.env
    receive, keep, send = _exchange(engine, env)
    nothing = contextlib.nullcontext()
    annotate = engine.annotate if engine.profiling else lambda _: nothing
    obs_t: list[Any] = []
    outputs: list[Any] = []
    env_states: list[Any] = []
    starts: list[Any] = []
    bootstraps: list[Any] = []
    with engine.no_grad():
        for t in range(length):
            if t % sequence == 0:
                starts.append(forget_drawn(state))
            obs = receive(env_state.obs)
            if t == 0 and engine.draws_ahead:
                # A copy, so that the first step's carry is of the same kind as the others', made inside ``no_grad``.
                # One step more, for the value of a final observation after the last.
                state = actor.draw_ahead(params, variables, engine.snapshot(state), obs, length + 1)
            with annotate("acting"):
                after, output, extras = actor.act(params, variables, state, obs)
            obs_t.append(obs)
            outputs.append((output, extras))
            actions = send(output.actions)
            try:
                with annotate("environment"):
                    env_state = restart_broken(env, env.step(env_state, actions))
            except Exception as error:
                note_actions(error, actions, t)
                raise
            # Copies, since an environment may write its next answer into the same arrays. The simulator's own state is
            # the latest one only; keeping T of them would hold on to their memory.
            env_states.append(keep(env_state._replace(obs=(), final_obs=(), internal=())))
            ended = bool((env_state.terminated | env_state.truncated).any())
            bootstraps.append(None)
            if bool(env_state.truncated.any()):
                value = actor.value(params, variables, after, receive(env_state.final_obs))
                truncated = receive(env_state.truncated)
                bootstraps[-1] = select(engine.xp, truncated, value, tree_map(engine.xp.zeros_like, value))
            if ended or not bool(env_state.valid.all()):
                done, valid = receive((env_state.terminated | env_state.truncated, env_state.valid))
                after = actor.settle(params, variables, state, after, done, valid)
            state = after
    zeros = tree_map(engine.xp.zeros_like, outputs[0][0].value_estimates)
    obs, (output, extras) = stack_once(engine, list(zip(obs_t, outputs, strict=True)))
    stacked = engine.stack_time(env_states)
    bootstrap = engine.stack_time([zeros if b is None else b for b in bootstraps])
    transition = make_transition(obs, output, extras, stacked, bootstrap)
    return engine.snapshot(forget_drawn(state)), env_state, transition, engine.stack_time(starts)


def stack_once(engine: Any, trees: list[Any]) -> Any:
    """Stacks trees over time; arrays that stand in two places, as what a normaliser has seen does, are stacked once."""
    columns = list(zip(*map(tree_leaves, trees), strict=True))
    unique = {tuple(map(id, column)): column for column in columns}
    stacked = dict(zip(unique, engine.stack_time(list(zip(*unique.values(), strict=True))), strict=True))
    return optree.tree_unflatten(tree_structure(trees[0]), [stacked[tuple(map(id, column))] for column in columns])


def _exchange(engine: Any, env: Env) -> tuple[Any, Any, Any]:
    """Functions that bring arrays to the network, keep them for later, and bring them back to the environment."""
    if env.functional:
        return engine.from_jax, engine.from_jax, engine.to_jax
    return (
        functools.partial(tree_map, engine.asarray),
        # Kept on the host: arrays that the network does not read now go to its device at the end, in one copy.
        functools.partial(tree_map, np.array),
        functools.partial(tree_map, engine.to_numpy),
    )
