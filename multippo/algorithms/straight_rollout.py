"""Rollouts by straight code: between two steps of the environment are NumPy calls alone."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from multippo.algorithms.types import Transition
from multippo.envs.api import Env, EnvState
from multippo.envs.nonfinite import restart_broken
from multippo.straight.acting import Straight
from multippo.trees import tree_leaves, tree_map, tree_structure, tree_unflatten


def may_go_straight(engine: Any, env: Env) -> bool:
    """True if a network may act by straight code, on the processor and between steps of Python."""
    return not env.functional and engine.device_name().startswith("cpu") and engine.name != "numpy"


def go_straight(
    straight: Straight,
    engine: Any,
    env: Env,
    state: Any,
    env_state: EnvState,
    length: int,
    sequence: int,
) -> tuple[Any, EnvState, Transition, Any]:
    """Acts for ``length`` steps by straight code that has its weights; arguments and result as of ``collect``."""
    straight.begin(state, env.may_skip, sequence)
    obs_t = _empty(length, [engine.to_numpy(engine.asarray(leaf)) for leaf in tree_leaves(env_state.obs)])
    kept_t: list[np.ndarray] = []
    bootstraps = straight.no_values()
    nothing = contextlib.nullcontext()
    annotate = engine.annotate if engine.profiling else lambda _: nothing
    for t in range(length):
        for held, leaf in zip(obs_t, _leaves(env_state.obs), strict=True):
            held[t] = leaf
        with annotate("acting"):
            actions = straight.act(t, [held[t] for held in obs_t])
        try:
            with annotate("environment"):
                env_state = restart_broken(env, env.step(env_state, actions))
        except Exception as error:
            note_actions(error, actions, t)
            raise
        _, reward, terminated, truncated, final_obs, valid, metrics, _, broken = env_state
        # Copies, since an environment may write its next answer into the same arrays.
        leaves = [*_leaves(reward), terminated, truncated, valid, *(_leaves(metrics) if metrics else ()), broken]
        kept_t = kept_t or _empty(length, leaves)
        for held, leaf in zip(kept_t, leaves, strict=True):
            held[t] = leaf
        done = terminated | truncated
        ended = np.count_nonzero(done) > 0
        if ended and np.count_nonzero(truncated):
            final = [np.asarray(leaf, held.dtype) for held, leaf in zip(obs_t, tree_leaves(final_obs), strict=True)]
            for held, value in zip(bootstraps, straight.value(t, final), strict=True):
                held[t][truncated] = value[truncated]
        straight.settle(done if ended else None, valid if env.may_skip and not valid.all() else None)
    output, extras, state, starts = straight.finish(obs_t)
    obs = tree_unflatten(tree_structure(env_state.obs), obs_t)
    bootstrap = tree_unflatten(tree_structure(output.value_estimates), bootstraps)
    kept = env_state._replace(obs=(), final_obs=(), internal=())
    kept = tree_unflatten(tree_structure(kept), kept_t)
    transition = make_transition(obs, output, extras, kept, bootstrap)
    adopted: dict[int, Any] = {}  # an array that is in two places stays one

    def adopt(array: np.ndarray) -> Any:
        if id(array) not in adopted:
            adopted[id(array)] = engine.adopt(array)
        return adopted[id(array)]

    state, transition, starts = tree_map(adopt, (state, transition, starts))
    return state, env_state, transition, starts


def _leaves(tree: Any) -> list[Any]:
    """``tree_leaves``, quicker for a lone array."""
    return [tree] if isinstance(tree, np.ndarray) else tree_leaves(tree)


def _empty(length: int, leaves: list[Any]) -> list[np.ndarray]:
    """Arrays for all steps of a rollout, of leaves ``[B, ...]``."""
    return [np.empty((length, *np.shape(leaf)), np.asarray(leaf).dtype) for leaf in leaves]


def note_actions(error: Exception, actions: Any, t: int) -> None:
    """Adds a note to an environment's error if the actions it was given are not finite."""
    wrong = [not np.isfinite(leaf).all() for leaf in tree_leaves(actions) if np.asarray(leaf).dtype.kind == "f"]
    if any(wrong):
        error.add_note(
            f"Actions of step {t} of the rollout are not finite. An observation before it was not, and the environment "
            "could not be reset again, or the network makes them of finite ones."
        )


def make_transition(obs: Any, output: Any, extras: Any, env_state: EnvState, bootstrap: Any) -> Transition:
    """A transition of observations, the network's outputs and snapshots, environments' answers and final values."""
    return Transition(
        obs=obs,
        network_output=output,
        rewards=env_state.reward,
        terminated=env_state.terminated,
        truncated=env_state.truncated,
        done=env_state.terminated | env_state.truncated,
        valid=env_state.valid,
        metrics=env_state.metrics,
        rollout_extras=extras,
        bootstrap_values=bootstrap,
        broken=env_state.broken,
    )
