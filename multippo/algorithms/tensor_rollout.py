"""Rollouts in environments of tensors (``Env.arrays``): nothing leaves the device, and nothing waits for it.

Observations, rewards and ends go into tensors of the whole rollout, allocated once. The network acts by straight code
(``Engine.straight``), with its noise drawn ahead. Values that depend on no carry and no noise are computed after the
last step, for all steps at once.

A truncated episode is valued by its last observation where the environment reports it, and otherwise by the
observation before its last step, whose value is there already.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import optree

from multippo.algorithms.types import Transition
from multippo.envs.api import Env, EnvState
from multippo.networks.core.random_state import RandomState, forget_drawn, map_random_states
from multippo.networks.core.unrolling import fold_time, reset_where, unfold_time
from multippo.trees import tree_leaves, tree_map


def refuse_other_arrays(engine: Any, env: Env) -> None:
    """Raises a ValueError unless an environment's arrays are NumPy's or those of the engine."""
    if env.arrays not in ("numpy", engine.name):
        raise ValueError(
            f"{env.id} takes and returns {env.arrays} tensors, and the network is on the {engine.name} engine: make "
            f"the network under multippo.use_backend({env.arrays!r})."
        )


class TensorCode:
    """Straight code of a network's calls in rollouts of one length.

    Args:
        engine: The network's engine.
        functions: Result of ``_functions``.
        inputs: Carry, noise of one step and observation.
        weights: Parameters and variables by name.
        length: T.

    Attributes:
        act: Code of the network's next carry, output and snapshots.
        value: Code of its value estimates.
        values: The same for all steps of a rollout, or None if a value depends on a carry or on noise.
        settle: Code of the carry after ends of episodes, or None if ends change nothing.
        places: Places of the results of ``act``, in their structure.
        computed: Places of those that a step computes, the carry's first.
        seen: Place of an observation's leaf for each place of a result that is one.
    """

    def __init__(self, engine: Any, functions: Any, inputs: Any, weights: Any, length: int) -> None:
        act, value, settle = functions
        state, noise, obs = inputs
        self.act, self.value = (engine.straight(function, inputs, weights) for function in (act, value))
        self.places: Any = optree.tree_unflatten(self.act.structure, range(len(self.act.sources)))
        carried = len(tree_leaves(state))
        first = carried + len(tree_leaves(noise))
        values_at = tree_leaves(self.places[1].value_estimates)
        self.values = None
        if min(self.act.reads(values_at), default=first) >= first:
            many = tree_map(lambda x: engine.xp.concat([x] * length), inputs)
            self.values = engine.straight(value, many, weights)
        done = tree_leaves(obs)[0].reshape(tree_leaves(obs)[0].shape[0], -1)[:, 0] != 0
        reset = engine.straight(settle, (state, done), weights)
        self.settle = None if reset.sources == list(range(carried)) else reset
        found = enumerate(self.act.sources)
        self.seen = {place: source - first for place, source in found if place >= carried and (source or 0) >= first}
        apart = {*self.seen, *(values_at if self.values else ())}
        self.computed = [place for place in range(len(self.act.sources)) if place not in apart]


def _functions(actor: Any, params: Any, variables: Any) -> tuple[Callable[..., Any], ...]:
    """What the network does in a rollout: acts, values an observation, and settles its carry after ends."""

    def act(state: Any, noise: Any, obs: Any) -> Any:
        after, output, extras = actor.act_untraced(params, variables, _with_noise(state, noise), obs)
        return forget_drawn(after), output, extras

    def value(state: Any, noise: Any, obs: Any) -> Any:
        return actor.value_untraced(params, variables, _with_noise(state, noise), obs)

    def settle(state: Any, done: Any) -> Any:
        return reset_where(actor.engine.merge(actor.definition, params, variables), done, state)

    return act, value, settle


def _with_noise(state: Any, noise: Any) -> Any:
    """A carry whose random states have a tape of this step alone, where noise is drawn ahead."""
    rows = iter(noise)

    def taped(one: RandomState) -> RandomState:
        return one if (row := next(rows)) is None else RandomState(one.key, one.count, row, one.count)

    return map_random_states(taped, state)


def _noise_by_step(state: Any, steps: int) -> list[list[Any]]:
    """Noise ``[B, 1, ...]`` of each random state of a carry, by step; None for those that don't draw ahead."""
    tapes: list[Any] = []
    map_random_states(lambda one: tapes.append(one.tape), state)
    columns = ([None] * steps if tape is None else tape.split(1, dim=1) for tape in tapes)
    return [list(rows) for rows in zip(*columns, strict=True)] or [[]] * steps


def collect_tensors(
    actor: Any, params: Any, variables: Any, state: Any, env_state: EnvState, length: int, sequence: int
) -> tuple[Any, EnvState, Transition, Any]:
    """Acts for ``length`` steps; arguments and result are those of ``rollout.collect``.

    Raises:
        ValueError: If the environment's tensors are on another device than the network's.
    """
    engine, env, xp, weights = actor.engine, actor.env, actor.engine.xp, {**params, **variables}
    act, value, settle = functions = _functions(actor, params, variables)
    seen = (env_state.obs, env_state.reward, env_state.terminated, env_state.truncated)
    _check_device(engine, env, env_state.obs)
    # Made outside of ``no_grad``, since gradients flow where they are read.
    buffers = tree_map(lambda x: xp.empty((length, *x.shape), dtype=x.dtype, device=x.device), seen)
    obs, rewards, terminated, truncated = buffers
    rows = list(zip(*(buffer.unbind(0) for buffer in tree_leaves(obs)), strict=True))
    rows_of_ends = list(zip(*(buffer.unbind(0) for buffer in tree_leaves(buffers[1:])), strict=True))
    with engine.no_grad():
        # One step more, for the value of a last observation after the last step.
        state = actor.draw_ahead(params, variables, engine.snapshot(state), env_state.obs, length + 1)
        noise, state = _noise_by_step(state, length + 1), forget_drawn(state)
        code = actor.notes.get(("tensors", length))
        if code is None:
            code = TensorCode(engine, functions, (state, noise[0], env_state.obs), weights, length)
            actor.notes["tensors", length] = code
        noise = list(map(tree_leaves, noise))
        act = code.act.prepare(act, weights, code.computed)
        value = code.value.prepare(value, weights)
        settle = None if code.settle is None else code.settle.prepare(settle, weights)
        carry, structure = optree.tree_flatten(state)
        actions = [code.computed.index(place) for place in tree_leaves(code.places[1].actions)]
        actions_structure = optree.tree_structure(code.places[1].actions)
        starts: list[Any] = []
        acted: list[Any] = []
        finals: list[tuple[int, Any]] = []
        for t in range(length):
            if t % sequence == 0:
                starts.append(carry)
            for row, leaf in zip(rows[t], tree_leaves(env_state.obs), strict=True):
                row.copy_(leaf)
            with engine.annotate("acting"):
                results = act(*carry, *noise[t], *rows[t])
            acted.append(results)
            carry = results[: len(carry)]
            with engine.annotate("environment"):
                env_state = env.step(env_state, actions_structure.unflatten(results[place] for place in actions))
            ends = tree_leaves((env_state.reward, env_state.terminated, env_state.truncated))
            for row, leaf in zip(rows_of_ends[t], ends, strict=True):
                row.copy_(leaf)
            if env_state.final_obs is not None and env_state.final_obs is not env_state.obs:
                finals.append((t, value(*carry, *noise[t + 1], *tree_leaves(env_state.final_obs))))
            if settle is not None:
                carry = settle(*carry, env_state.terminated | env_state.truncated)
        valued: list[Any] = []
        if code.values is not None:
            values = code.values.prepare(functions[1], weights)
            with engine.annotate("acting"):
                valued = values(*carry, *noise[0], *tree_leaves(fold_time(xp, obs)))
    found = {
        place: xp.stack([results[j] for results in acted]) for j, place in enumerate(code.computed) if j >= len(carry)
    }
    found |= {place: tree_leaves(obs)[leaf] for place, leaf in code.seen.items()}
    if valued:
        valued = unfold_time(xp, engine.snapshot(valued), length, env.num_envs)
        found |= dict(zip(tree_leaves(code.places[1].value_estimates), valued, strict=True))
    output, extras = tree_map(found.__getitem__, code.places[1:])
    bootstrap = tree_map(lambda v: xp.where(truncated, v, xp.zeros_like(v)), output.value_estimates)
    for t, leaves in finals:
        for all_steps, leaf in zip(tree_leaves(bootstrap), leaves, strict=True):
            all_steps[t] = xp.where(truncated[t], leaf, xp.zeros_like(leaf))
    done = terminated | truncated
    transition = Transition(
        obs=obs,
        network_output=output,
        rewards=rewards,
        terminated=terminated,
        truncated=truncated,
        done=done,
        valid=xp.ones_like(done),
        metrics={},
        rollout_extras=extras,
        bootstrap_values=bootstrap,
        broken=xp.zeros_like(done, dtype=xp.int32),
    )
    kept = structure.unflatten(map(xp.stack, zip(*starts, strict=True)))
    return engine.snapshot(structure.unflatten(carry)), env_state, transition, kept


def _check_device(engine: Any, env: Env, obs: Any) -> None:
    device = tree_leaves(obs)[0].device
    place = f"{device.type}:{device.index or 0}"
    if place != engine.device_name():
        raise ValueError(
            f"{env.id} has its tensors on {place}, and the network is on {engine.device_name()}: make both on one "
            f"device, as with multippo.use_backend({engine.name!r}, device={place!r})."
        )
